//! The right to write.

use std::time::Duration;

use ipam_plugin::release_addresses::WriteGate;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::Instant;

/// Whether this replica leads. Feeds and caches run always; writes only while it does.
#[derive(Debug, Clone)]
pub struct Leadership {
    tenure: watch::Receiver<Tenure>,
}

/// For how long this replica leads.
#[derive(Debug, Clone, Copy)]
pub enum Tenure {
    /// It does not.
    No,
    /// Until then, unless it is prolonged.
    Until(Deadline),
    /// For ever: nobody else may lead.
    Always,
}

/// A moment, by two clocks: it has come when either says so. The monotonic clock stands still while the machine is
/// suspended, and the other cannot be slept on.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    monotonic: Instant,
    since_boot: Duration,
}

impl Leadership {
    /// The election tells through `tenure`.
    pub fn new(tenure: watch::Receiver<Tenure>) -> Self {
        Leadership { tenure }
    }

    /// Leads for ever: one replica, or a role that may not write Leases.
    pub fn always() -> Self {
        let (sender, tenure) = watch::channel(Tenure::Always);
        // The last value stays readable when the sender is gone.
        drop(sender);
        Leadership { tenure }
    }

    /// Whether writes are allowed now. Ask right before each: the clock is read, so that a process that was stopped for a
    /// while does not go by what it knew before.
    pub fn holds(&self) -> bool {
        self.tenure.borrow().holds()
    }

    /// Waits until this replica leads.
    pub async fn gained(&mut self) {
        if self.tenure.wait_for(Tenure::holds).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until this replica no longer leads.
    pub async fn lost(&mut self) {
        loop {
            let tenure = *self.tenure.borrow_and_update();
            if !tenure.holds() {
                return;
            }
            let ends = async {
                match tenure {
                    Tenure::Until(deadline) => tokio::time::sleep_until(deadline.monotonic).await,
                    Tenure::No | Tenure::Always => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ends => {}
                // Without an election any more its last word stands.
                Ok(()) = self.tenure.changed() => {}
            }
        }
    }
}

/// Nothing is written that is begun when the tenure is over.
impl WriteGate for Leadership {
    async fn admit(&self, _writes: usize) -> bool {
        self.holds()
    }
}

impl Tenure {
    /// Whether it still runs.
    pub fn holds(&self) -> bool {
        match self {
            Tenure::No => false,
            Tenure::Until(deadline) => !deadline.has_passed(),
            Tenure::Always => true,
        }
    }
}

impl Deadline {
    /// The present moment.
    pub fn now() -> Self {
        Deadline { monotonic: Instant::now(), since_boot: since_boot() }
    }

    /// That much later.
    pub fn plus(self, duration: Duration) -> Self {
        Deadline { monotonic: self.monotonic + duration, since_boot: self.since_boot + duration }
    }

    /// Whether it has come.
    pub fn has_passed(&self) -> bool {
        Instant::now() >= self.monotonic || since_boot() >= self.since_boot
    }

    /// When to wake up for it. A machine that was suspended meanwhile wakes up too late: ask [`Deadline::has_passed`].
    pub fn monotonic(&self) -> Instant {
        self.monotonic
    }
}

/// Time since the machine was started, that in which it was suspended included.
fn since_boot() -> Duration {
    // A kernel without this clock does not run containers; zero leaves the decision to the other one.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_tenure_ends_by_itself_even_when_nobody_says_so() {
        let (_sender, tenure) = watch::channel(Tenure::Until(Deadline::now().plus(10 * SECOND)));
        let mut leadership = Leadership::new(tenure);
        let begin = Instant::now();
        assert!(leadership.holds());
        leadership.lost().await;
        assert_eq!(begin.elapsed().as_secs(), 10);
        assert!(!leadership.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn time_alone_takes_the_right_away() {
        let (_sender, tenure) = watch::channel(Tenure::Until(Deadline::now().plus(10 * SECOND)));
        let leadership = Leadership::new(tenure);
        // No task runs in between, as in a process that was stopped.
        assert!(leadership.admit(1).await);
        advance(10 * SECOND).await;
        assert!(!leadership.holds() && !leadership.admit(1).await);
    }

    #[test]
    fn the_clock_that_goes_on_while_the_machine_sleeps_counts_too() {
        let now = Deadline::now();
        let later = now.monotonic + 10 * SECOND;
        assert!(!Deadline { monotonic: later, since_boot: now.since_boot + 10 * SECOND }.has_passed());
        assert!(Deadline { monotonic: later, since_boot: now.since_boot }.has_passed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenure_that_is_prolonged_is_not_lost() {
        let (sender, tenure) = watch::channel(Tenure::Until(Deadline::now().plus(10 * SECOND)));
        let mut leadership = Leadership::new(tenure);
        let lost = tokio::spawn(async move { leadership.lost().await });
        for _ in 0..5 {
            tokio::time::sleep(5 * SECOND).await;
            sender.send_replace(Tenure::Until(Deadline::now().plus(10 * SECOND)));
            tokio::time::sleep(SECOND).await;
            assert!(!lost.is_finished());
        }
        sender.send_replace(Tenure::No);
        timeout(SECOND, lost).await.expect("at once").expect("no panic");
    }

    #[tokio::test(start_paused = true)]
    async fn gained_waits_for_a_tenure() {
        let (sender, tenure) = watch::channel(Tenure::No);
        let mut leadership = Leadership::new(tenure);
        assert!(timeout(SECOND, leadership.gained()).await.is_err());
        sender.send_replace(Tenure::Until(Deadline::now().plus(SECOND)));
        timeout(SECOND, leadership.gained()).await.expect("it leads");
    }

    #[tokio::test(start_paused = true)]
    async fn always_is_for_ever() {
        let mut leadership = Leadership::always();
        leadership.gained().await;
        assert!(timeout(1000 * SECOND, leadership.lost()).await.is_err());
        assert!(leadership.holds());
    }
}
