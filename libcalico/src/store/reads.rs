//! What is read together: a [`ReadBatch`] of ranges, and its [`Answers`].

use std::marker::PhantomData;

use super::{Entry, Kind, Revision, StoreError};

/// One read: a single path or everything below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The kind asked for.
    pub kind: &'static str,
    /// Path of one object, or prefix of many.
    pub path: String,
    /// Whether `path` is a prefix.
    pub prefix: bool,
    /// Only the paths are wanted: the store may leave the values empty.
    pub keys_only: bool,
    /// How fresh the answer has to be.
    pub freshness: Freshness,
}

/// How fresh an answer has to be. A store without a cache answers with what is there now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Freshness {
    /// What is stored now.
    #[default]
    Latest,
    /// What was stored at this revision, which an object of the same kind got, or later.
    Since(Revision),
    /// What was stored a moment ago.
    Cached,
}

/// A raw stored pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    /// Full path.
    pub path: String,
    /// Stored bytes.
    pub value: Vec<u8>,
    /// Its revision.
    pub revision: Revision,
}

/// Where the answer of a [`ReadBatch::get`] will be.
#[derive(Debug)]
pub struct GetTicket<K>(usize, PhantomData<K>);

/// Where the answer of a [`ReadBatch::list`] will be.
#[derive(Debug)]
pub struct ListTicket<K>(usize, PhantomData<K>);

/// Where the answer of a [`ReadBatch::list_keys`] will be.
#[derive(Debug)]
pub struct KeysTicket<K>(ListTicket<K>);

/// The place of the answer of a [`ReadBatch::get_revision`].
#[derive(Debug)]
pub struct RevisionTicket<K>(GetTicket<K>);

/// Reads to be answered together, from one snapshot where the store can.
#[derive(Debug, Default, Clone)]
pub struct ReadBatch {
    ranges: Vec<Range>,
}

impl ReadBatch {
    /// No reads yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the read of one object.
    pub fn get<K: Kind>(&mut self, key: &K::Key) -> GetTicket<K> {
        let (path, freshness) = (K::path(key), Freshness::Latest);
        self.ranges.push(Range { kind: K::KIND, path, prefix: false, keys_only: false, freshness });
        GetTicket(self.ranges.len() - 1, PhantomData)
    }

    /// Adds the read of one object that may be answered out of a cache, unless that has not yet seen `revision`, which
    /// an object of the same kind got: for what a compare-and-swap is to follow.
    pub fn get_since<K: Kind>(&mut self, key: &K::Key, revision: &Revision) -> GetTicket<K> {
        let ticket = self.get::<K>(key);
        self.ranges[ticket.0].freshness = Freshness::Since(revision.clone());
        ticket
    }

    /// Adds the read of one object's revision, which costs little where the object is large.
    pub fn get_revision<K: Kind>(&mut self, key: &K::Key) -> RevisionTicket<K> {
        let ticket = self.get::<K>(key);
        self.ranges[ticket.0].keys_only = true;
        RevisionTicket(ticket)
    }

    /// Adds the read of a selection. Answers come in path order (IPAM-94, IPAM-112).
    pub fn list<K: Kind>(&mut self, select: &K::Select) -> ListTicket<K> {
        self.ranges.push(Range {
            kind: K::KIND,
            path: K::prefix(select),
            prefix: true,
            keys_only: false,
            freshness: Freshness::Latest,
        });
        ListTicket(self.ranges.len() - 1, PhantomData)
    }

    /// Adds the read of a selection that may be answered with what was there a moment ago, out of a cache: for what is
    /// harmless when it is old, or what a compare-and-swap finds out.
    pub fn list_lagging<K: Kind>(&mut self, select: &K::Select) -> ListTicket<K> {
        let ticket = self.list::<K>(select);
        self.ranges[ticket.0].freshness = Freshness::Cached;
        ticket
    }

    /// Adds the read of the keys of a selection, which costs little where the objects are many and large.
    pub fn list_keys<K: Kind>(&mut self, select: &K::Select) -> KeysTicket<K> {
        self.ranges.push(Range {
            kind: K::KIND,
            path: K::prefix(select),
            prefix: true,
            keys_only: true,
            freshness: Freshness::Latest,
        });
        KeysTicket(ListTicket(self.ranges.len() - 1, PhantomData))
    }

    pub(super) fn add_list<K: Kind>(&mut self, range: Range) -> ListTicket<K> {
        self.ranges.push(range);
        ListTicket(self.ranges.len() - 1, PhantomData)
    }

    /// The ranges, in the order the answers must have.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }
}

/// The answers of one [`ReadBatch`].
#[derive(Debug)]
pub struct Answers(Vec<Vec<RawEntry>>);

