//! The lock that separates ADDs that create an interface from calls that remove an interface
//! without an alias.
//!
//! Between the creation of a pair and the alias of its host end, the owner of the pair is unknown.
//! ADDs share the lock during that time. A call that is about to remove an interface without an
//! alias takes the lock exclusively.
//!
//! A call that cannot use the lock file continues with `None` instead of the lock.

use std::path::Path;

use os::lock::{HostLock, LONGEST_WAIT, LockError};

use super::DataplaneError;

/// The lock file. It disappears when the node restarts, as the interfaces do.
const LOCK: &str = "/var/run/calico/interfaces.lock";

/// Takes the shared lock; returns `None` if this fails. An ADD holds the lock from before the
/// creation until the host end has its alias.
pub(super) fn share() -> Option<HostLock> {
    let lock = HostLock::acquire_shared_within(Path::new(LOCK), LONGEST_WAIT);
    lock.inspect_err(|error| {
        tracing::warn!(
            %error,
            "cannot lock the interfaces of this node; creating the interface unlocked",
        );
    })
    .ok()
}

/// Takes the exclusive lock, for a call that removes `ifname`; returns `None` if the lock file
/// cannot be used. An ADD must release its shared lock first: two ADDs that wait for each other's
/// shared lock would wait in vain.
pub(super) fn acquire(ifname: &str) -> Result<Option<HostLock>, DataplaneError> {
    match HostLock::acquire_within(Path::new(LOCK), LONGEST_WAIT) {
        Ok(lock) => Ok(Some(lock)),
        Err(source @ LockError::Busy { .. }) => Err(DataplaneError::LockBusy {
            ifname: ifname.to_owned(),
            source,
        }),
        Err(error) => {
            tracing::warn!(
                %error, interface = ifname,
                "cannot lock the interfaces of this node; examining the interface unlocked"
            );
            Ok(None)
        }
    }
}
