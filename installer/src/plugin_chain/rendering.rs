//! [`Rendering`]: our part of a configuration, as recorded in the installer's state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::entry::{Entry, form, is_calico, kind};
use crate::digest;

/// The digests of our entries. They identify the entries without storing their text, which may contain a token.
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
    /// Its `type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// SHA-256 of its canonical form.
    pub digest: String,
}

impl Rendering {
    /// Returns the record of a configuration in which all entries are ours.
    pub fn new(chain: &Chain) -> Rendering {
        let plugin = |entry: &Entry| RecordedPlugin { kind: kind(entry).to_owned(), digest: digest_of(entry) };
        Rendering {
            keys: chain.keys.keys().cloned().collect(),
            plugins: chain.entries.iter().map(plugin).collect(),
            foreign: BTreeSet::new(),
        }
    }

    /// Returns the recorded rendering that is in place: the one with the most entries in `there`, and the first of
    /// equals. After a killed run any of the recorded ones may be in place.
    pub fn in_place<'a>(recorded: &'a [Rendering], there: &Chain) -> Option<&'a Rendering> {
        let degree = |recorded: &&Rendering| {
            let plugins = there.entries.iter().filter(|entry| recorded.has(entry)).count();
            let keys = recorded.keys.iter().filter(|key| there.keys.contains_key(*key)).count();
            let missing = [recorded.plugins.len().saturating_sub(plugins), recorded.keys.len() - keys];
            (plugins, Reverse(missing[0]), keys, Reverse(missing[1]))
        };
        recorded.iter().rev().max_by_key(degree)
    }

    /// Returns true if the rendering contains this entry.
    pub fn has(&self, entry: &Entry) -> bool {
        let digest = digest_of(entry);
        self.plugins.iter().any(|plugin| plugin.digest == digest)
    }

    /// Returns `Some(true)` for an entry of ours, `Some(false)` for a foreign entry, and `None` for an unknown one.
    pub fn owns(&self, entry: &Entry) -> Option<bool> {
        let is_foreign = || self.foreign.contains(&digest_of(entry)).then_some(false);
        if self.has(entry) { Some(true) } else { is_foreign() }
    }

    /// Records an entry as foreign.
    pub fn leave(&mut self, entry: &Entry) {
        let digest = digest_of(entry);
        self.plugins.retain(|plugin| plugin.digest != digest);
        self.foreign.insert(digest);
    }

    /// Returns false if the configuration has an entry of Calico's plugin that this rendering lacks: another installer
    /// wrote the file, or somebody edited our entry.
    pub fn describes(&self, there: &Chain) -> bool {
        there.entries.iter().filter(|entry| is_calico(entry)).all(|entry| self.has(entry))
    }

    /// Returns the number of our plugins by type.
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        self.plugins.iter().for_each(|plugin| *counts.entry(plugin.kind.as_str()).or_default() += 1);
        counts
    }

    /// Returns true if the configuration contains all our entries unchanged, and no other entry of Calico's plugin.
    pub fn is_whole_in(&self, there: &Chain) -> bool {
        let digests: BTreeSet<String> = there.entries.iter().map(digest_of).collect();
        !self.plugins.is_empty()
            && self.plugins.iter().all(|plugin| digests.contains(&plugin.digest))
            && self.describes(there)
    }
}

fn digest_of(entry: &Entry) -> String {
    digest::of_bytes(form(entry).to_string().as_bytes())
}
