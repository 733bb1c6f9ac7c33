//! [`Chain`]: the plugins of a configuration, ours and those that other programs chained to them. Pure: what is
//! rendered, what is noted and what is on the node come in, the new configuration goes out.

mod likeness;
mod rendering;

use serde_json::{Map, Value};

pub use rendering::Rendering;

use likeness::{canonical, fits};

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
pub type Entry = Map<String, Value>;

/// A configuration as a list of plugins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chain {
    /// The keys beside `plugins`.
    keys: Map<String, Value>,
    entries: Vec<Entry>,
    /// False for a configuration that is itself the only plugin.
    is_list: bool,
    /// True if something that is no plugin was left out.
    leaves_out: bool,
}

/// What was rendered, and the form by which it is known again.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rendered {
    /// The configuration.
    pub(super) chain: Chain,
    /// The same with the placeholder where the pod's token is: the token changes, the entry stays ours.
    pub(super) pattern: Chain,
}

/// A configuration with our entries as they are rendered and the entries of others where they were.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Merged {
    /// The configuration.
    pub(super) chain: Chain,
    /// The types of the entries of others, in order.
    pub(super) foreign: Vec<String>,
    /// The keys of the list that others added.
    pub(super) foreign_keys: Vec<String>,
}

impl Chain {
    /// The plugins that a configuration names. What is no plugin in a list is left out: no runtime loads such a list.
    pub fn of(conf: &Map<String, Value>) -> Chain {
        if !conf.contains_key(PLUGINS) && conf.contains_key("type") {
            let keys = conf.iter().filter(|(key, _)| OF_THE_LIST.contains(&key.as_str()));
            let keys = keys.map(|(key, value)| (key.clone(), value.clone())).collect();
            // As istio-cni and linkerd-cni make a list of it.
            let mut entry = conf.clone();
            entry.remove("cniVersion");
            return Chain { keys, entries: vec![entry], is_list: false, leaves_out: false };
        }
        let mut keys = conf.clone();
        let entries = match keys.remove(PLUGINS) {
            Some(Value::Array(plugins)) => plugins,
            _ => Vec::new(),
        };
        let object = |value| if let Value::Object(entry) = value { Some(entry) } else { None };
        let found = entries.len();
        let entries: Vec<Entry> = entries.into_iter().filter_map(object).collect();
        Chain { keys, leaves_out: entries.len() < found, entries, is_list: true }
    }

    /// The configuration as a list.
    pub fn to_list(&self) -> Map<String, Value> {
        let mut conf = self.keys.clone();
        conf.insert(PLUGINS.to_owned(), self.entries.iter().cloned().map(Value::Object).collect());
        conf
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
        let form = |entry: &Entry| canonical(&Value::Object(entry.clone()));
        let of_kind: Vec<&Entry> = self.entries.iter().filter(|known| kind(known) == kind(entry)).collect();
        if of_kind.iter().any(|known| form(known) == form(entry)) {
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

    /// Whether each entry is ours.
    fn ours(&self, pattern: &Chain, noted: Option<&Rendering>) -> Vec<bool> {
        let is_ours = |entry: &Entry| {
            is_calico(entry)
                || pattern.entries.iter().any(|ours| fits_entry(ours, entry))
                || noted.map_or_else(|| is_of_a_template(entry), |noted| noted.has(entry))
        };
        let mut ours: Vec<bool> = self.entries.iter().map(is_ours).collect();
        // An entry of ours that was edited is known by its type, in the place of one that is not there as it was.
        for (kind, count) in noted.map(Rendering::counts).unwrap_or_default() {
            let of_kind: Vec<usize> =
                (0..ours.len()).filter(|index| self::kind(&self.entries[*index]) == kind).collect();
            let found = of_kind.iter().filter(|index| ours[**index]).count();
            let edited: Vec<usize> = of_kind.into_iter().filter(|index| !ours[*index]).collect();
            edited.into_iter().take(count.saturating_sub(found)).for_each(|index| ours[index] = true);
        }
        ours
    }
}

impl Rendered {
    /// The configuration to be written where `there` is: our entries as they are rendered now, in the places of ours,
    /// and all others where they are.
    pub(super) fn over(&self, there: &Chain, noted: &[Rendering]) -> Merged {
        // What was just written is read again, and is today's by then.
        let today = (!noted.is_empty()).then(|| Rendering::of(&self.chain));
        let known: Vec<Rendering> = noted.iter().cloned().chain(today).collect();
        let noted = Rendering::in_place(&known, there);
        let ours = there.ours(&self.pattern, noted);
        if !ours.contains(&true) {
            return self.alone();
        }
        let is_foreign = |key: &&String| {
            !self.chain.keys.contains_key(*key) && !noted.is_some_and(|noted| noted.keys.contains(*key))
        };
        let foreign_keys: Vec<String> = there.keys.keys().filter(is_foreign).cloned().collect();
        let others = there.entries.iter().zip(&ours).filter(|(_, is_ours)| !**is_ours);
        let foreign: Vec<String> = others.map(|(entry, _)| kind(entry).to_owned()).collect();
        if foreign.is_empty() && foreign_keys.is_empty() {
            return self.alone();
        }
        let mut keys = self.chain.keys.clone();
        keys.extend(foreign_keys.iter().filter_map(|key| Some((key.clone(), there.keys.get(key)?.clone()))));
        let entries = arranged(&self.chain.entries, &there.entries, &ours);
        Merged { chain: Chain { keys, entries, is_list: true, leaves_out: false }, foreign, foreign_keys }
    }

    /// The configuration to be written where nothing of others is.
    pub(super) fn alone(&self) -> Merged {
        Merged { chain: self.chain.clone(), foreign: Vec::new(), foreign_keys: Vec::new() }
    }
}

impl Merged {
    /// Whether nothing of others is in it.
    pub(super) fn is_only_ours(&self) -> bool {
        self.foreign.is_empty() && self.foreign_keys.is_empty()
    }

    /// Adds what others chained into a configuration that this one takes the place of.
    pub(super) fn adopt(&mut self, entries: Vec<Entry>) {
        let before = self.chain.entries.len();
        self.chain.adopt(entries);
        let added = self.chain.entries[before..].iter().map(|entry| kind(entry).to_owned());
        self.foreign.extend(added);
        self.chain.is_list |= !self.foreign.is_empty();
    }
}

/// Our entries in the places of ours, in their order; those that are more come after the last one.
fn arranged(rendered: &[Entry], there: &[Entry], ours: &[bool]) -> Vec<Entry> {
    let last = ours.iter().rposition(|is_ours| *is_ours);
    let mut waiting = rendered.iter().cloned();
    let mut entries = Vec::new();
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

fn fits_entry(pattern: &Entry, found: &Entry) -> bool {
    pattern.len() == found.len()
        && pattern.iter().all(|(key, value)| found.get(key).is_some_and(|found| fits(value, found)))
}

/// Whether upstream's templates and ours make this entry.
fn is_of_a_template(entry: &Entry) -> bool {
    let is = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|ours| ours == Value::Object(entry.clone()));
    is(r#"{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}"#)
        || is(r#"{"type": "bandwidth", "capabilities": {"bandwidth": true}}"#)
}

#[cfg(test)]
mod tests;
