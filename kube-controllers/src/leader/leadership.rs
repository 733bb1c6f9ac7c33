use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use allocation::write_gate::WriteGate;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::Instant;

/// Interval at which waiting tasks compare a deadline with the boot-time clock, for which there are
/// no timers.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The right to write: this replica is the leader and, after [`Leadership::while_unlocked`], the
/// datastore is not locked.
#[derive(Debug, Clone)]
pub struct Leadership {
    term: watch::Receiver<LeadershipTerm>,
    unlocked: watch::Receiver<bool>,
}

/// The time for which this replica is the leader.
#[derive(Debug, Clone, Copy)]
pub enum LeadershipTerm {
    /// This replica is not the leader.
    No,
    /// Leader until the deadline, unless the Lease is renewed.
    Until(Deadline),
    /// Leader for the life of the process, because leader election is turned off.
    Always,
}

/// A deadline by two clocks, which passes when either clock reaches it. The monotonic clock stops
/// while the machine is suspended, and tokio has no timers for the boot-time clock.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    monotonic: Instant,
    since_boot: Duration,
}

/// This replica may not write at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this replica is not the leader, or the datastore is not ready")]
pub struct MayNotWrite;

impl Leadership {
    /// Creates the right to write from the election's updates in `term`, without a lock of the
    /// datastore.
    pub fn new(term: watch::Receiver<LeadershipTerm>) -> Self {
        Leadership {
            term,
            unlocked: always(true),
        }
    }

    /// Creates a right to write that never ends, for a single replica.
    pub fn always() -> Self {
        Leadership::new(always(LeadershipTerm::Always))
    }

    /// Returns the same right restricted by the lock of the datastore: it holds only while
    /// `unlocked` is true.
    pub fn while_unlocked(self, unlocked: watch::Receiver<bool>) -> Self {
        Leadership { unlocked, ..self }
    }

    /// Returns true if writes are allowed now. Check before each write: the method reads the
    /// clocks, so a process that was paused past its term does not write.
    pub fn holds(&self) -> bool {
        self.term.borrow().holds() && *self.unlocked.borrow()
    }

    /// Like [`Leadership::holds`], but returns an error with which a worker retries the key later.
    pub fn may_write(&self) -> Result<(), MayNotWrite> {
        if self.holds() {
            Ok(())
        } else {
            Err(MayNotWrite)
        }
    }