impl Answers {
    /// One list of entries per range of the batch, each in path order.
    pub fn new(per_range: Vec<Vec<RawEntry>>) -> Self {
        Answers(per_range)
    }

    /// The object, or `None` when it is not there.
    pub fn get<K: Kind>(&self, ticket: &GetTicket<K>) -> Result<Option<Entry<K>>, StoreError> {
        self.0[ticket.0].first().map(decode_entry).transpose()
    }

    /// Those of the objects that are there. One that cannot be read is told to `unreadable`, by its path and why, and
    /// holds up none of the others.
    pub fn readable<K: Kind>(
        &self,
        tickets: &[GetTicket<K>],
        unreadable: impl Fn(&str, &str),
    ) -> Result<Vec<Entry<K>>, StoreError> {
        let mut found = Vec::new();
        for ticket in tickets {
            match self.get(ticket) {
                Ok(entry) => found.extend(entry),
                Err(StoreError::Corrupt { key, reason }) => unreadable(&key, &reason),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The object as it is stored, whether it can be read or not.
    pub fn raw<K: Kind>(&self, ticket: &GetTicket<K>) -> Option<&RawEntry> {
        self.0[ticket.0].first()
    }

    /// Returns the revision of an object of which no more was asked for; `None` when it is not there.
    pub fn revision<K: Kind>(&self, ticket: &RevisionTicket<K>) -> Option<&Revision> {
        self.0[ticket.0.0].first().map(|entry| &entry.revision)
    }

    /// Each object of a selection by its key, with what is wrong with those that do not parse.
    pub fn each<K: Kind>(
        &self,
        ticket: &ListTicket<K>,
    ) -> impl Iterator<Item = (K::Key, Result<Entry<K>, StoreError>)> {
        self.0[ticket.0].iter().filter_map(|raw| Some((K::parse_path(&raw.path)?, decode_entry(raw))))
    }

    /// The objects of a selection. Entries that do not parse are left out, as upstream does (DS-42).
    pub fn list<K: Kind>(&self, ticket: &ListTicket<K>) -> Vec<Entry<K>> {
        self.0[ticket.0].iter().filter_map(|raw| decode_entry(raw).ok()).collect()
    }

    /// The stored pairs of a selection, for who needs little of them.
    pub fn pairs<K>(&self, ticket: &ListTicket<K>) -> &[RawEntry] {
        &self.0[ticket.0]
    }

    /// The keys of a selection, those of entries that do not parse included.
    pub fn keys<K: Kind>(&self, ticket: &ListTicket<K>) -> impl Iterator<Item = K::Key> {
        self.0[ticket.0].iter().filter_map(|raw| K::parse_path(&raw.path))
    }

    /// The keys of a selection of which only they were asked for.
    pub fn listed_keys<K: Kind>(&self, ticket: &KeysTicket<K>) -> impl Iterator<Item = K::Key> {
        self.keys(&ticket.0)
    }
}

/// Decodes a raw pair as an object of kind `K`.
pub fn decode_entry<K: Kind>(raw: &RawEntry) -> Result<Entry<K>, StoreError> {
    let corrupt = |reason: String| StoreError::Corrupt { key: raw.path.clone(), reason };
    let key = K::parse_path(&raw.path).ok_or_else(|| corrupt(format!("not a path of kind {}", K::KIND)))?;
    let mut value = K::decode(&raw.value).map_err(|e| corrupt(e.to_string()))?;
    if !value.belongs_to(&key) {
        return Err(corrupt(format!("the value is not that of {key}")));
    }
    value.set_revision(&raw.revision);
    Ok(Entry { key, value, revision: raw.revision.clone() })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::ipam::{Handle, HandleId};

    #[test]
    fn what_cannot_be_read_is_told_and_holds_up_nothing() {
        let ids = ["torn", "absent", "there"].map(HandleId::new);
        let mut batch = ReadBatch::new();
        let tickets = ids.each_ref().map(|id| batch.get::<Handle>(id));
        let stored = |id: &HandleId, value: &str| {
            vec![RawEntry { path: Handle::path(id), value: value.into(), revision: Revision("1".into()) }]
        };
        let answers = Answers::new(vec![stored(&ids[0], "{"), Vec::new(), stored(&ids[2], r#"{"block":{}}"#)]);
        let told = RefCell::new(Vec::new());
        let found =
            answers.readable(&tickets, |key, reason| told.borrow_mut().push((key.to_owned(), reason.to_owned())));
        let found: Vec<_> = found.unwrap().into_iter().map(|entry| entry.key).collect();
        assert_eq!(found, [ids[2].clone()]);
        let told = told.into_inner();
        assert_eq!(told.len(), 1);
        assert!(told[0].0 == Handle::path(&ids[0]) && !told[0].1.is_empty(), "{told:?}");
    }
}
