//! [`StatusBackoff`]: delays between writes.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Delay after the first write.
const FIRST: Duration = Duration::from_secs(1);
/// Longest delay between writes that have no effect, for example because another program writes a different state.
const LONGEST: Duration = Duration::from_secs(60);

/// The delays between writes. They double until there is no write left to do.
#[derive(Debug)]
pub(super) struct StatusBackoff {
    pause: Duration,
    not_before: Option<Instant>,
    /// True if a write is pending.
    pending: bool,
}

impl Default for StatusBackoff {
    fn default() -> Self {
        StatusBackoff { pause: FIRST, not_before: None, pending: false }
    }
}

impl StatusBackoff {
    /// Records that there is no write left to do.
    pub(super) fn settled(&mut self) {
        self.pause = FIRST;
        self.pending = false;
    }

    /// Returns true if a write may happen now. If not, [`StatusBackoff::due`] waits for the time.
    pub(super) fn may_write(&mut self) -> bool {
        let now = Instant::now();
        self.pending = true;
        if self.not_before.is_some_and(|moment| moment > now) {
            return false;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
        true
    }

    /// Waits until the pending write may happen. Never returns if no write is pending.
    pub(super) async fn due(&self) {
        match self.not_before {
            Some(moment) if self.pending => sleep_until(moment).await,
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
        let (mut backoff, begin) = (StatusBackoff::default(), Instant::now());
        let mut written = Vec::new();
        for _ in 0..9 {
            while !backoff.may_write() {
                backoff.due().await;
            }
            written.push(begin.elapsed().as_secs());
        }
        assert_eq!(written, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_had_effect_is_forgotten_but_for_its_second() {
        let mut backoff = StatusBackoff::default();
        for _ in 0..5 {
            while !backoff.may_write() {
                backoff.due().await;
            }
        }
        backoff.settled();
        assert!(timeout(LONGEST * 2, backoff.due()).await.is_err(), "nothing is wanted");
        assert!(backoff.may_write());
        assert!(!backoff.may_write());
        timeout(FIRST * 2, backoff.due()).await.expect("within a second");
    }
}
