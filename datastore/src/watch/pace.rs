//! The pace of a watch: [`PageSize`], the number of objects for which a page has about the same size in bytes, and
//! [`Backoff`], the pauses between retries.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

/// Target size of a page in bytes. A page is in memory as a whole, and several times while it arrives.
const PAGE_BYTES: usize = 512 << 10;
const FIRST_PAGE: usize = 50;
const SMALLEST_PAGE: usize = 10;
const LARGEST_PAGE: usize = 1000;

/// The number of objects to request with the next page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize(usize);

impl Default for PageSize {
    fn default() -> Self {
        PageSize(FIRST_PAGE)
    }
}

impl PageSize {
    /// Returns the number of objects.
    pub fn get(self) -> usize {
        self.0
    }

    /// Adjusts the size to a page of `objects` that took `bytes`. The size grows at most by a factor of four, since the
    /// first objects may be small.
    pub fn adjust(&mut self, objects: usize, bytes: usize) {
        if objects > 0 {
            let fitting = PAGE_BYTES * objects / bytes.max(1);
            self.0 = fitting.min(4 * self.0).clamp(SMALLEST_PAGE, LARGEST_PAGE);
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Maximum pause, and thus the maximum delay of events after an outage.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Pauses that double with each failure.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the pause after one more failure. Half of it is random, so that clients that were disconnected together
    /// do not reconnect at the same time.
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        let random = RandomState::new().hash_one(0) % 1000;
        pause / 2 + pause / 2 * random as u32 / 1000
    }

    /// Starts again with the shortest pause after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_the_size_that_fits() {
        let mut size = PageSize::default();
        size.adjust(50, 50 * 5000);
        assert_eq!(size.get(), PAGE_BYTES / 5000);
        size.adjust(100, 100 * 200_000);
        assert_eq!(size.get(), SMALLEST_PAGE);
        size.adjust(0, 300);
        assert_eq!(size.get(), SMALLEST_PAGE);
        for expected in [40, 160, 640, LARGEST_PAGE, LARGEST_PAGE] {
            size.adjust(10, 10 * 100);
            assert_eq!(size.get(), expected);
        }
    }

    #[test]
    fn waits_double_up_to_a_limit() {
        let mut backoff = Backoff::default();
        for expected in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            let wait = backoff.next().as_millis();
            assert!((expected / 2..=expected).contains(&wait), "{wait} of {expected}");
        }
        (0..100).for_each(|_| _ = backoff.next());
        assert!(backoff.next() <= LONGEST_PAUSE);
        backoff.reset();
        assert!(backoff.next() <= FIRST_PAUSE);
    }
}
