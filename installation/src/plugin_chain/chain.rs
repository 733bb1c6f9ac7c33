//! [`Chain`]: the plugins of a configuration, both ours and those that other programs added.

use std::collections::BTreeMap;

use libcalico::failure::Failure;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::entry::{
    Entry, EntryRelation, Verbatim, canonical, elements, is_calico, is_same, kind, values,
};

const PLUGINS: &str = "plugins";

/// The keys of a single plugin that belong to the list once the plugin is in a list.
const LIST_KEYS: [&str; 2] = ["name", "cniVersion"];

/// Plugin types that several programs and people add, each with parameters of its own.
const REPEATABLE_TYPES: [&str; 2] = ["tuning", "bandwidth"];

/// A configuration as a list of plugins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chain {
    /// The keys beside `plugins`; of a single plugin, those in [`LIST_KEYS`].
    pub(super) keys: BTreeMap<String, Verbatim<Value>>,
    pub(super) entries: Vec<Entry>,
    /// True for a list, to which entries can be added; false for a configuration that consists of a
    /// single plugin.
    pub is_list: bool,
    /// True if an element of the list was left out because it is not a plugin.
    pub(super) has_invalid_elements: bool,
}

impl Chain {
    /// Returns the plugins of a parsed configuration. Elements of the list that are not objects are
    /// left out.
    pub fn new(conf: &Map<String, Value>) -> Chain {
        if !conf.contains_key(PLUGINS) && conf.contains_key("type") {
            return Chain::single(conf);
        }
        let mut conf = conf.clone();
        let entries = if let Some(Value::Array(plugins)) = conf.remove(PLUGINS) {
            plugins
        } else {
            Vec::new()
        };
        let object = |value| {
            if let Value::Object(entry) = value {
                Some(Verbatim::from(entry))
            } else {
                None
            }
        };
        let keys = conf
            .into_iter()
            .map(|(key, value)| (key, value.into()))
            .collect();
        Chain::list(keys, entries.into_iter().map(object).collect())
    }

    /// Reads a file that other programs may have written, and keeps the text of the entries and
    /// keys of a list.
    ///
    /// # Errors
    /// Returns an error if the text is not a JSON object.
    pub fn read(text: &[u8]) -> Result<Chain, Failure> {
        let mut values = values(text)?;
        let entries = values.remove(PLUGINS).map(|plugins| {
            let object = |text: Box<RawValue>| Verbatim::<Map<_, _>>::read(text);
            elements(&plugins).into_iter().map(object).collect()
        });
        let keys: BTreeMap<_, _> = values
            .into_iter()
            .map(|(key, text)| (key, Verbatim::<Value>::read(text)))
            .collect();
        let conf = || {
            keys.iter()
                .map(|(key, value)| (key.clone(), (**value).clone()))
                .collect()
        };
        Ok(match entries {
            None if keys.contains_key("type") => Chain::single(&conf()),
            entries => Chain::list(keys, entries.unwrap_or_default()),
        })
    }

    fn single(conf: &Map<String, Value>) -> Chain {
        let keys = conf
            .iter()
            .filter(|(key, _)| LIST_KEYS.contains(&key.as_str()));
        let keys = keys
            .map(|(key, value)| (key.clone(), value.clone().into()))
            .collect();
        // istio-cni and linkerd-cni also remove only `cniVersion` from the plugin when they convert
        // it to a list.
        let mut entry = conf.clone();
        entry.remove("cniVersion");
        Chain {
            keys,
            entries: vec![entry.into()],
            is_list: false,
            has_invalid_elements: false,
        }
    }

    fn list(keys: BTreeMap<String, Verbatim<Value>>, entries: Vec<Option<Entry>>) -> Chain {
        let has_invalid_elements = entries.iter().any(Option::is_none);
        Chain {
            keys,
            entries: entries.into_iter().flatten().collect(),
            is_list: true,
            has_invalid_elements,
        }
    }

    /// Returns the configuration as a list.
    pub fn to_list(&self) -> Map<String, Value> {
        let keys = self
            .keys
            .iter()
            .map(|(key, value)| (key.clone(), (**value).clone()));
        let plugins = self
            .entries
            .iter()
            .map(|entry| Value::Object((**entry).clone()))
            .collect();
        keys.chain([(PLUGINS.to_owned(), plugins)]).collect()
    }

    /// Serializes the list. Entries and keys that were read from a text keep this text.
    pub fn to_text(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Part<'a> {
            Key(&'a Verbatim<Value>),
            Plugins(&'a [Entry]),
        }
        let keys = self
            .keys
            .iter()
            .map(|(key, value)| (key.as_str(), Part::Key(value)));
        let parts: BTreeMap<&str, Part<'_>> = keys
            .chain([(PLUGINS, Part::Plugins(&self.entries))])
            .collect();
        // Serialization of values and texts cannot fail.
        let mut text = serde_json::to_vec_pretty(&parts).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Returns true if two configurations are equivalent, whatever their formatting. A list with an
    /// invalid element equals no other.
    pub fn is_equivalent_to(&self, other: &Chain) -> bool {
        let form = |chain: &Chain| canonical(&Value::Object(chain.to_list()));
        !self.has_invalid_elements
            && !other.has_invalid_elements
            && self.is_list == other.is_list
            && form(self) == form(other)
    }

    /// Returns the number of entries of Calico's plugin.
    pub fn calico_count(&self) -> usize {
        self.entries.iter().filter(|entry| is_calico(entry)).count()
    }

    /// Adds the entries whose relation to this configuration is [`EntryRelation::More`], and
    /// ignores all others.
    pub fn add_entries(&mut self, entries: Vec<Entry>) {
        let added: Vec<_> = entries
            .into_iter()
            .filter(|new| self.relation_of(new) == EntryRelation::More)
            .collect();
        self.entries.extend(added);
    }

    /// Returns the relation of an entry to this configuration.
    pub fn relation_of(&self, entry: &Entry) -> EntryRelation {
        let of_kind: Vec<&Entry> = self
            .entries
            .iter()
            .filter(|existing| kind(existing) == kind(entry))
            .collect();
        if of_kind.iter().any(|existing| is_same(existing, entry)) {
            EntryRelation::Same
        } else if of_kind.is_empty() || REPEATABLE_TYPES.contains(&kind(entry)) {
            EntryRelation::More
        } else {
            EntryRelation::Other
        }
    }
}

/// Returns the plugins in a text, or `None` if the text is not a JSON object.
#[must_use]
pub fn read_chain(text: &[u8]) -> Option<Chain> {
    Chain::read(text).ok()
}
