//! [`Pairs`]: the pairs of a store in memory, as a value.

use std::collections::BTreeMap;

use libcalico::ipam::{AffinitySelect, BlockAffinity};
use libcalico::store::{
    Freshness, Kind, Range, RawEntry, Revision, StoreError, Write, WriteError, WriteOp,
};

/// The stored pairs, each with the revision of its last write.
#[derive(Debug, Clone, Default)]
pub struct Pairs {
    revision: u64,
    pairs: BTreeMap<String, (Vec<u8>, u64)>,
}

impl Pairs {
    /// Stores a pair with a new revision.
    pub fn put(&mut self, path: String, value: Vec<u8>) {
        self.revision += 1;
        self.pairs.insert(path, (value, self.revision));
    }

    /// Removes a pair.
    pub fn remove(&mut self, path: &str) {
        self.revision += 1;
        self.pairs.remove(path);
    }

    /// Gives a pair a new revision, like a rewrite by another process.
    pub fn touch(&mut self, path: &str) {
        if let Some((value, _)) = self.pairs.get(path).cloned() {
            self.put(path.to_owned(), value);
        }
    }

    /// Returns the paths of all pairs, sorted.
    pub fn paths(&self) -> Vec<String> {
        self.pairs.keys().cloned().collect()
    }

    /// Returns the object with this key. Panics if its value is invalid.
    pub fn get<K: Kind>(&self, key: &K::Key) -> Option<K> {
        self.pairs
            .get(&K::path(key))
            .map(|(value, _)| K::decode(value).unwrap())
    }

    /// Returns the valid objects of a kind that `select` selects, with their keys.
    pub fn list<K: Kind>(&self, select: &K::Select) -> Vec<(K::Key, K)> {
        let prefix = K::prefix(select);
        let matching = self
            .pairs
            .range(prefix.clone()..)
            .take_while(|(path, _)| path.starts_with(&prefix));
        matching
            .filter_map(|(path, (value, _))| Some((K::parse_path(path)?, K::decode(value).ok()?)))
            .collect()
    }

    pub(super) fn is_fresh_enough(&self, range: &Range) -> bool {
        match &range.freshness {
            Freshness::Latest => false,
            Freshness::Since(revision) => revision
                .0
                .parse()
                .is_ok_and(|wanted: u64| wanted <= self.revision),
            Freshness::Cached => true,
        }
    }

    /// Returns the pairs of a range, in path order.
    pub fn answer(&self, range: &Range) -> Vec<RawEntry> {
        self.entries(|path| {
            if range.is_prefix {
                path.starts_with(&range.path)
            } else {
                path == range.path
            }
        })
    }

    pub(super) fn answer_without_labels(&self, range: &Range) -> Vec<RawEntry> {
        let prefix = BlockAffinity::prefix;
        if range.path == prefix(&AffinitySelect::without_labels()) {
            return self.entries(|path| BlockAffinity::parse_path(path).is_some());
        }
        let is_list = range.is_prefix && range.kind == BlockAffinity::KIND;
        let is_by_owner = is_list && range.path != prefix(&AffinitySelect::default());
        if is_by_owner {
            Vec::new()
        } else {
            self.answer(range)
        }
    }

    fn entries(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<RawEntry> {
        let entries = self.pairs.iter().filter(|(path, _)| is_wanted(path));
        entries
            .map(|(path, (value, revision))| RawEntry {
                path: path.clone(),
                value: value.clone().into(),
                revision: Revision(revision.to_string()),
            })
            .collect()
    }

    /// Returns the revision of the last write, from 0.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Applies all writes in order. If one of them fails, none takes effect.
    ///
    /// # Errors
    /// The error of the first write that fails.
    pub fn apply_all(&mut self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        let before = self.clone();
        let applied: Result<_, _> = writes
            .iter()
            .enumerate()
            .map(|(index, write)| {
                self.apply(write).map_err(|cause| WriteError {
                    index,
                    applied: 0,
                    cause,
                })
            })
            .collect();
        applied.inspect_err(|_| *self = before)
    }

    /// Applies a write. Returns the revision of the pair; for a deletion, the revision that the
    /// pair had.
    ///
    /// # Errors
    /// If the condition of the write is false. The pairs stay unchanged then.
    pub fn apply(&mut self, write: &Write) -> Result<Revision, StoreError> {
        let found = self
            .pairs
            .get(&write.path)
            .map(|(_, revision)| Revision(revision.to_string()));
        let key = write.key.clone();
        match (&write.op, found) {
            (WriteOp::Create(_), Some(_)) => return Err(StoreError::AlreadyExists { key }),
            (WriteOp::Update(..) | WriteOp::UpdateStatus(..) | WriteOp::Delete(_), None) => {
                return Err(StoreError::NotFound { key });
            }
            (
                WriteOp::Update(_, wanted)
                | WriteOp::UpdateStatus(_, wanted)
                | WriteOp::Delete(Some(wanted)),
                Some(found),
            ) if *wanted != found => {
                return Err(StoreError::Conflict { key });
            }
            (
                WriteOp::Create(value)
                | WriteOp::Update(value, _)
                | WriteOp::UpdateStatus(value, _),
                _,
            ) => self.put(write.path.clone(), value.clone()),
            (WriteOp::Delete(wanted), found) => {
                self.remove(&write.path);
                // Kubernetes returns no other revision for a deletion.
                return Ok(wanted
                    .clone()
                    .or(found)
                    .unwrap_or_else(|| Revision(String::new())));
            }
        }
        Ok(Revision(self.revision.to_string()))
    }
}
