//! Delays between the attempts at a key that failed.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// Delay after the first failure, as in client-go. Most conflicts are resolved by then.
const FIRST: Duration = Duration::from_millis(5);
/// Longest delay. client-go waits up to 1000 s, which would delay keys long after an outage of some minutes has ended.
/// An attempt every half a minute costs little.
const LONGEST: Duration = Duration::from_secs(30);

/// Number of failures in a row of each key.
#[derive(Debug)]
pub(super) struct Backoff<K> {
    failures: HashMap<K, u32>,
}

/// A failure of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failed {
    /// Number of failures in a row, including this failure.
    pub(super) times: u32,
    /// Time until the next attempt.
    pub(super) delay: Duration,
}

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Backoff { failures: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Backoff<K> {
    /// Records a failure of the key. `random` is uniform over 0..1 and spreads the delays, so that keys that failed
    /// together are not retried together.
    pub(super) fn failed(&mut self, key: &K, random: f64) -> Failed {
        let times = self.failures.entry(key.clone()).or_insert(0);
        *times = times.saturating_add(1);
        let longest = FIRST.saturating_mul(1u32.checked_shl(*times - 1).unwrap_or(u32::MAX)).min(LONGEST);
        Failed { times: *times, delay: longest.mul_f64((1.0 + random.clamp(0.0, 1.0)) / 2.0) }
    }

    /// Resets the key: it succeeded or is not retried.
    pub(super) fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the delays of the first failures, without jitter.
    fn delays(count: usize) -> Vec<u128> {
        let mut backoff = Backoff::default();
        (0..count).map(|_| backoff.failed(&"a", 1.0).delay.as_millis()).collect()
    }

    #[test]
    fn delays_double_from_five_milliseconds_to_half_a_minute() {
        let delays = delays(40);
        assert_eq!(delays[..5], [5, 10, 20, 40, 80]);
        assert_eq!(delays[12..15], [20_480, 30_000, 30_000]);
        assert_eq!(delays[39], 30_000, "the shift does not overflow");
    }

    #[test]
    fn jitter_takes_away_up_to_half() {
        let delay = |random| Backoff::default().failed(&"a", random).delay;
        assert_eq!(delay(0.0), Duration::from_micros(2500));
        assert_eq!(delay(0.5), Duration::from_micros(3750));
        assert_eq!(delay(1.0), Duration::from_millis(5));
    }

    #[test]
    fn success_begins_anew_and_keys_do_not_share() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.failed(&"a", 1.0).times, 1);
        assert_eq!(backoff.failed(&"a", 1.0).times, 2);
        assert_eq!(backoff.failed(&"b", 1.0).times, 1);
        backoff.forget(&"a");
        assert_eq!(backoff.failed(&"a", 1.0), Failed { times: 1, delay: FIRST });
    }
}
