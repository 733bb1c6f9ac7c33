//! [`Status`]: the readiness of the process, by [`Component`], for probes over HTTP and through a
//! file that `check-status` reads.
//!
//! Upstream's `check-status -l` equals `-r`, so kubelet restarts a healthy process when the API
//! server is unreachable for a minute. With `STATUS_LIVENESS=heartbeat`, the process writes
//! heartbeats to the file, and `-l` tests only these.

pub mod check;
mod file;
mod health;
#[cfg(test)]
mod tests;
mod watchdog;

pub use file::{Condition, FileError, StatusFile, default_file};
pub use health::watch_health;
pub use watchdog::Watchdog;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use node_process::logging::printable;
use tokio_util::sync::CancellationToken;

use file::Liveness;

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Age of the last heartbeat above which the process counts as hanging. Long enough for a slow disk
/// and a throttled processor.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(60);

/// The components that can be required for readiness. The first three are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// ClusterInformation was found in the datastore.
    Startup,
    /// The datastore responds.
    CalicoDatastore,
    /// The API server responds.
    KubeApiServer,
    /// The configuration has been read. Required until then.
    Configuration,
    /// Each watched kind that this process can list has been listed. Required until then.
    Lists,
    /// No work is stuck. Required while some work is stuck.
    Work,
    /// The roles of the enabled controllers. Always ready; listed, with the missing roles, while
    /// one is missing.
    Roles,
}

/// The readiness of the process. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct Status {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    state: Mutex<StatusFile>,
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Component::Startup => "Startup",
            Component::CalicoDatastore => "CalicoDatastore",
            Component::KubeApiServer => "KubeAPIServer",
            Component::Configuration => "KubeControllersConfiguration",
            Component::Lists => "Lists",
            Component::Work => "Work",
            Component::Roles => "Roles",
        })
    }
}

impl Status {
    /// Creates a status without required components. The file is not written before the first
    /// change.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Status {
            shared: Arc::new(Shared {
                path: path.into(),
                state: Mutex::default(),
            }),
        }
    }

    /// Adds these components to those required. Each counts as not ready until [`Status::ready`].
    pub fn require<const N: usize>(&self, components: [Component; N]) {
        let unready = || Condition {
            ready: false,
            reason: "initialized to false".into(),
        };
        self.change(|file| {
            file.readiness
                .extend(components.map(|component| (component.to_string(), unready())));
            true
        });
    }

    /// Removes a component from those required, for example when `HEALTH_ENABLED` is turned off.
    pub fn remove(&self, component: Component) {
        self.change(|file| file.readiness.remove(&component.to_string()).is_some());
    }

    /// Records that the component is ready.
    pub fn ready(&self, component: Component) {
        self.ready_with_note(component, String::new());
    }

    /// Records that the component is ready, with a text that `/readyz` shows.
    pub fn ready_with_note(&self, component: Component, note: String) {
        _ = self.set(
            component,
            Condition {
                ready: true,
                reason: note,
            },
        );
    }

    /// Records that the component is not ready, for a reason that `check-status` prints. Returns
    /// false if the same was recorded before.
    pub fn not_ready(&self, component: Component, reason: impl Into<String>) -> bool {
        let reason = printable::line(&reason.into()).into_owned();
        self.set(
            component,
            Condition {
                ready: false,
                reason,
            },
        )
    }

    /// Returns true if no work was stuck at the last check of the watchdog.
    pub fn is_live(&self) -> bool {
        !self
            .state()
            .readiness
            .contains_key(&Component::Work.to_string())
    }

    /// Returns true if at least one component is required and all required components are ready.
    pub fn is_ready(&self) -> bool {
        self.state().is_ready()
    }

    /// Returns the required components, by name.
    pub fn readiness(&self) -> BTreeMap<String, Condition> {
        self.state().readiness.clone()
    }

    fn set(&self, component: Component, condition: Condition) -> bool {
        self.change(|file| {
            let is_same = file.readiness.get(&component.to_string()) == Some(&condition);
            file.readiness.insert(component.to_string(), condition);
            !is_same
        })
    }

    /// Applies `change` to the status, and returns the result of `change`. Writes the file only if
    /// the result is true, so that an unchanged status does not touch the file.
    fn change(&self, change: impl FnOnce(&mut StatusFile) -> bool) -> bool {
        let mut state = self.state();
        let is_new = change(&mut state);
        if is_new && let Err(error) = state.write(&self.shared.path) {
            tracing::warn!("the probes may read an outdated status: {error}");
        }
        is_new
    }

    fn state(&self) -> MutexGuard<'_, StatusFile> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes heartbeats until `stop`, but none while work is stuck. Runs on the same runtime as the
/// controllers, so it stops when the runtime hangs.
pub async fn write_heartbeats(status: Status, stop: CancellationToken) {
    loop {
        if status.is_live() {
            status.change(|file| {
                file.liveness = Some(Liveness {
                    heartbeat: since_boot(),
                });
                true
            });
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
        }
    }
}

fn since_boot() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| Duration::from(time).as_secs())
}
