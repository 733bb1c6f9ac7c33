//! [`Deadline`]: the time limit of requests, which is shorter until the server's first response.

use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// The time limit of requests to one server.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// The time limit of each request.
    each: Duration,
    /// The instant by which the first response must arrive, and the time limit from which it was computed. Without this
    /// value, requests before the first response have the same time limit as all others.
    first: OnceLock<(Instant, Duration)>,
    has_answered: AtomicBool,
}

impl Deadline {
    /// Creates a time limit of `each` for every request.
    pub(crate) fn new(each: Duration) -> Self {
        Deadline { each, first: OnceLock::new(), has_answered: AtomicBool::new(false) }
    }

    /// Ends all requests after `patience` unless the server has responded to any of them by then.
    pub(crate) fn expect_first_answer_within(&self, patience: Duration) {
        _ = self.first.set((Instant::now() + patience, patience));
    }

    /// Records that the server has responded.
    pub(crate) fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Returns the instant at which a request that began at `begun` times out.
    pub(crate) fn until(&self, begun: Instant) -> Instant {
        let until = begun + self.each;
        self.first().map_or(until, |(first, _)| until.min(first))
    }

    /// Returns the present time limit of a request, for errors.
    pub(crate) fn length(&self) -> Duration {
        self.first().map_or(self.each, |(_, patience)| self.each.min(patience))
    }

    /// Waits for `work`, a request that began at `begun`, but not beyond `limit`. Returns `None` on timeout.
    pub(crate) async fn within<T>(&self, begun: Instant, limit: Instant, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let early = self.until(begun).min(limit);
        if let Ok(done) = timeout_at(early, &mut work).await {
            return Some(done);
        }
        // The server responded to another request meanwhile, which extends the time limit of this one.
        let late = self.until(begun).min(limit);
        if late > early { timeout_at(late, work).await.ok() } else { None }
    }

    fn first(&self) -> Option<(Instant, Duration)> {
        self.first.get().filter(|_| !self.has_answered.load(Ordering::Relaxed)).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const EACH: Duration = Duration::from_secs(10);
    const FIRST: Duration = Duration::from_secs(3);

    /// Waits for a response that never comes, with no other limit, and returns the elapsed time.
    async fn waited(deadline: &Deadline) -> Duration {
        let begun = Instant::now();
        let far = begun + Duration::from_secs(3600);
        assert_eq!(deadline.within(begun, far, pending::<()>()).await, None);
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_to_a_silent_server_share_the_first_response_limit() {
        let deadline = Deadline::new(EACH);
        assert_eq!(waited(&deadline).await.as_secs(), EACH.as_secs());
        deadline.expect_first_answer_within(FIRST);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(waited(&deadline).await.as_secs(), 2);
        assert_eq!((waited(&deadline).await.as_secs(), deadline.length()), (0, FIRST));
    }

    #[tokio::test(start_paused = true)]
    async fn time_limit_is_per_request_after_the_first_response() {
        let deadline = Deadline::new(EACH);
        deadline.expect_first_answer_within(FIRST);
        let answer = async {
            sleep(Duration::from_secs(2)).await;
            deadline.answered();
        };
        // Both the request under way and the next one get the full time limit.
        let (during, ()) = tokio::join!(waited(&deadline), answer);
        assert_eq!((during.as_secs(), waited(&deadline).await.as_secs()), (10, 10));
        assert_eq!(deadline.length(), EACH);
    }
}
