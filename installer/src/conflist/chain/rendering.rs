//! [`Rendering`]: our part of a configuration, as the installer's state notes it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{Chain, Entry, form, kind};
use crate::digest;
use serde::{Deserialize, Serialize};

/// What was rendered: enough to know it again, and nothing of its text, which may hold a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rendering {
    /// The keys of the list, or those that a single plugin has for one.
    pub keys: BTreeSet<String>,
    /// The plugins, in order.
    pub plugins: Vec<NotedPlugin>,
    /// SHA-256 of each entry that was another's when this was written.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub foreign: BTreeSet<String>,
}

/// One plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NotedPlugin {
    /// Its `type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// SHA-256 of what it says.
    pub digest: String,
}

impl Rendering {
    /// What there is to be noted of a configuration.
    pub fn of(chain: &Chain) -> Rendering {
        let plugin = |entry: &Entry| NotedPlugin { kind: kind(entry).to_owned(), digest: digest_of(entry) };
        Rendering {
            keys: chain.keys.keys().cloned().collect(),
            plugins: chain.entries.iter().map(plugin).collect(),
            foreign: BTreeSet::new(),
        }
    }

    /// The one of several renderings that is in place, the first of those that are so to the same degree: a run that
    /// was killed left one of them, and most of its entries.
    pub fn in_place<'a>(noted: &'a [Rendering], there: &Chain) -> Option<&'a Rendering> {
        let degree = |noted: &&Rendering| {
            let plugins = there.entries.iter().filter(|entry| noted.has(entry)).count();
            let keys = noted.keys.iter().filter(|key| there.keys.contains_key(*key)).count();
            let missing = [noted.plugins.len().saturating_sub(plugins), noted.keys.len() - keys];
            (plugins, Reverse(missing[0]), keys, Reverse(missing[1]))
        };
        noted.iter().rev().max_by_key(degree)
    }

    /// Whether it has this entry.
    pub fn has(&self, entry: &Entry) -> bool {
        let digest = digest_of(entry);
        self.plugins.iter().any(|plugin| plugin.digest == digest)
    }

    /// Tells whose an entry was: true for ours, false for another's, `None` for one that was not there.
    pub fn owns(&self, entry: &Entry) -> Option<bool> {
        let is_foreign = || self.foreign.contains(&digest_of(entry)).then_some(false);
        if self.has(entry) { Some(true) } else { is_foreign() }
    }

    /// Leaves an entry to another program.
    pub fn leave(&mut self, entry: &Entry) {
        let digest = digest_of(entry);
        self.plugins.retain(|plugin| plugin.digest != digest);
        self.foreign.insert(digest);
    }

    /// Returns false for a configuration with an entry of Calico's that it does not have: another installer wrote it since,
    /// or somebody edited ours.
    pub fn describes(&self, there: &Chain) -> bool {
        there.entries.iter().filter(|entry| super::is_calico(entry)).all(|entry| self.has(entry))
    }

    /// How many plugins of each type it has.
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        self.plugins.iter().for_each(|plugin| *counts.entry(plugin.kind.as_str()).or_default() += 1);
        counts
    }

    /// Whether all of it is in a configuration as it was rendered, and no other plugin of Calico's.
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
