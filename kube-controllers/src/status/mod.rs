//! Whether the process is ready, as probes ask: over HTTP ([`crate::http`]) and through a file that `check-status`
//! reads.

pub mod check;
mod file;
mod health;
mod heartbeat;

pub use file::{Condition, FileError, StatusFile};
pub use health::watch_health;
pub use heartbeat::beat;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipam_plugin::logging::printable;

/// Where the file is unless `--status-file` says otherwise (KC-100).
pub const DEFAULT_FILE: &str = "/status/status.json";

/// What must be ready (KC-140).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The datastore has a ClusterInformation.
    Startup,
    /// The datastore answers.
    CalicoDatastore,
    /// The API server answers.
    KubeApiServer,
    /// The configuration was read. Required until then.
    Configuration,
    /// Each kind that controllers watch was listed once. Required until then.
    Lists,
    /// No work is stuck. Required while one is.
    Work,
}

/// What is ready. Cheap to clone; all clones are the same.
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
        })
    }
}

impl Status {
    /// Nothing is known yet, and the file is not written before something is.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Status { shared: Arc::new(Shared { path: path.into(), state: Mutex::default() }) }
    }

    /// From now on these components must be ready. None is before it says so.
    pub fn require<const N: usize>(&self, components: [Component; N]) {
        let unready = || Condition { ready: false, reason: "initialized to false".into() };
        self.change(|file| {
            file.readiness.extend(components.map(|component| (component.to_string(), unready())));
            true
        });
    }

    /// This component need not be ready any more, as when `HEALTH_ENABLED` was turned off (B-15).
    pub fn forget(&self, component: Component) {
        self.change(|file| file.readiness.remove(&component.to_string()).is_some());
    }

    /// The component is ready.
    pub fn ready(&self, component: Component) {
        _ = self.set(component, Condition { ready: true, reason: String::new() });
    }

    /// It is not, for a reason that `check-status` prints. Returns whether that is new.
    pub fn not_ready(&self, component: Component, reason: impl Into<String>) -> bool {
        let reason = printable::line(&reason.into()).into_owned();
        self.set(component, Condition { ready: false, reason })
    }

    /// Whether no work is stuck.
    pub fn is_live(&self) -> bool {
        !self.state().readiness.contains_key(&Component::Work.to_string())
    }

    /// Whether at least one component is required and all that are, are ready.
    pub fn is_ready(&self) -> bool {
        self.state().is_ready()
    }

    /// What is required, by name.
    pub fn readiness(&self) -> BTreeMap<String, Condition> {
        self.state().readiness.clone()
    }

    fn set(&self, component: Component, condition: Condition) -> bool {
        self.change(|file| {
            let same = file.readiness.get(&component.to_string()) == Some(&condition);
            file.readiness.insert(component.to_string(), condition);
            !same
        })
    }

    /// Writes the file if `change` says that something changed (KC-142). Returns whether it did.
    fn change(&self, change: impl FnOnce(&mut StatusFile) -> bool) -> bool {
        let mut state = self.state();
        let is_new = change(&mut state);
        if is_new && let Err(error) = state.write(&self.shared.path) {
            tracing::warn!("probes do not see the present status: {error}");
        }
        is_new
    }

    fn state(&self) -> MutexGuard<'_, StatusFile> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
