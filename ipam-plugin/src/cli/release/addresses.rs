//! Releases one address.

use datastore::Datastore;
use libcalico::ipam::ReleaseRequest;

use crate::cli::error::CliError;
use crate::clock::SystemClock;
use crate::error::IpamError;
use crate::release::release_addresses;

/// Releases an address if its handle and sequence number still match the request. The inner error describes the
/// difference.
pub(super) async fn release(store: &Datastore, request: &ReleaseRequest) -> Result<Result<(), String>, CliError> {
    match release_addresses(store, &SystemClock::start(), std::slice::from_ref(request)).await {
        Ok(outcome) if outcome.released.is_empty() => Ok(Err("it was released by another just now".into())),
        Ok(_) => Ok(Ok(())),
        Err(IpamError::Release(changed)) => Ok(Err(changed.to_string())),
        Err(IpamError::Corrupt(corrupt)) => Ok(Err(corrupt.to_string())),
        Err(error) => Err(error.into()),
    }
}
