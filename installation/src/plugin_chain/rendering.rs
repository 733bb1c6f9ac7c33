//! [`Rendering`]: our part of a configuration, as recorded in the installer's state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::entry::{Entry, entry_matches, form, is_calico, is_template_entry, kind};
use crate::digest;

/// The digests of a configuration's entries, ours and foreign. The text of an entry is not stored
/// because it may contain a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rendering {
    /// The keys of the list, or the keys of a single plugin that belong to a list.
    pub keys: BTreeSet<String>,
    /// Our plugins, in order.
    pub plugins: Vec<RecordedPlugin>,
    /// SHA-256 of each entry that was foreign at the time of the write.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub foreign: BTreeSet<String>,
}

/// A recorded plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordedPlugin {
    /// The `type` of the plugin.
    #[serde(rename = "type")]
    pub kind: String,
    /// SHA-256 of the plugin's canonical form.
    pub digest: String,
}

impl Rendering {
    /// Returns the record of a configuration in which all entries are ours.
    pub fn new(chain: &Chain) -> Rendering {
        let plugin = |entry: &Entry| RecordedPlugin {
            kind: kind(entry).to_owned(),
            digest: entry_digest(entry),
        };
        let plugins = chain.entries.iter().map(plugin).collect();
        Rendering {
            keys: chain.keys.keys().cloned().collect(),
            plugins,
            foreign: BTreeSet::new(),
        }
    }

    /// Returns the recorded rendering that is most likely in place: the one with the most of its
    /// plugins in `present`. After a killed run any of several ones may be in place. An entry of
    /// `present` counts for one plugin only.
    pub fn in_place<'a>(recorded: &'a [Rendering], present: &Chain) -> Option<&'a Rendering> {
        let digests: Vec<String> = present.entries.iter().map(entry_digest).collect();
        let degree = |recorded: &&Rendering| {
            let mut remaining: Vec<&String> = digests.iter().collect();
            let mut take = |plugin: &&RecordedPlugin| {
                let found = remaining
                    .iter()
                    .position(|digest| **digest == plugin.digest);
                found.map(|index| remaining.swap_remove(index)).is_some()
            };
            let plugins = recorded
                .plugins
                .iter()
                .filter(|plugin| take(plugin))
                .count();
            let keys = recorded
                .keys
                .iter()
                .filter(|key| present.keys.contains_key(*key))
                .count();
            let missing = [recorded.plugins.len() - plugins, recorded.keys.len() - keys];
            (plugins, Reverse(missing[0]), keys, Reverse(missing[1]))
        };
        recorded.iter().rev().max_by_key(degree)
    }

    /// Returns true if the rendering contains this entry as one of ours.
    pub fn contains_entry(&self, entry: &Entry) -> bool {
        let digest = entry_digest(entry);
        self.plugins.iter().any(|plugin| plugin.digest == digest)
    }

    /// Returns `Some(true)` for an entry of ours, `Some(false)` for a foreign entry, and `None` for
    /// an unknown one.
    pub fn ownership(&self, entry: &Entry) -> Option<bool> {
        let is_foreign = || self.foreign.contains(&entry_digest(entry)).then_some(false);
        if self.contains_entry(entry) {
            Some(true)
        } else {
            is_foreign()
        }
    }

    /// Records an entry as foreign.
    pub fn record_foreign(&mut self, entry: &Entry) {
        let digest = entry_digest(entry);
        self.plugins.retain(|plugin| plugin.digest != digest);
        self.foreign.insert(digest);
    }

    /// Returns false if the configuration has an entry of Calico's plugin that this recorded
    /// rendering lacks.
    pub fn describes(&self, present: &Chain) -> bool {
        present
            .entries
            .iter()
            .filter(|entry| is_calico(entry))
            .all(|entry| self.contains_entry(entry))
    }

    /// Returns the number of our plugins by type.
    pub fn plugin_counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        self.plugins
            .iter()
            .for_each(|plugin| *counts.entry(plugin.kind.as_str()).or_default() += 1);
        counts
    }

    /// Returns true if the configuration contains all our entries unchanged, and no other entry of
    /// Calico's plugin.
    pub fn is_complete_in(&self, present: &Chain) -> bool {
        let digests: BTreeSet<String> = present.entries.iter().map(entry_digest).collect();
        let is_there = |plugin: &RecordedPlugin| digests.contains(&plugin.digest);
        !self.plugins.is_empty() && self.plugins.iter().all(is_there) && self.describes(present)
    }
}

fn entry_digest(entry: &Entry) -> String {
    digest::of_bytes(form(entry).to_string().as_bytes())
}

impl Chain {
    /// Returns the foreign entries. A configuration without any entry of ours belongs to another
    /// network, and has none.
    pub fn foreign(&self, pattern: &Chain, recorded: &[Rendering]) -> Vec<Entry> {
        let ours = self.find_ours(pattern, Rendering::in_place(recorded, self));
        if !ours.contains(&true) {
            return Vec::new();
        }
        let foreign = self
            .entries
            .iter()
            .zip(&ours)
            .filter(|(_, is_ours)| !**is_ours);
        foreign.map(|(entry, _)| entry.clone()).collect()
    }

    /// Returns for each entry whether it is ours.
    ///
    /// - Calico's plugin and entries recorded as ours are ours. Entries recorded as foreign are
    ///   not.
    /// - If the record describes the configuration, every other entry is foreign, unless the last
    ///   rule applies.
    /// - Otherwise an entry is ours if it equals an entry of today's rendering or one that known
    ///   templates generate.
    /// - An unknown entry is ours, but edited, if a recorded entry of its type is missing. This
    ///   rule does not apply if the record does not describe the configuration and today's
    ///   rendering does.
    pub(super) fn find_ours(&self, pattern: &Chain, recorded: Option<&Rendering>) -> Vec<bool> {
        let described = recorded.filter(|recorded| recorded.describes(self));
        let is_todays = |entry: &Entry| {
            pattern
                .entries
                .iter()
                .any(|ours| entry_matches(ours, entry))
        };
        let is_ours = |entry: &Entry| {
            let is_recorded = recorded.and_then(|recorded| recorded.ownership(entry));
            let is_generated =
                || described.is_none() && (is_todays(entry) || is_template_entry(entry));
            is_calico(entry) || is_recorded.unwrap_or_else(is_generated)
        };
        let mut ours: Vec<bool> = self.entries.iter().map(is_ours).collect();
        // The file may be from today's rendering, which is not recorded yet.
        let is_newer_than_record = || {
            self.entries
                .iter()
                .filter(|entry| is_calico(entry))
                .all(is_todays)
        };
        if let Some(recorded) = recorded.filter(|_| described.is_some() || !is_newer_than_record())
        {
            self.mark_edited(recorded, &mut ours);
        }
        ours
    }

    /// Marks edited entries of ours. They have the type of a recorded entry that is missing.
    fn mark_edited(&self, recorded: &Rendering, ours: &mut [bool]) {
        for (counted, count) in recorded.plugin_counts() {
            let of_kind: Vec<usize> = (0..ours.len())
                .filter(|index| kind(&self.entries[*index]) == counted)
                .collect();
            let found = of_kind.iter().filter(|index| ours[**index]).count();
            let is_edited = |index: &usize| {
                recorded.ownership(&self.entries[*index]).is_none() && !ours[*index]
            };
            let edited: Vec<usize> = of_kind
                .into_iter()
                .filter(is_edited)
                .take(count.saturating_sub(found))
                .collect();
            edited.into_iter().for_each(|index| ours[index] = true);
        }
    }
}
