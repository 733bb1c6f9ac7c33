//! [`RateLimiter`]: the client-side rate limit, a token bucket as in client-go (DS-122).

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::config::Rate;

#[derive(Debug)]
pub(super) struct RateLimiter {
    bucket: Option<TokenBucket>,
}

#[derive(Debug)]
struct TokenBucket {
    interval: Duration,
    /// The time in which an empty bucket fills, except for the last token.
    depth: Duration,
    /// The instant at which the bucket will be full if no more tokens are taken.
    full_at: Mutex<Option<Instant>>,
}

impl RateLimiter {
    pub(super) fn new(rate: Option<Rate>) -> Self {
        let bucket = rate.map(|rate| {
            let interval = Duration::from_secs(1) / rate.per_second.max(1);
            TokenBucket {
                interval,
                depth: interval * (rate.burst.max(1) - 1),
                full_at: Mutex::default(),
            }
        });
        RateLimiter { bucket }
    }

    pub(super) async fn admit(&self) {
        let Some(bucket) = &self.bucket else { return };
        let now = Instant::now();
        let at = bucket.take(now);
        if at > now {
            sleep_until(at).await;
        }
    }
}

impl TokenBucket {
    /// Returns the instant from which the token may be used.
    fn take(&self, now: Instant) -> Instant {
        let mut full_at = self
            .full_at
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let due = full_at.map_or(now, |full_at| full_at.max(now));
        *full_at = Some(due + self.interval);
        due.checked_sub(self.depth).map_or(now, |at| at.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(per_second: u32, burst: u32) -> TokenBucket {
        RateLimiter::new(Some(Rate { per_second, burst }))
            .bucket
            .unwrap()
    }

    #[test]
    fn requests_beyond_the_burst_are_spaced_at_the_rate() {
        let (bucket, start) = (bucket(5, 3), Instant::now());
        let waits: Vec<u128> = (0..6)
            .map(|_| (bucket.take(start) - start).as_millis())
            .collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
    }

    #[test]
    fn unused_requests_accumulate_up_to_the_burst() {
        let (bucket, start) = (bucket(10, 2), Instant::now());
        (0..4).for_each(|_| _ = bucket.take(start));
        let later = start + Duration::from_secs(60);
        let waits: Vec<u128> = (0..4)
            .map(|_| (bucket.take(later) - later).as_millis())
            .collect();
        assert_eq!(waits, [0, 0, 100, 200]);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_rate_limit_do_not_wait() {
        let (free, tight) = (
            RateLimiter::new(None),
            RateLimiter::new(Some(Rate {
                per_second: 1,
                burst: 1,
            })),
        );
        let begin = Instant::now();
        for _ in 0..3 {
            free.admit().await;
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
        for _ in 0..3 {
            tight.admit().await;
        }
        assert_eq!(begin.elapsed().as_secs(), 2);
    }
}
