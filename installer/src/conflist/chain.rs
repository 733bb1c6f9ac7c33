//! [`Chain`]: the plugins of a configuration, ours and those that other programs chained to them. Pure: what is
//! rendered, what is noted and what is on the node come in, the new configuration goes out.

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

/// The keys of a single plugin that a list has for all of its plugins.
const OF_THE_LIST: [&str; 2] = ["name", "cniVersion"];

/// The types that several programs and people chain, each with parameters of its own.
const REPEATED: [&str; 2] = ["tuning", "bandwidth"];

/// The place that a configuration has for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceFor {
    /// The same entry is there.
    Same,
    /// Another entry of its type is there, which its owner put in.
    Other,
    /// The entry can be added.
    More,
}

/// One plugin of a list.
pub type Entry = Verbatim<Map<String, Value>>;

/// A configuration as a list of plugins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chain {
    /// The keys beside `plugins`.
    keys: BTreeMap<String, Verbatim<Value>>,
    entries: Vec<Entry>,
    /// False for a configuration that is itself the only plugin.
    is_list: bool,
    /// True if something that is no plugin was left out.
    leaves_out: bool,
}

impl Chain {
    /// The plugins that a configuration names. What is no plugin in a list is left out: no runtime loads such a list.
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

    /// Reads a file that others may have written, with the text of each entry and of each key.
    ///
    /// # Errors
    /// The text is no JSON object.
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
        // As istio-cni and linkerd-cni make a list of it.
        let mut entry = conf.clone();
        entry.remove("cniVersion");
        Chain { keys, entries: vec![entry.into()], is_list: false, leaves_out: false }
    }

    fn list(keys: BTreeMap<String, Verbatim<Value>>, entries: Vec<Option<Entry>>) -> Chain {
        let leaves_out = entries.iter().any(Option::is_none);
        Chain { keys, entries: entries.into_iter().flatten().collect(), is_list: true, leaves_out }
    }

    /// The configuration as a list.
    pub fn to_list(&self) -> Map<String, Value> {
        let keys = self.keys.iter().map(|(key, value)| (key.clone(), (**value).clone()));
        let plugins = self.entries.iter().map(|entry| Value::Object((**entry).clone())).collect();
        keys.chain([(PLUGINS.to_owned(), plugins)]).collect()
    }

    /// Writes the list, in which the text of others is as they wrote it.
    pub fn to_text(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Part<'a> {
            Key(&'a Verbatim<Value>),
            Plugins(&'a [Entry]),
        }
        let keys = self.keys.iter().map(|(key, value)| (key.as_str(), Part::Key(value)));
        let parts: BTreeMap<&str, Part<'_>> = keys.chain([(PLUGINS, Part::Plugins(&self.entries))]).collect();
        // A map of values and texts is always written.
        let mut text = serde_json::to_vec_pretty(&parts).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Returns true if two configurations say the same, however they are written. A list with something that is no plugin
    /// says the same as none: no runtime loads it.
    pub fn says_the_same_as(&self, other: &Chain) -> bool {
        let form = |chain: &Chain| canonical(&Value::Object(chain.to_list()));
        !self.leaves_out && !other.leaves_out && self.is_list == other.is_list && form(self) == form(other)
    }

    /// Whether this is a list, to which entries can be added.
    pub fn is_list(&self) -> bool {
        self.is_list
    }

    /// How many entries are Calico's plugin.
    pub fn calicos(&self) -> usize {
        self.entries.iter().filter(|entry| is_calico(entry)).count()
    }

    /// Adds those entries for which there is a place.
    pub fn adopt(&mut self, entries: Vec<Entry>) {
        let added: Vec<Entry> = entries.into_iter().filter(|entry| self.place_for(entry) == PlaceFor::More).collect();
        self.entries.extend(added);
    }

    /// Returns the place for an entry. An owner puts an entry of a type of its own in once; people put in
    /// several of the types that are for anybody.
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

    /// The entries that are not ours. `noted` are the renderings that may be in place, none where nothing is noted. A
    /// configuration without any entry of ours is another network's: it has none.
    pub fn foreign(&self, pattern: &Chain, noted: &[Rendering]) -> Vec<Entry> {
        let ours = self.ours(pattern, Rendering::in_place(noted, self));
        if !ours.contains(&true) {
            return Vec::new();
        }
        let foreign = self.entries.iter().zip(&ours).filter(|(_, is_ours)| !**is_ours);
        foreign.map(|(entry, _)| entry.clone()).collect()
    }

    /// Tells for each entry whether it is ours: Calico's plugin, and what the note names as ours, is; what the note names
    /// as another's is not. Of the rest, nothing is ours where the note describes the configuration; else what equals
    /// today's rendering, and what templates make, is.
    fn ours(&self, pattern: &Chain, noted: Option<&Rendering>) -> Vec<bool> {
        let described = noted.filter(|noted| noted.describes(self));
        let is_todays = |entry: &Entry| pattern.entries.iter().any(|ours| fits_entry(ours, entry));
        let is_ours = |entry: &Entry| {
            let is_noted = noted.and_then(|noted| noted.owns(entry));
            let is_made = || described.is_none() && (is_todays(entry) || is_of_a_template(entry));
            is_calico(entry) || is_noted.unwrap_or_else(is_made)
        };
        let mut ours: Vec<bool> = self.entries.iter().map(is_ours).collect();
        // The note does not tell yet of a file that today's rendering wrote.
        let is_newer_than_note = || self.entries.iter().filter(|entry| is_calico(entry)).all(is_todays);
        if let Some(noted) = noted.filter(|_| described.is_some() || !is_newer_than_note()) {
            self.mark_edited(noted, &mut ours);
        }
        ours
    }

    /// Marks entries of ours that were edited: these are known by their type, in the place of one that is not there as it
    /// was noted.
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

/// The type of a plugin. Runtimes read the key without regard to case.
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

/// Returns the form that an entry has however it is written.
fn form(entry: &Entry) -> Value {
    canonical(&Value::Object((**entry).clone()))
}

fn fits_entry(pattern: &Map<String, Value>, found: &Map<String, Value>) -> bool {
    pattern.len() == found.len()
        && pattern.iter().all(|(key, value)| found.get(key).is_some_and(|found| fits(value, found)))
}

/// Whether upstream's templates and ours make this entry.
fn is_of_a_template(entry: &Entry) -> bool {
    let is = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|ours| ours.as_object() == Some(&**entry));
    is(r#"{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}"#)
        || is(r#"{"type": "bandwidth", "capabilities": {"bandwidth": true}}"#)
}

#[cfg(test)]
mod tests;
