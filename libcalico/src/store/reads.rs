//! Batched reads: a [`ReadBatch`] of ranges, and its [`Answers`].

use std::collections::BTreeSet;
use std::marker::PhantomData;

use super::{Entry, Kind, Revision, StoreError, StoredValue};
use crate::ipam::{Block, BlockSummary, ListedBlock};
use crate::net::IpVersion;

/// A read of a single path, or of all paths below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The kind of the objects.
    pub kind: &'static str,
    /// The path of one object, or the common prefix of several.
    pub path: String,
    /// Whether to treat `path` as a prefix.
    pub is_prefix: bool,
    /// Whether to read the paths only.
    pub keys_only: bool,
    /// The required freshness of the answer.
    pub freshness: Freshness,
}

/// The required freshness of an answer. A store without a cache answers with the current state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Freshness {
    /// The current state.
    #[default]
    Latest,
    /// The state at this revision, which must be of an object of the same kind, or a later one.
    Since(Revision),
    /// Any recent state, such as one that the server caches.
    Cached,
}

/// A stored pair of path and value, not decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    /// The full path.
    pub path: String,
    /// The stored value.
    pub value: StoredValue,
    /// The revision of the pair.
    pub revision: Revision,
}

/// The position of the answer to a [`ReadBatch::get`].
#[derive(Debug)]
pub struct GetTicket<K>(usize, PhantomData<K>);

/// The position of the answer to a [`ReadBatch::list`].
#[derive(Debug)]
pub struct ListTicket<K>(usize, PhantomData<K>);

/// The position of the answer to a [`ReadBatch::list_keys`].
#[derive(Debug)]
pub struct KeysTicket<K>(ListTicket<K>);

/// The position of the answer to a [`ReadBatch::get_revision`].
#[derive(Debug)]
pub struct RevisionTicket<K>(GetTicket<K>);

/// The position of the answer to a [`ReadBatch::list_pairs`].
#[derive(Debug)]
pub struct PairsTicket(usize);

/// Reads to be answered together, from one snapshot if the store supports that.
#[derive(Debug, Default, Clone)]
pub struct ReadBatch {
    ranges: Vec<Range>,
}

impl ReadBatch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the read of one object.
    pub fn get<K: Kind>(&mut self, key: &K::Key) -> GetTicket<K> {
        GetTicket(self.add::<K>(K::path(key), false), PhantomData)
    }

    /// Adds the read of one object that a cache may answer if it has reached `revision`, that of an
    /// object of the same kind.
    pub fn get_since<K: Kind>(&mut self, key: &K::Key, revision: &Revision) -> GetTicket<K> {
        let ticket = self.get::<K>(key);
        self.ranges[ticket.0].freshness = Freshness::Since(revision.clone());
        ticket
    }

    /// Adds the read of one object's revision.
    pub fn get_revision<K: Kind>(&mut self, key: &K::Key) -> RevisionTicket<K> {
        let ticket = self.get::<K>(key);
        self.ranges[ticket.0].keys_only = true;
        RevisionTicket(ticket)
    }

    /// Adds the read of a selection. The answers are in path order (IPAM-94, IPAM-112), or in the
    /// order of the API server's response.
    pub fn list<K: Kind>(&mut self, select: &K::Select) -> ListTicket<K> {
        ListTicket(self.add::<K>(K::prefix(select), true), PhantomData)
    }

    /// Adds the read of a selection that a cache may answer with a slightly older state. Meant for
    /// data that is harmless when it is old, or that a later compare-and-swap verifies.
    pub fn list_lagging<K: Kind>(&mut self, select: &K::Select) -> ListTicket<K> {
        let ticket = self.list::<K>(select);
        self.ranges[ticket.0].freshness = Freshness::Cached;
        ticket
    }

    /// Adds the read of the keys of a selection.
    pub fn list_keys<K: Kind>(&mut self, select: &K::Select) -> KeysTicket<K> {
        let ticket = self.list::<K>(select);
        self.ranges[ticket.0].keys_only = true;
        KeysTicket(ticket)
    }

    /// Adds the read of the stored pairs of a kind below `prefix`, for a kind that need not have a
    /// type.
    pub fn list_pairs(&mut self, kind: &'static str, prefix: impl Into<String>) -> PairsTicket {
        PairsTicket(self.add_range(kind, prefix.into(), true))
    }

    fn add<K: Kind>(&mut self, path: String, is_prefix: bool) -> usize {
        self.add_range(K::KIND, path, is_prefix)
    }

    fn add_range(&mut self, kind: &'static str, path: String, is_prefix: bool) -> usize {
        self.ranges.push(Range {
            kind,
            path,
            is_prefix,
            keys_only: false,
            freshness: Freshness::Latest,
        });
        self.ranges.len() - 1
    }

    /// Returns the ranges, in the order that the answers must have.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }
}

/// The answers of one [`ReadBatch`].
#[derive(Debug)]
pub struct Answers(Vec<Vec<RawEntry>>);

impl Answers {
    /// Creates the answers from one list of entries per range of the batch.
    pub fn new(per_range: Vec<Vec<RawEntry>>) -> Self {
        Answers(per_range)
    }

    /// Returns the object, or `None` if it is missing.
    pub fn get<K: Kind>(&self, ticket: &GetTicket<K>) -> Result<Option<Entry<K>>, StoreError> {
        self.0[ticket.0].first().map(decode_entry).transpose()
    }

    /// Returns the objects that exist and can be decoded. Calls `unreadable` with path and reason
    /// for each that cannot.
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

