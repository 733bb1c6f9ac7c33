//! [`Deadline`]: the time limit of each request to a server.

use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// The time limit of requests to one server, with an optional limit for its first response.
#[derive(Debug)]
pub(crate) struct Deadline {
    per_request: Duration,
    /// The instant by which the first response must arrive, and the time limit from which it was
    /// computed.
    first_response_limit: OnceLock<(Instant, Duration)>,
    has_answered: AtomicBool,
}

impl Deadline {
    pub(crate) fn new(per_request: Duration) -> Self {
        Deadline {
            per_request,
            first_response_limit: OnceLock::new(),
            has_answered: AtomicBool::new(false),
        }
    }

    /// Ends later requests as soon as `patience` has elapsed from now, if the server has responded
    /// to no request by then. A second call has no effect.
    pub(crate) fn expect_first_answer_within(&self, patience: Duration) {
        _ = self
            .first_response_limit
            .set((Instant::now() + patience, patience));
    }

    pub(crate) fn record_response(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn expiry(&self, begun: Instant) -> Instant {
        let until = begun + self.per_request;
        self.first_response_limit()
            .map_or(until, |(first_response_limit, _)| {
                until.min(first_response_limit)
            })
    }

    /// Returns the time limit of a request: before the first response, at most the `patience` of
    /// [`expect_first_answer_within`](Self::expect_first_answer_within).
    pub(crate) fn limit(&self) -> Duration {
        self.first_response_limit()
            .map_or(self.per_request, |(_, patience)| {
                self.per_request.min(patience)
            })
    }

    /// Waits for the output of `request`, which began at `begun`. Returns `None` if the time limit,
    /// or `end`, passes first.
    pub(crate) async fn within<T>(
        &self,
        begun: Instant,
        end: Instant,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        let mut request = pin!(request);
        let first_expiry = self.expiry(begun).min(end);
        if let Ok(output) = timeout_at(first_expiry, &mut request).await {
            return Some(output);
        }
        // If the server has responded to another request meanwhile, this request may have a later
        // time limit.
        let extended_expiry = self.expiry(begun).min(end);
        if extended_expiry > first_expiry {
            timeout_at(extended_expiry, request).await.ok()
        } else {
            None
        }
    }

    fn first_response_limit(&self) -> Option<(Instant, Duration)> {
        self.first_response_limit
            .get()
            .filter(|_| !self.has_answered.load(Ordering::Relaxed))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const EACH: Duration = Duration::from_secs(10);
    const FIRST: Duration = Duration::from_secs(3);

    /// Returns the time after which a request without a response ends.
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
        assert_eq!(
            (waited(&deadline).await.as_secs(), deadline.limit()),
            (0, FIRST)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn time_limit_is_per_request_after_the_first_response() {
        let deadline = Deadline::new(EACH);
        deadline.expect_first_answer_within(FIRST);
        let answer = async {
            sleep(Duration::from_secs(2)).await;
            deadline.record_response();
        };
        // Both the request under way and the next one get the full time limit.
        let (during, ()) = tokio::join!(waited(&deadline), answer);
        assert_eq!(
            (during.as_secs(), waited(&deadline).await.as_secs()),
            (10, 10)
        );
        assert_eq!(deadline.limit(), EACH);
    }
}
