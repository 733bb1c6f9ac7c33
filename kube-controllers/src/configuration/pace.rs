//! [`Pace`]: how soon one may write again.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// After a write.
const FIRST: Duration = Duration::from_secs(1);
/// Between writes that have no effect; someone else may insist on another state.
const LONGEST: Duration = Duration::from_secs(60);

/// The pauses between writes. They double until nothing is left to write.
#[derive(Debug)]
pub(super) struct Pace {
    pause: Duration,
    not_before: Option<Instant>,
    /// Something is to be written then.
    wanted: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { pause: FIRST, not_before: None, wanted: false }
    }
}

impl Pace {
    /// Nothing is left to write.
    pub(super) fn settled(&mut self) {
        self.pause = FIRST;
        self.wanted = false;
    }

    /// Whether to write now; if not, [`Pace::due`] says when.
    pub(super) fn may_write(&mut self) -> bool {
        let now = Instant::now();
        self.wanted = true;
        if self.not_before.is_some_and(|moment| moment > now) {
            return false;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
        true
    }

    /// Ends when what was wanted may be written; never while nothing is.
    pub(super) async fn due(&self) {
        match self.not_before {
            Some(moment) if self.wanted => sleep_until(moment).await,
            _ => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_write_is_at_once_and_further_ones_are_spread() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let mut written = Vec::new();
        for _ in 0..9 {
            while !pace.may_write() {
                pace.due().await;
            }
            written.push(begin.elapsed().as_secs());
        }
        assert_eq!(written, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_had_effect_is_forgotten_but_for_its_second() {
        let mut pace = Pace::default();
        for _ in 0..5 {
            while !pace.may_write() {
                pace.due().await;
            }
        }
        pace.settled();
        assert!(timeout(LONGEST * 2, pace.due()).await.is_err(), "nothing is wanted");
        assert!(pace.may_write());
        assert!(!pace.may_write());
        timeout(FIRST * 2, pace.due()).await.expect("within a second");
    }
}
