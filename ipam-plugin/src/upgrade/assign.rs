//! Assigns an address in one pass of the migration. [`UpgradeError`]: the error of a failed pass.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use libcalico::kubernetes::PodCidrError;
use libcalico::store::{Store, StoreError};

use crate::alloc::inputs::AllocationInputs;
use crate::alloc::one_address::assign_address;
use crate::alloc::request::AssignRequest;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::lock::LockError;

/// Number of attempts of a write that loses races. `PAUSE` is the time between two attempts.
pub(super) const TRIES: u32 = 5;
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// The error of a failed pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpgradeError {
    /// An error of the datastore.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address could not be assigned.
    #[error("cannot give {ip} to Calico: {cause}")]
    Address {
        /// The address.
        ip: IpAddr,
        /// The error from assigning it.
        cause: IpamError,
    },
    /// The node has no range for a tunnel address.
    #[error(transparent)]
    PodCidr(#[from] PodCidrError),
    /// A file or directory cannot be accessed.
    #[error("{path}: {cause}")]
    File {
        /// The path.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// host-local has the lock.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Assigns an address, and succeeds if it is assigned already, usually by an earlier pass.
pub(super) async fn assign_unless_assigned<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    ip: IpAddr,
) -> Result<(), UpgradeError> {
    let inputs = AllocationInputs::read(store, &request.inputs_query()).await?;
    match assign_address(store, clock, request, ip, inputs).await {
        Ok(_) => Ok(()),
        Err(IpamError::AlreadyAssigned { holder, .. }) => {
            tracing::warn!(%ip, %holder, "the address is assigned already");
            Ok(())
        }
        Err(cause) => Err(UpgradeError::Address { ip, cause }),
    }
}

/// Returns attributes of an allocation.
pub(super) fn attributes_of<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}
