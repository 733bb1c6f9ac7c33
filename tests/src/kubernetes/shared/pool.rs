//! The control planes of this process that wait for a test, and the tests that wait for one.

use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;

/// Maximum number of control planes that wait for a test. Each needs some hundred megabytes of
/// memory.
const MOST_IDLE: usize = 3;

/// Time that tests wait, added up, for control planes that other tests use, before they start
/// another one: less than the processor time of a start.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Interval in which a waiting test looks at the time.
const INTERVAL: Duration = Duration::from_millis(100);

static POOL: Mutex<Pool> = Mutex::new(Pool {
    idle: Vec::new(),
    demands: BTreeMap::new(),
});

/// Notified when a control plane has started, and when a test ends.
static CHANGED: Condvar = Condvar::new();

struct Pool {
    /// The control planes that wait for a test, the one that has waited longest first.
    idle: Vec<Shared>,
    /// The tests of each preparation.
    demands: BTreeMap<String, Demand>,
}

/// The tests of a preparation.
struct Demand {
    /// Number of control planes that are starting.
    starting: u32,
    /// Number of control planes that tests use.
    used: u32,
    /// Number of tests that wait for one of these.
    waiting: u32,
    /// Time that tests have waited, added up, since the last start and without starts.
    waited: Duration,
    /// Time until which `waited` is counted.
    counted: Instant,
}

/// A control plane that a test starts or uses, until this is dropped.
pub(super) struct Claim<'p> {
    preparation: &'p str,
    has_started: bool,
}

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes the tests of a preparation, and notifies those that wait.
fn change(preparation: &str, change: impl FnOnce(&mut Demand)) {
    change(pool().demand(preparation));
    CHANGED.notify_all();
}

/// Returns a waiting control plane with this preparation. If other tests use all of them, waits a
/// moment for one. If there is none, makes room for a new one.
pub(super) fn take(preparation: &str) -> (Claim<'_>, Option<Shared>) {
    let mut pool = pool();
    loop {
        let found = pool
            .idle
            .iter()
            .position(|shared| shared.preparation == preparation);
        if let Some(found) = found {
            let shared = pool.idle.remove(found);
            pool.demand(preparation).used += 1;
            let claim = Claim {
                preparation,
                has_started: true,
            };
            return (claim, Some(shared));
        }
        let demand = pool.demand(preparation);
        if !demand.is_met_soon() {
            break;
        }
        demand.waiting += 1;
        let woken = CHANGED.wait_timeout(pool, INTERVAL);
        pool = woken.unwrap_or_else(PoisonError::into_inner).0;
        pool.demand(preparation).waiting -= 1;
    }
    let demand = pool.demand(preparation);
    demand.starting += 1;
    demand.waited = Duration::ZERO;
    let surplus = (pool.idle.len() >= MOST_IDLE).then(|| pool.idle.remove(0));
    drop(pool);
    drop(surplus);
    let claim = Claim {
        preparation,
        has_started: false,
    };
    (claim, None)
}

/// Lets a control plane wait for the next test.
pub(super) fn keep(shared: Shared) {
    let mut pool = pool();
    pool.idle.push(shared);
    let surplus = (pool.idle.len() > MOST_IDLE).then(|| pool.idle.remove(0));
    drop(pool);
    drop(surplus);
}

impl Pool {
    fn demand(&mut self, preparation: &str) -> &mut Demand {
        let demand = self
            .demands
            .entry(preparation.to_owned())
            .or_insert_with(Demand::new);
        demand.count();
        demand
    }
}

impl Demand {
    fn new() -> Demand {
        Demand {
            starting: 0,
            used: 0,
            waiting: 0,
            waited: Duration::ZERO,
            counted: Instant::now(),
        }
    }

    /// Counts the time since the last change. During a start, another one would not end earlier.
    fn count(&mut self) {
        let now = Instant::now();
        if self.starting == 0 {
            self.waited += (now - self.counted) * self.waiting;
        }
        self.counted = now;
    }

    fn is_met_soon(&self) -> bool {
        self.starting > 0 || self.used > 0 && self.waited < LONGEST_WAIT
    }
}

impl Claim<'_> {
    /// Reports that the control plane has started.
    pub(super) fn started(&mut self) {
        if !replace(&mut self.has_started, true) {
            change(self.preparation, |demand| {
                demand.starting -= 1;
                demand.used += 1;
            });
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        change(self.preparation, |demand| {
            if self.has_started {
                demand.used -= 1;
            } else {
                demand.starting -= 1;
            }
        });
    }
}
