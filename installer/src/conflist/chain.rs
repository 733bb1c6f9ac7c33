//! [`Chain`]: the plugins of a configuration, both ours and those that other programs added. The merge is pure: the
//! rendered, the recorded and the present configuration are inputs, and the new configuration is the result.
//!
//! "Foreign" means added by another program or a person. Read `rendering`, then `merged`.

mod likeness;
mod merged;
mod rendering;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub(super) use merged::{Merged, Rendered};
pub use rendering::Rendering;

use likeness::{canonical, fits};

use super::document::{Unreadable, Verbatim, elements, values};
use crate::binaries::CALICO;

const PLUGINS: &str = "plugins";

/// The keys of a single plugin that belong to the list once the plugin is in a list.
const OF_THE_LIST: [&str; 2] = ["name", "cniVersion"];

/// Plugin types that several programs and people add, each with parameters of its own.
const REPEATED: [&str; 2] = ["tuning", "bandwidth"];

/// The relation of an entry to a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceFor {
    /// The configuration contains the same entry.
    Same,
    /// The configuration contains another entry of this type, added by its owner.
    Other,
    /// The entry can be added.
    More,
}

/// A plugin in a list.
pub type Entry = Verbatim<Map<String, Value>>;

/// A configuration as a list of plugins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chain {
    /// The keys beside `plugins`.
    keys: BTreeMap<String, Verbatim<Value>>,
    entries: Vec<Entry>,
    /// False for a configuration that consists of a single plugin instead of a list.
    is_list: bool,
    /// True if an element of the list was left out because it is not a plugin.
    leaves_out: bool,
}

impl Chain {
    /// Returns the plugins of a parsed configuration. Elements of the list that are not objects are left out; no
    /// runtime loads such a list.
    pub fn of(conf: &Map<String, Value>) -> Chain {
        if !conf.contains_key(PLUGINS) && conf.contains_key("type") {
            return Chain::single(conf);
        }
        let mut conf = conf.clone();
        let entries = match conf.remove(PLUGINS) {
            Some(Value::Array(plugins)) => plugins,
            _ => Vec::new(),
        };
        let object = |value| if let Value::Object(entry) = value { Some(Verbatim::from(entry)) } else { None };
        let keys = conf.into_iter().map(|(key, value)| (key, value.into())).collect();
        Chain::list(keys, entries.into_iter().map(object).collect())
    }

    /// Reads a file that other programs may have written, and keeps the text of each entry and key.
    ///
    /// # Errors
    /// Returns an error if the text is not a JSON object.
    pub fn read(text: &[u8]) -> Result<Chain, Unreadable> {
        let mut values = values(text)?;
        let entries = values.remove(PLUGINS).map(|plugins| {
            let object = |text: Box<RawValue>| Verbatim::<Map<_, _>>::read(text);
            elements(&plugins).into_iter().map(object).collect()
        });
        let keys: BTreeMap<_, _> = values.into_iter().map(|(key, text)| (key, Verbatim::<Value>::read(text))).collect();
        let conf = || keys.iter().map(|(key, value)| (key.clone(), (**value).clone())).collect();
        Ok(match entries {
            None if keys.contains_key("type") => Chain::single(&conf()),
            entries => Chain::list(keys, entries.unwrap_or_default()),
        })
    }

    fn single(conf: &Map<String, Value>) -> Chain {
        let keys = conf.iter().filter(|(key, _)| OF_THE_LIST.contains(&key.as_str()));
        let keys = keys.map(|(key, value)| (key.clone(), value.clone().into())).collect();
        // istio-cni and linkerd-cni convert a single plugin to a list in the same way.
        let mut entry = conf.clone();
        entry.remove("cniVersion");
        Chain { keys, entries: vec![entry.into()], is_list: false, leaves_out: false }
    }

    fn list(keys: BTreeMap<String, Verbatim<Value>>, entries: Vec<Option<Entry>>) -> Chain {
        let leaves_out = entries.iter().any(Option::is_none);
        Chain { keys, entries: entries.into_iter().flatten().collect(), is_list: true, leaves_out }
    }

    /// Returns the configuration as a list.
    pub fn to_list(&self) -> Map<String, Value> {
        let keys = self.keys.iter().map(|(key, value)| (key.clone(), (**value).clone()));
        let plugins = self.entries.iter().map(|entry| Value::Object((**entry).clone())).collect();
        keys.chain([(PLUGINS.to_owned(), plugins)]).collect()
    }

