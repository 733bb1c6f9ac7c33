//! [`InProgress`]: the units of work in progress, each of them until its guard is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The units of work in progress, with a value for each. Clones share them.
pub struct InProgress<T>(Arc<Mutex<Units<T>>>);

struct Units<T> {
    next: u64,
    values: BTreeMap<u64, T>,
}

/// A unit of work in progress, which ends when the guard is dropped.
#[must_use]
pub struct UnitInProgress<T> {
    all: InProgress<T>,
    number: u64,
}

impl<T> InProgress<T> {
    /// Begins a unit of work.
    pub fn begin(&self, value: T) -> UnitInProgress<T> {
        let mut units = self.units();
        let number = units.next;
        units.next += 1;
        units.values.insert(number, value);
        UnitInProgress {
            all: self.clone(),
            number,
        }
    }

    fn units(&self) -> MutexGuard<'_, Units<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> InProgress<T> {
    /// Returns the values of all units, the oldest unit first.
    pub fn values(&self) -> Vec<T> {
        self.units().values.values().cloned().collect()
    }
}

impl<T> Clone for InProgress<T> {
    fn clone(&self) -> Self {
        InProgress(self.0.clone())
    }
}

impl<T> Default for InProgress<T> {
    fn default() -> Self {
        let units = Units {
            next: 0,
            values: BTreeMap::new(),
        };
        InProgress(Arc::new(Mutex::new(units)))
    }
}

impl<T> Drop for UnitInProgress<T> {
    fn drop(&mut self) {
        self.all.units().values.remove(&self.number);
    }
}
