//! [`EarlierProblems`]: the findings of the first read, for the comparison with those of the second one.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};

use super::CheckResult;

/// The hashes of findings, notes and unreadable values, in a fraction of their memory.
pub(super) struct EarlierProblems {
    /// Its random keys prevent chosen collisions.
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl EarlierProblems {
    pub(super) fn of(result: CheckResult) -> Self {
        let mut earlier = EarlierProblems { hasher: RandomState::new(), hashes: HashSet::new() };
        result.findings.iter().chain(&result.notes).for_each(|finding| earlier.insert(finding));
        result.unreadable.iter().for_each(|value| earlier.insert(value));
        earlier
    }

    fn insert(&mut self, problem: &impl Hash) {
        self.hashes.insert(self.hasher.hash_one(problem));
    }

    pub(super) fn contains(&self, problem: &impl Hash) -> bool {
        self.hashes.contains(&self.hasher.hash_one(problem))
    }
}
