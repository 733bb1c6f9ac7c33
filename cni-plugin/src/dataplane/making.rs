//! [`Making`]: a lock that separates ADDs that create an interface from calls that remove one.
//!
//! Between the creation of a pair and the alias of its host end, the owner of the pair is unknown. ADDs share the lock
//! during that time, so that any number of them can run at once. A call that is about to remove an interface without an
//! alias takes the lock exclusively: such an interface then belongs to another program, or an ADD that was killed left
//! it.

use std::path::Path;

use ipam_plugin::lock::{HostLock, LONGEST_WAIT, LockError};

use super::DataplaneError;

/// The lock file. It disappears when the node restarts, as the interfaces do.
const LOCK: &str = "/var/run/calico/interfaces.lock";

/// The lock, if it was available. Dropping this value releases the lock.
#[derive(Debug)]
pub(super) struct Making {
    lock: Option<HostLock>,
}

impl Making {
    /// Takes the shared lock. An ADD holds it from before the creation until the host end has its alias. Without the
    /// lock the ADD continues: it only risks that another call removes the new interface.
    pub(super) fn start() -> Self {
        let lock = HostLock::share_within(Path::new(LOCK), LONGEST_WAIT);
        Making { lock: lock.inspect_err(|error| tracing::warn!(%error, "making the interface without the lock")).ok() }
    }

    /// Takes the exclusive lock, for a call that removes `ifname`. Waits until no ADD is between creation and alias.
    pub(super) fn nobody(ifname: &str) -> Result<Self, DataplaneError> {
        let mut making = Making { lock: None };
        making.alone(ifname)?;
        Ok(making)
    }

    /// Takes the exclusive lock instead of the shared one, for an ADD whose interface name `ifname` is in use.
    pub(super) fn alone(&mut self, ifname: &str) -> Result<(), DataplaneError> {
        // Release the shared lock first: two ADDs that wait for each other's shared lock would never continue.
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
