//! [`Memo`]: values that several tests of a process need and that are expensive to compute.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

/// The place of a value that a thread computes while the others wait.
type Place<V> = Arc<Mutex<Option<Arc<V>>>>;

/// Values by key, each computed once per process. Tests that ask at the same time wait for the
/// first of them.
#[derive(Debug, Default)]
pub struct Memo<K, V>(Mutex<BTreeMap<K, Place<V>>>);

impl<K: Ord, V> Memo<K, V> {
    /// Returns an empty memo, for a static variable.
    pub const fn new() -> Memo<K, V> {
        Memo(Mutex::new(BTreeMap::new()))
    }

    /// Returns the value of a key. If there is none yet, computes it. Errors are not stored.
    pub fn get(&self, key: K, compute: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        // A panic of `compute`, which is a failure of one test, leaves its place empty.
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Arc::clone(places.entry(key).or_default());
        drop(places);
        let mut stored = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &*stored {
            return Ok(Arc::clone(value));
        }
        let value = Arc::new(compute()?);
        *stored = Some(Arc::clone(&value));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use anyhow::bail;

    use super::*;

    #[test]
    fn value_is_computed_once_for_all_threads_and_again_after_an_error() {
        let memo = Memo::new();
        assert!(memo.get("a", || bail!("no")).is_err());
        let calls = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let value = memo.get("a", || {
                        *calls.lock().unwrap() += 1;
                        Ok(7)
                    });
                    assert_eq!(*value.unwrap(), 7);
                });
            }
        });
        assert_eq!(calls.into_inner().unwrap(), 1);
        assert_eq!(*memo.get("b", || Ok(8)).unwrap(), 8);
    }
}
