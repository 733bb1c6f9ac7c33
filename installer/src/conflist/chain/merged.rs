//! [`Merged`]: our entries, as they are rendered, among those of others.

use super::{Chain, Entry, PlaceFor, Rendering, is_calico, is_same, kind};

/// The types that only continue the work of a plugin before them.
const CONTINUING: [&str; 8] = ["bandwidth", "firewall", "istio-cni", "linkerd-cni", "portmap", "sbr", "tuning", "vrf"];

/// A rendered configuration, and the form by which its entries are known again.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in super::super) struct Rendered {
    /// The configuration.
    pub(in super::super) chain: Chain,
    /// The same with the placeholder where the pod's token is: the token changes, the entry stays ours.
    pub(in super::super) pattern: Chain,
}

/// A configuration with our entries as they are rendered and the entries of others where they were.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Merged {
    /// The configuration.
    pub(in super::super) chain: Chain,
    /// The types of the entries of others, in order.
    pub(in super::super) foreign: Vec<String>,
    /// The types of the entries that were taken for ours without being noted, and are not there any more.
    pub(in super::super) taken: Vec<String>,
    /// The owners of the entries, to be noted.
    pub(in super::super) rendering: Rendering,
    /// The keys of the list that others added.
    pub(in super::super) foreign_keys: Vec<String>,
}

impl Rendered {
    /// The configuration to be written where `there` is: our entries as they are rendered now, in the places of ours,
    /// and all others where they are. `noted` are the renderings that may be in place, none where nothing is noted.
    pub(in super::super) fn over(&self, there: &Chain, noted: &[Rendering]) -> Merged {
        let noted = Rendering::in_place(noted, there);
        let ours = there.ours(&self.pattern, noted);
        let taken = self.taken(there, &ours, noted);
        if !ours.contains(&true) && !noted.is_some_and(|noted| is_bereft(there, noted)) {
            return self.alone();
        }
        let is_foreign = |key: &&String| {
            !self.chain.keys.contains_key(*key) && !noted.is_some_and(|noted| noted.keys.contains(*key))
        };
        let foreign_keys: Vec<String> = there.keys.keys().filter(is_foreign).cloned().collect();
        let others = there.entries.iter().zip(&ours).filter(|(_, is_ours)| !**is_ours);
        let foreign: Vec<&Entry> = others.map(|(entry, _)| entry).collect();
        if foreign.is_empty() && foreign_keys.is_empty() {
            return Merged { taken, ..self.alone() };
        }
        let mut keys = self.chain.keys.clone();
        keys.extend(foreign_keys.iter().filter_map(|key| Some((key.clone(), there.keys.get(key)?.clone()))));
        // An entry that another program put in stays that program's, also when today's rendering has the same.
        let is_there = |entry: &Entry| foreign.iter().any(|foreign| is_same(foreign, entry));
        let added: Vec<Entry> = self.chain.entries.iter().filter(|entry| !is_there(entry)).cloned().collect();
        let entries = arranged(&added, &there.entries, &ours);
        let own = Chain { entries: added, ..self.chain.clone() };
        let mut rendering = Rendering::of(&own);
        foreign.iter().for_each(|entry| rendering.leave(entry));
        let foreign = foreign.into_iter().map(|entry| kind(entry).to_owned()).collect();
        Merged {
            chain: Chain { keys, entries, is_list: true, leaves_out: false },
            foreign,
            taken,
            rendering,
            foreign_keys,
        }
    }

    /// Returns the types of entries that are ours by what templates make alone, and that this rendering does not have.
    fn taken(&self, there: &Chain, ours: &[bool], noted: Option<&Rendering>) -> Vec<String> {
        let is_known = |entry: &Entry| noted.is_some_and(|noted| noted.owns(entry).is_some());
        let is_rendered = |entry: &Entry| self.chain.entries.iter().any(|rendered| kind(rendered) == kind(entry));
        let entries = there.entries.iter().zip(ours).filter(|(_, is_ours)| **is_ours).map(|(entry, _)| entry);
        let taken = entries.filter(|entry| !is_calico(entry) && !is_known(entry) && !is_rendered(entry));
        taken.map(|entry| kind(entry).to_owned()).collect()
    }

    /// The configuration to be written where nothing of others is.
    pub(in super::super) fn alone(&self) -> Merged {
        Merged {
            chain: self.chain.clone(),
            foreign: Vec::new(),
            taken: Vec::new(),
            rendering: Rendering::of(&self.chain),
            foreign_keys: Vec::new(),
        }
    }
}

impl Merged {
    /// Returns true if the configuration holds nothing of others.
    pub(in super::super) fn is_only_ours(&self) -> bool {
        self.foreign.is_empty() && self.foreign_keys.is_empty()
    }

    /// Adds what others chained into a configuration that this one takes the place of. An entry that ours has as well is
    /// theirs from then on.
    pub(in super::super) fn adopt(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            match self.chain.place_for(&entry) {
                PlaceFor::Other => continue,
                PlaceFor::Same if !self.rendering.has(&entry) => continue,
                PlaceFor::Same => {}
                PlaceFor::More => self.chain.entries.push(entry.clone()),
            }
            self.rendering.leave(&entry);
            self.foreign.push(kind(&entry).to_owned());
        }
        self.chain.is_list |= !self.foreign.is_empty();
    }
}

/// Returns true for a noted list that another program wrote anew without ours: its first plugin makes no network by
/// itself, as that of another network does.
fn is_bereft(there: &Chain, noted: &Rendering) -> bool {
    let first = there.entries.first();
    first.is_some_and(|first| CONTINUING.contains(&kind(first)) || noted.owns(first) == Some(false))
}

/// Our entries in the places of ours, in their order; those that are more come after the last one. Calico's plugin comes
/// before all others where it was not there: they continue its work.
fn arranged(rendered: &[Entry], there: &[Entry], ours: &[bool]) -> Vec<Entry> {
    let last = ours.iter().rposition(|is_ours| *is_ours);
    let mut waiting = rendered.iter().cloned();
    let mut entries = Vec::new();
    if rendered.first().is_some_and(is_calico) && !there.iter().any(is_calico) {
        entries.extend(waiting.next());
    }
    if last.is_none() {
        entries.extend(waiting.by_ref());
    }
    for (index, entry) in there.iter().enumerate() {
        if !ours[index] {
            entries.push(entry.clone());
            continue;
        }
        entries.extend(waiting.next());
        if last == Some(index) {
            entries.extend(waiting.by_ref());
        }
    }
    entries
}
