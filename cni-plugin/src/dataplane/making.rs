//! [`Making`]: keeps apart the ADDs that make an interface and the calls that take one away.
//!
//! Between the creation of a pair and the note on its host end nothing says whose the pair is. ADDs share a lock during that
//! time, and any number of them work at once. A call that would take away an interface without alias has the lock alone: such an
//! interface then is of another program, or was left by an ADD that was killed.

use std::path::Path;

use ipam_plugin::lock::{HostLock, LONGEST_WAIT, LockError};

use super::DataplaneError;

/// The lock file, gone when the node starts anew as interfaces are.
const LOCK: &str = "/var/run/calico/interfaces.lock";

/// The lock as far as it is held; dropping it lets others go on.
#[derive(Debug)]
pub(super) struct Making {
    lock: Option<HostLock>,
}

impl Making {
    /// To be held from before the creation until the host end has its alias. An ADD without the lock is as good as any that
    /// nobody disturbs.
    pub(super) fn start() -> Self {
        let lock = HostLock::share_within(Path::new(LOCK), LONGEST_WAIT);
        Making { lock: lock.inspect_err(|error| tracing::warn!(%error, "making the interface without the lock")).ok() }
    }

    /// To be held by a call that takes `ifname` away. Waits until no ADD is between creation and alias.
    pub(super) fn nobody(ifname: &str) -> Result<Self, DataplaneError> {
        let mut making = Making { lock: None };
        making.alone(ifname)?;
        Ok(making)
    }

    /// The same, for an ADD that found `ifname` in its way.
    pub(super) fn alone(&mut self, ifname: &str) -> Result<(), DataplaneError> {
        // Given up first: two that wait for each other's share would wait for ever.
        self.lock = None;
        self.lock = match HostLock::acquire_within(Path::new(LOCK), LONGEST_WAIT) {
            Ok(lock) => Some(lock),
            Err(source @ LockError::Busy { .. }) => {
                return Err(DataplaneError::Making { ifname: ifname.to_owned(), source });
            }
            Err(error) => {
                tracing::warn!(%error, interface = ifname, "taking the interface away without the lock");
                None
            }
        };
        Ok(())
    }
}