    /// Returns the stored pair of the object, even if its value cannot be decoded.
    pub fn raw<K: Kind>(&self, ticket: &GetTicket<K>) -> Option<&RawEntry> {
        self.0[ticket.0].first()
    }

    /// Returns the revision of the object, if it exists.
    pub fn revision<K: Kind>(&self, ticket: &RevisionTicket<K>) -> Option<&Revision> {
        self.0[ticket.0.0].first().map(|entry| &entry.revision)
    }

    /// Returns the key of each object of a selection, with the object or the decoding error.
    pub fn each<K: Kind>(
        &self,
        ticket: &ListTicket<K>,
    ) -> impl Iterator<Item = (K::Key, Result<Entry<K>, StoreError>)> {
        self.0[ticket.0]
            .iter()
            .filter_map(|raw| Some((K::parse_path(&raw.path)?, decode_entry(raw))))
    }

    /// Returns the objects of a selection. Entries that cannot be decoded are skipped, as upstream
    /// does (DS-42).
    pub fn list<K: Kind>(&self, ticket: &ListTicket<K>) -> Vec<Entry<K>> {
        self.0[ticket.0]
            .iter()
            .filter_map(|raw| decode_entry(raw).ok())
            .collect()
    }

    /// Returns the stored pairs of a selection.
    pub fn raw_entries<K>(&self, ticket: &ListTicket<K>) -> &[RawEntry] {
        &self.0[ticket.0]
    }

    /// Returns the stored pairs that were read with [`ReadBatch::list_pairs`].
    pub fn pairs(&self, ticket: &PairsTicket) -> &[RawEntry] {
        &self.0[ticket.0]
    }

    /// Returns the keys of a selection that was read with [`ReadBatch::list_keys`], including those
    /// of entries that cannot be decoded.
    pub fn listed_keys<K: Kind>(&self, ticket: &KeysTicket<K>) -> impl Iterator<Item = K::Key> {
        self.0[ticket.0.0]
            .iter()
            .filter_map(|raw| K::parse_path(&raw.path))
    }
}

/// Decodes a stored pair as an object of kind `K`.
pub fn decode_entry<K: Kind>(raw: &RawEntry) -> Result<Entry<K>, StoreError> {
    let corrupt = |reason: String| StoreError::Corrupt {
        key: raw.path.clone(),
        reason,
    };
    let key = K::parse_path(&raw.path)
        .ok_or_else(|| corrupt(format!("not a path of kind {}", K::KIND)))?;
    let mut value = raw
        .value
        .decode::<K>()
        .map_err(|e| corrupt(e.to_string()))?;
    if !value.belongs_to(&key) {
        return Err(corrupt(format!(
            "the value belongs to another key than {key}"
        )));
    }
    value.set_revision(&raw.revision);
    Ok(Entry {
        key,
        value,
        revision: raw.revision.clone(),
    })
}

/// A selection of blocks, and the detail to read of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The families of the blocks.
    pub families: BTreeSet<IpVersion>,
    /// Whether to read only the range of each block.
    pub ranges_only: bool,
}

impl Survey {
    /// Returns the ranges to read.
    pub fn ranges(&self) -> Vec<Range> {
        let range = |family: &IpVersion| Range {
            kind: Block::KIND,
            path: Block::prefix(&Some(*family)),
            is_prefix: true,
            keys_only: self.ranges_only,
            freshness: Freshness::Latest,
        };
        self.families.iter().map(range).collect()
    }

    pub(super) fn batch(&self) -> (ReadBatch, Vec<ListTicket<Block>>) {
        let batch = ReadBatch {
            ranges: self.ranges(),
        };
        let tickets = (0..batch.ranges.len())
            .map(|position| ListTicket(position, PhantomData))
            .collect();
        (batch, tickets)
    }
}

/// Returns the summary of the block in a stored pair, or only its range if the value is not a
/// readable block of this range. Returns `None` for a pair of another kind.
pub fn listed_block(path: &str, value: &[u8]) -> Option<ListedBlock> {
    let cidr = Block::parse_path(path)?;
    let summary = serde_json::from_slice::<BlockSummary>(value)
        .ok()
        .filter(|summary| summary.cidr() == cidr);
    Some(summary.map_or(ListedBlock::Range(cidr), ListedBlock::Block))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::ipam::{Handle, HandleId};

    #[test]
    fn unreadable_object_is_reported_and_does_not_block_other_reads() {
        let ids = ["torn", "absent", "there"].map(HandleId::new);
        let mut batch = ReadBatch::new();
        let tickets = ids.each_ref().map(|id| batch.get::<Handle>(id));
        let stored = |id: &HandleId, value: &str| {
            vec![RawEntry {
                path: Handle::path(id),
                value: value.into(),
                revision: Revision("1".into()),
            }]
        };
        let answers = Answers::new(vec![
            stored(&ids[0], "{"),
            Vec::new(),
            stored(&ids[2], r#"{"block":{}}"#),
        ]);
        let told = RefCell::new(Vec::new());
        let found = answers.readable(&tickets, |key, reason| {
            told.borrow_mut().push((key.to_owned(), reason.to_owned()))
        });
        let found: Vec<_> = found.unwrap().into_iter().map(|entry| entry.key).collect();
        assert_eq!(found, [ids[2].clone()]);
        let told = told.into_inner();
        assert_eq!(told.len(), 1);
        assert!(
            told[0].0 == Handle::path(&ids[0]) && !told[0].1.is_empty(),
            "{told:?}"
        );
    }
}