    /// Waits until this replica may write.
    pub async fn gained(&mut self) {
        // Each condition can become false again while the other is awaited.
        while !self.holds() {
            let leads = self.term.wait_for(LeadershipTerm::holds).await.is_ok();
            if !leads || self.unlocked.wait_for(|unlocked| *unlocked).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the output of `work`. If this replica may not write, or loses the right before
    /// `work` ends, drops `work` and returns `None`.
    ///
    /// The clocks are read each time before `work` is polled. So every request that `work` sends
    /// between two awaits is sent while this replica may write, also after the machine was
    /// suspended.
    pub async fn while_held<F: Future>(&self, work: F) -> Option<F::Output> {
        let (mut watching, mut work) = (self.clone(), pin!(work));
        let guarded = poll_fn(|task| {
            if self.holds() {
                work.as_mut().poll(task).map(Some)
            } else {
                Poll::Ready(None)
            }
        });
        tokio::select! {
            biased;
            () = watching.lost() => None,
            outcome = guarded => outcome,
        }
    }

    /// Waits until this replica may no longer write.
    pub async fn lost(&mut self) {
        loop {
            let term = *self.term.borrow_and_update();
            if !term.holds() || !*self.unlocked.borrow_and_update() {
                return;
            }
            let ends = async {
                match term {
                    LeadershipTerm::Until(deadline) => {
                        tokio::time::sleep_until(
                            deadline
                                .monotonic
                                .min(Instant::now() + CLOCK_CHECK_INTERVAL),
                        )
                        .await;
                    }
                    LeadershipTerm::No | LeadershipTerm::Always => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ends => {}
                // If the election has ended, its last update remains valid.
                Ok(()) = self.term.changed() => {}
                Ok(()) = self.unlocked.changed() => {}
            }
        }
    }
}

fn always<T>(value: T) -> watch::Receiver<T> {
    // The last value stays readable after the sender is dropped.
    watch::channel(value).1
}

/// Rejects writes while this replica may not write.
impl WriteGate for Leadership {
    async fn admit(&self, _writes: usize) -> bool {
        self.holds()
    }
}

impl LeadershipTerm {
    /// Returns true if the term has not ended.
    pub fn holds(&self) -> bool {
        match self {
            LeadershipTerm::No => false,
            LeadershipTerm::Until(deadline) => !deadline.has_passed(),
            LeadershipTerm::Always => true,
        }
    }
}

impl Deadline {
    /// Returns the present time.
    pub fn now() -> Self {
        Deadline {
            monotonic: Instant::now(),
            since_boot: since_boot(),
        }
    }

    /// Returns the deadline moved by `duration`.
    pub fn plus(self, duration: Duration) -> Self {
        Deadline {
            monotonic: self.monotonic + duration,
            since_boot: self.since_boot + duration,
        }
    }

    /// Returns true if the deadline has passed.
    pub fn has_passed(&self) -> bool {
        Instant::now() >= self.monotonic || since_boot() >= self.since_boot
    }
}

/// Returns the time since the machine was booted, including suspension.
fn since_boot() -> Duration {
    // Every kernel that can run containers has this clock. Zero would leave the decision to the
    // monotonic clock.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn leadership_term_ends_at_its_deadline_without_a_notification() {
        let (_sender, term) =
            watch::channel(LeadershipTerm::Until(Deadline::now().plus(10 * SECOND)));
        let mut leadership = Leadership::new(term);
        let begin = Instant::now();
        assert!(leadership.holds());
        leadership.lost().await;
        assert_eq!(begin.elapsed().as_secs(), 10);
        assert!(!leadership.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn elapsed_term_revokes_the_right_to_write() {
        let (_sender, term) =
            watch::channel(LeadershipTerm::Until(Deadline::now().plus(10 * SECOND)));
        let leadership = Leadership::new(term);
        // No task runs in between, as in a process that is paused.
        assert!(leadership.admit(1).await);
        advance(10 * SECOND).await;
        assert!(!leadership.holds() && !leadership.admit(1).await);
    }

    #[test]
    fn suspended_time_counts_toward_a_deadline() {
        let now = Deadline::now();
        let later = now.monotonic + 10 * SECOND;
        assert!(
            !Deadline {
                monotonic: later,
                since_boot: now.since_boot + 10 * SECOND
            }
            .has_passed()
        );
        assert!(
            Deadline {
                monotonic: later,
                since_boot: now.since_boot
            }
            .has_passed()
        );
    }

    /// Simulates a suspension: the test's monotonic clock is paused, while the boot-time clock is
    /// real.
    fn suspend(time: Duration) {
        std::thread::sleep(time);
    }

    /// Returns a deadline that is far away by the monotonic clock and near by the boot-time clock.
    fn soon_by_the_other_clock() -> Deadline {
        let now = Deadline::now();
        Deadline {
            monotonic: now.monotonic + 1000 * SECOND,
            since_boot: now.since_boot + SECOND / 5,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn suspend_past_the_term_is_noticed_within_a_second() {
        let (_sender, term) = watch::channel(LeadershipTerm::Until(soon_by_the_other_clock()));
        let mut leadership = Leadership::new(term);
        let begin = Instant::now();
        tokio::join!(leadership.lost(), async { suspend(SECOND / 4) });
        assert!(
            begin.elapsed() <= SECOND + SECOND / 100,
            "{:?}",
            begin.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn work_suspended_past_the_term_does_not_continue() {
        let (_sender, term) = watch::channel(LeadershipTerm::Until(soon_by_the_other_clock()));
        let leadership = Leadership::new(term);
        let mut sent = 0;
        let work = async {
            sent += 1;
            suspend(SECOND / 4);
            tokio::task::yield_now().await;
            sent += 1;
        };
        assert_eq!(leadership.while_held(work).await, None);
        assert!(sent <= 1, "a write was sent after the term");
    }

    #[tokio::test(start_paused = true)]
    async fn guarded_work_ends_on_completion_or_loss_of_leadership() {
        let (sender, term) = watch::channel(LeadershipTerm::Always);
        let leadership = Leadership::new(term);
        assert_eq!(leadership.while_held(async { 7 }).await, Some(7));
        let (stuck, ()) =
            tokio::join!(leadership.while_held(std::future::pending::<()>()), async {
                tokio::time::sleep(SECOND).await;
                sender.send_replace(LeadershipTerm::No);
            });
        assert_eq!(stuck, None);
        assert_eq!(
            leadership
                .while_held(async { unreachable!("it does not lead") })
                .await,
            None::<()>
        );
    }

    #[tokio::test(start_paused = true)]
    async fn extended_leadership_term_is_not_lost() {
        let (sender, term) =
            watch::channel(LeadershipTerm::Until(Deadline::now().plus(10 * SECOND)));
        let mut leadership = Leadership::new(term);
        let lost = tokio::spawn(async move { leadership.lost().await });
        for _ in 0..5 {
            tokio::time::sleep(5 * SECOND).await;
            sender.send_replace(LeadershipTerm::Until(Deadline::now().plus(10 * SECOND)));
            tokio::time::sleep(SECOND).await;
            assert!(!lost.is_finished());
        }
        sender.send_replace(LeadershipTerm::No);
        timeout(SECOND, lost)
            .await
            .expect("at once")
            .expect("no panic");
    }

    #[tokio::test(start_paused = true)]
    async fn gained_blocks_until_a_term_begins() {
        let (sender, term) = watch::channel(LeadershipTerm::No);
        let mut leadership = Leadership::new(term);
        assert!(timeout(SECOND, leadership.gained()).await.is_err());
        sender.send_replace(LeadershipTerm::Until(Deadline::now().plus(SECOND)));
        timeout(SECOND, leadership.gained())
            .await
            .expect("it leads");
    }

    #[tokio::test(start_paused = true)]
    async fn datastore_lock_revokes_the_right_to_write_and_unlock_restores_it_to_the_leader() {
        let (sender, term) = watch::channel(LeadershipTerm::Always);
        let (lock, unlocked) = watch::channel(false);
        let elected = Leadership::new(term);
        let mut leadership = elected.clone().while_unlocked(unlocked);
        assert!(elected.holds() && !leadership.holds() && leadership.may_write().is_err());
        assert_eq!(
            leadership
                .while_held(async { unreachable!("it is locked") })
                .await,
            None::<()>
        );
        assert!(timeout(1000 * SECOND, leadership.gained()).await.is_err());

        let gaining = async {
            leadership.gained().await;
            leadership.holds()
        };
        let changes = async {
            for (unlocked, term) in [
                (true, LeadershipTerm::No),
                (false, LeadershipTerm::Always),
                (true, LeadershipTerm::Always),
            ] {
                sender.send_replace(term);
                lock.send_replace(unlocked);
                tokio::time::sleep(SECOND).await;
            }
        };
        assert!(tokio::join!(gaining, changes).0);

        let locking = async {
            tokio::time::sleep(SECOND).await;
            lock.send_replace(false);
        };
        let (stuck, ()) =
            tokio::join!(leadership.while_held(std::future::pending::<()>()), locking);
        assert_eq!(stuck, None);
        timeout(SECOND, leadership.lost()).await.expect("at once");
        assert!(elected.holds() && !leadership.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_leadership_is_never_lost() {
        let mut leadership = Leadership::always();
        leadership.gained().await;
        assert!(timeout(1000 * SECOND, leadership.lost()).await.is_err());
        assert!(leadership.holds());
    }
}
