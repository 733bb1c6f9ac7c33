//! [`Logins`]: the logins of all connections of a process, one at a time, because each is expensive
//! for etcd.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tonic::Status;

use super::error::EtcdFailure;

/// Shortest and longest pause after a login that etcd has refused, and between the repeated logins
/// of a connection.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Time after which another login begins although this one has no answer, so that a member that
/// does not answer delays no other member's login further.
const LONGEST_TURN: Duration = Duration::from_secs(2);

/// The turn of the next login, and the last refusal.
#[derive(Default)]
pub(super) struct Logins {
    turn: tokio::sync::Mutex<()>,
    refused: Mutex<Option<Refused>>,
}

struct Refused {
    status: Status,
    pauses: Pauses,
}

/// Pauses that double while they follow one another.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    length: Duration,
    /// The end of the current pause; `None` before the first.
    pub(super) end: Option<Instant>,
}

impl Pauses {
    /// Begins a pause, which is `first` long unless a pause ended within the last
    /// [`LONGEST_PAUSE`].
    fn begin(&mut self, first: Duration) {
        let now = Instant::now();
        let follows = self.end.is_some_and(|end| now < end + LONGEST_PAUSE);
        self.length = if follows {
            (self.length * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
        } else {
            first
        };
        self.end = Some(now + self.length);
    }

    /// Begins the pause before a further login of a connection whose token etcd no longer accepts:
    /// none at first.
    pub(super) fn begin_of_stale_login(&mut self) {
        self.begin(Duration::ZERO);
    }

    /// Records that etcd accepts the token of the login after the last pause. If this is at least
    /// [`SHORTEST_PAUSE`] ago, the next pause does not follow the last one: tokens may live for
    /// seconds only, and roles may often change.
    pub(super) fn record_accepted_token(&mut self) {
        if self
            .end
            .is_some_and(|end| end + SHORTEST_PAUSE <= Instant::now())
        {
            *self = Pauses::default();
        }
    }
}

impl Logins {
    /// Runs `login` when no other login runs. After a refusal, returns the same refusal without a
    /// login until the pause ends.
    pub(super) async fn run(
        &self,
        login: impl Future<Output = Result<(), EtcdFailure>>,
    ) -> Result<(), EtcdFailure> {
        let turn = self.turn.lock().await;
        if let Some(refused) = self
            .refused()
            .as_ref()
            .filter(|refused| refused.pauses.end > Some(Instant::now()))
        {
            return Err(EtcdFailure::Status(refused.status.clone()));
        }
        let mut login = pin!(login);
        let (outcome, _turn) = match timeout(LONGEST_TURN, &mut login).await {
            Ok(outcome) => (outcome, Some(turn)),
            Err(_) => {
                drop(turn);
                (login.await, None)
            }
        };
        self.record(&outcome);
        outcome
    }

    fn record(&self, outcome: &Result<(), EtcdFailure>) {
        let mut refused = self.refused();
        match outcome {
            Ok(()) => *refused = None,
            Err(EtcdFailure::Status(status))
                if status.message().contains("authentication failed") =>
            {
                let mut pauses = refused
                    .take()
                    .map(|refused| refused.pauses)
                    .unwrap_or_default();
                pauses.begin(SHORTEST_PAUSE);
                *refused = Some(Refused {
                    status: status.clone(),
                    pauses,
                });
            }
            Err(_) => {}
        }
    }

    fn refused(&self) -> MutexGuard<'_, Option<Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{advance, sleep};

    use super::*;

    fn wrong_password() -> Result<(), EtcdFailure> {
        Err(EtcdFailure::Status(Status::invalid_argument(
            "etcdserver: authentication failed, invalid user ID or password",
        )))
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_password_is_repeated_after_growing_pauses_only() {
        let (logins, count) = (Logins::default(), &Cell::new(0));
        let login = |outcome: fn() -> Result<(), EtcdFailure>| {
            logins.run(async move {
                count.set(count.get() + 1);
                outcome()
            })
        };
        for (round, pause) in [1, 2, 4, 8, 16, 32, 60, 60].into_iter().enumerate() {
            login(wrong_password).await.unwrap_err();
            advance(Duration::from_millis(pause * 1000 - 1)).await;
            let error = login(|| Ok(())).await.unwrap_err();
            assert!(matches!(
                error,
                EtcdFailure::Status(status) if status.message().contains("authentication failed"),
            ));
            assert_eq!(count.get(), round + 1);
            advance(Duration::from_millis(2)).await;
        }
        login(|| Ok(())).await.unwrap();
        login(wrong_password).await.unwrap_err();
        advance(Duration::from_secs(1)).await;
        login(|| Ok(())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn logins_run_one_after_the_other_unless_one_has_no_answer() {
        let (logins, running, most) = (Logins::default(), &Cell::new(0), &Cell::new(0));
        let login = |time: u64| {
            logins.run(async move {
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                sleep(Duration::from_millis(time)).await;
                running.set(running.get() - 1);
                Ok(())
            })
        };
        let (first, second, third) = tokio::join!(login(100), login(100), login(100));
        assert!(first.is_ok() && second.is_ok() && third.is_ok());
        assert_eq!(most.get(), 1);
        let (slow, other) = tokio::join!(login(60_000), login(100));
        assert!(slow.is_ok() && other.is_ok());
        assert_eq!(most.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_stale_logins_of_a_connection_wait_longer_each_time() {
        let mut pauses = Pauses::default();
        for length in [0, 1, 2, 4] {
            pauses.begin_of_stale_login();
            assert_eq!(
                pauses.end.unwrap() - Instant::now(),
                Duration::from_secs(length)
            );
            advance(Duration::from_secs(length)).await;
        }
        advance(LONGEST_PAUSE).await;
        pauses.begin_of_stale_login();
        assert_eq!(pauses.end.unwrap(), Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn token_that_was_accepted_for_a_second_is_replaced_without_a_pause() {
        let mut pauses = Pauses::default();
        for (expected, lifetime) in [
            (0, 0),
            (1000, 0),
            (2000, 999),
            (4000, 1000),
            (0, 20_000),
            (0, 0),
            (1000, 0),
        ] {
            pauses.begin_of_stale_login();
            assert_eq!(
                pauses.end.unwrap() - Instant::now(),
                Duration::from_millis(expected)
            );
            advance(Duration::from_millis(expected + lifetime)).await;
            pauses.record_accepted_token();
        }
    }
}