    /// Serializes the list. Foreign entries keep their exact text.
    pub fn to_text(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Part<'a> {
            Key(&'a Verbatim<Value>),
            Plugins(&'a [Entry]),
        }
        let keys = self.keys.iter().map(|(key, value)| (key.as_str(), Part::Key(value)));
        let parts: BTreeMap<&str, Part<'_>> = keys.chain([(PLUGINS, Part::Plugins(&self.entries))]).collect();
        // Serialization of values and texts cannot fail.
        let mut text = serde_json::to_vec_pretty(&parts).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Returns true if two configurations are equivalent, whatever their formatting. A list with an element that is not
    /// a plugin equals no other: no runtime loads it.
    pub fn says_the_same_as(&self, other: &Chain) -> bool {
        let form = |chain: &Chain| canonical(&Value::Object(chain.to_list()));
        !self.leaves_out && !other.leaves_out && self.is_list == other.is_list && form(self) == form(other)
    }

    /// Returns true if the configuration is a list, to which entries can be added.
    pub fn is_list(&self) -> bool {
        self.is_list
    }

    /// Returns the number of entries of Calico's plugin.
    pub fn calicos(&self) -> usize {
        self.entries.iter().filter(|entry| is_calico(entry)).count()
    }

    /// Adds the entries that the configuration has a place for.
    pub fn adopt(&mut self, entries: Vec<Entry>) {
        let added: Vec<Entry> = entries.into_iter().filter(|entry| self.place_for(entry) == PlaceFor::More).collect();
        self.entries.extend(added);
    }

    /// Returns the relation of an entry to this configuration. A program adds an entry of its own type once; people add
    /// several entries of the shared types.
    pub fn place_for(&self, entry: &Entry) -> PlaceFor {
        let of_kind: Vec<&Entry> = self.entries.iter().filter(|known| kind(known) == kind(entry)).collect();
        if of_kind.iter().any(|known| is_same(known, entry)) {
            PlaceFor::Same
        } else if of_kind.is_empty() || REPEATED.contains(&kind(entry)) {
            PlaceFor::More
        } else {
            PlaceFor::Other
        }
    }

    /// Returns the foreign entries. `noted` are the recorded renderings, of which one may be in place. A configuration
    /// without any entry of ours belongs to another network; the result is then empty.
    pub fn foreign(&self, pattern: &Chain, noted: &[Rendering]) -> Vec<Entry> {
        let ours = self.ours(pattern, Rendering::in_place(noted, self));
        if !ours.contains(&true) {
            return Vec::new();
        }
        let foreign = self.entries.iter().zip(&ours).filter(|(_, is_ours)| !**is_ours);
        foreign.map(|(entry, _)| entry.clone()).collect()
    }

    /// Returns for each entry whether it is ours.
    ///
    /// - Calico's plugin and entries recorded as ours are ours. Entries recorded as foreign are not.
    /// - If the record describes the configuration, every other entry is foreign.
    /// - Otherwise an entry is ours if it equals an entry of today's rendering or one that known templates generate.
    fn ours(&self, pattern: &Chain, noted: Option<&Rendering>) -> Vec<bool> {
        let described = noted.filter(|noted| noted.describes(self));
        let is_todays = |entry: &Entry| pattern.entries.iter().any(|ours| fits_entry(ours, entry));
        let is_ours = |entry: &Entry| {
            let is_noted = noted.and_then(|noted| noted.owns(entry));
            let is_made = || described.is_none() && (is_todays(entry) || is_of_a_template(entry));
            is_calico(entry) || is_noted.unwrap_or_else(is_made)
        };
        let mut ours: Vec<bool> = self.entries.iter().map(is_ours).collect();
        // The file may be from today's rendering, which is not recorded yet.
        let is_newer_than_note = || self.entries.iter().filter(|entry| is_calico(entry)).all(is_todays);
        if let Some(noted) = noted.filter(|_| described.is_some() || !is_newer_than_note()) {
            self.mark_edited(noted, &mut ours);
        }
        ours
    }

    /// Marks edited entries of ours. An edited entry is recognized by its type, if a recorded entry of that type is
    /// missing.
    fn mark_edited(&self, noted: &Rendering, ours: &mut [bool]) {
        for (kind, count) in noted.counts() {
            let of_kind: Vec<usize> =
                (0..ours.len()).filter(|index| self::kind(&self.entries[*index]) == kind).collect();
            let found = of_kind.iter().filter(|index| ours[**index]).count();
            let edited =
                of_kind.into_iter().filter(|index| noted.owns(&self.entries[*index]).is_none() && !ours[*index]);
            let edited: Vec<usize> = edited.take(count.saturating_sub(found)).collect();
            edited.into_iter().for_each(|index| ours[index] = true);
        }
    }
}

/// Returns the type of a plugin. Runtimes match the key without regard to case.
pub fn kind(entry: &Entry) -> &str {
    let found = entry
        .get("type")
        .or_else(|| entry.iter().find(|(key, _)| key.eq_ignore_ascii_case("type")).map(|(_, kind)| kind));
    found.and_then(Value::as_str).unwrap_or_default()
}

fn is_calico(entry: &Entry) -> bool {
    kind(entry) == CALICO
}

fn is_same(one: &Entry, other: &Entry) -> bool {
    form(one) == form(other)
}

/// Returns a form of an entry that does not depend on formatting.
fn form(entry: &Entry) -> Value {
    canonical(&Value::Object((**entry).clone()))
}

fn fits_entry(pattern: &Map<String, Value>, found: &Map<String, Value>) -> bool {
    pattern.len() == found.len()
        && pattern.iter().all(|(key, value)| found.get(key).is_some_and(|found| fits(value, found)))
}

/// Returns true if upstream's templates or ours generate this entry.
fn is_of_a_template(entry: &Entry) -> bool {
    let is = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|ours| ours.as_object() == Some(&**entry));
    is(r#"{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}"#)
        || is(r#"{"type": "bandwidth", "capabilities": {"bandwidth": true}}"#)
}

#[cfg(test)]
mod tests;
