//! [`Merged`]: our rendered entries, merged with the foreign entries of the present configuration.

use super::chain::Chain;
use super::entry::{Entry, EntryRelation, is_calico, is_same, kind};
use super::rendering::Rendering;

/// Plugin types that only extend the network of a plugin before them.
const EXTENDING_TYPES: [&str; 8] = [
    "bandwidth",
    "firewall",
    "istio-cni",
    "linkerd-cni",
    "portmap",
    "sbr",
    "tuning",
    "vrf",
];

/// A rendered configuration, and a pattern that recognizes its entries.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rendered {
    /// The configuration.
    pub chain: Chain,
    /// The configuration with a placeholder instead of the pod's token, so that it matches after
    /// the token changed.
    pub pattern: Chain,
}

/// A configuration with our rendered entries, and with the foreign entries at their present places.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Merged {
    /// The configuration.
    pub chain: Chain,
    /// The types of the foreign entries, in order.
    pub foreign: Vec<String>,
    /// The types of entries that were treated as ours although not recorded, and that the
    /// configuration no longer contains.
    pub dropped: Vec<String>,
    /// The digests of our entries and of the foreign entries, to be recorded.
    pub rendering: Rendering,
    /// The keys of the list that other programs added.
    pub foreign_keys: Vec<String>,
}

impl Rendered {
    /// Returns the configuration to write over `present`: our entries as rendered now replace our
    /// entries in `present`, and foreign entries stay in place. If `present` belongs to another
    /// network, none of its entries stay. `recorded` are the recorded renderings, of which one may
    /// be in place.
    pub fn merge_over(&self, present: &Chain, recorded: &[Rendering]) -> Merged {
        let recorded = Rendering::in_place(recorded, present);
        let ours = present.find_ours(&self.pattern, recorded);
        let dropped = self.find_dropped(present, &ours, recorded);
        if !ours.contains(&true)
            && !recorded.is_some_and(|recorded| has_lost_our_entries(present, recorded))
        {
            return self.without_foreign();
        }
        let is_foreign = |key: &&String| {
            !self.chain.keys.contains_key(*key)
                && !recorded.is_some_and(|recorded| recorded.keys.contains(*key))
        };
        let foreign_keys: Vec<String> = present.keys.keys().filter(is_foreign).cloned().collect();
        let others = present
            .entries
            .iter()
            .zip(&ours)
            .filter(|(_, is_ours)| !**is_ours);
        let foreign: Vec<&Entry> = others.map(|(entry, _)| entry).collect();
        if foreign.is_empty() && foreign_keys.is_empty() {
            return Merged {
                dropped,
                ..self.without_foreign()
            };
        }
        let mut keys = self.chain.keys.clone();
        keys.extend(
            foreign_keys
                .iter()
                .filter_map(|key| Some((key.clone(), present.keys.get(key)?.clone()))),
        );
        // An entry that another program added stays foreign even if today's rendering contains the
        // same entry.
        let is_there = |entry: &Entry| foreign.iter().any(|foreign| is_same(foreign, entry));
        let added: Vec<Entry> = self
            .chain
            .entries
            .iter()
            .filter(|entry| !is_there(entry))
            .cloned()
            .collect();
        let entries = arrange(&added, &present.entries, &ours);
        let own = Chain {
            entries: added,
            ..self.chain.clone()
        };
        let mut rendering = Rendering::new(&own);
        foreign
            .iter()
            .for_each(|entry| rendering.record_foreign(entry));
        let foreign = foreign
            .into_iter()
            .map(|entry| kind(entry).to_owned())
            .collect();
        let chain = Chain {
            keys,
            entries,
            is_list: true,
            has_invalid_elements: false,
        };
        Merged {
            chain,
            foreign,
            dropped,
            rendering,
            foreign_keys,
        }
    }

    /// Returns the types of entries, without Calico's plugin, that count as ours although not
    /// recorded, and of whose type this rendering has no entry.
    fn find_dropped(
        &self,
        present: &Chain,
        ours: &[bool],
        recorded: Option<&Rendering>,
    ) -> Vec<String> {
        let is_recorded =
            |entry: &Entry| recorded.is_some_and(|recorded| recorded.ownership(entry).is_some());
        let is_rendered = |entry: &Entry| {
            self.chain
                .entries
                .iter()
                .any(|rendered| kind(rendered) == kind(entry))
        };
        let entries = present
            .entries
            .iter()
            .zip(ours)
            .filter(|(_, is_ours)| **is_ours)
            .map(|(entry, _)| entry);
        let dropped =
            entries.filter(|entry| !is_calico(entry) && !is_recorded(entry) && !is_rendered(entry));
        dropped.map(|entry| kind(entry).to_owned()).collect()
    }

    /// Returns the configuration to write where no foreign entries exist.
    pub fn without_foreign(&self) -> Merged {
        Merged {
            chain: self.chain.clone(),
            rendering: Rendering::new(&self.chain),
            ..Merged::default()
        }
    }
}

impl Merged {
    /// Returns true if the configuration has neither foreign entries nor keys of other programs.
    pub fn is_only_ours(&self) -> bool {
        self.foreign.is_empty() && self.foreign_keys.is_empty()
    }

    /// Adds the foreign entries of a configuration that this one replaces. An entry that equals one
    /// of ours becomes foreign. An entry of a type that may occur only once is ignored if this
    /// configuration has another entry of that type.
    pub fn add_entries(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            match self.chain.relation_of(&entry) {
                EntryRelation::Other => continue,
                EntryRelation::Same if !self.rendering.contains_entry(&entry) => continue,
                EntryRelation::Same => {}
                EntryRelation::More => self.chain.entries.push(entry.clone()),
            }
            self.rendering.record_foreign(&entry);
            self.foreign.push(kind(&entry).to_owned());
        }
        self.chain.is_list |= !self.foreign.is_empty();
    }
}

/// Returns true for a recorded list that another program rewrote without our entries: its first
/// plugin only extends a network, or is recorded as foreign. The list of another network would
/// begin with a plugin that creates the network.
fn has_lost_our_entries(present: &Chain, recorded: &Rendering) -> bool {
    let first = present.entries.first();
    first.is_some_and(|first| {
        EXTENDING_TYPES.contains(&kind(first)) || recorded.ownership(first) == Some(false)
    })
}

/// Puts our rendered entries into the places of our present entries. If `present` lacks Calico's
/// plugin and it is the first rendered entry, it goes first: the others extend its work.
fn arrange(rendered: &[Entry], present: &[Entry], ours: &[bool]) -> Vec<Entry> {
    let last = ours.iter().rposition(|is_ours| *is_ours);
    let mut pending = rendered.iter().cloned();
    let mut entries = Vec::new();
    if rendered.first().is_some_and(is_calico) && !present.iter().any(is_calico) {
        entries.extend(pending.next());
    }
    if last.is_none() {
        entries.extend(pending.by_ref());
    }
    for (index, entry) in present.iter().enumerate() {
        if !ours[index] {
            entries.push(entry.clone());
            continue;
        }
        entries.extend(pending.next());
        if last == Some(index) {
            entries.extend(pending.by_ref());
        }
    }
    entries
}
