//! Makes the changes of a release, each as a compare-and-swap against the objects read.

use datastore::Datastore;
use libcalico::ipam::{Block, ReleaseRequest, Repaired};
use libcalico::store::{Store, StoreError};

use super::step::{BlockRepair, HandleFix, ReleaseChange};
use crate::cli::error::CliError;
use crate::clock::SystemClock;
use crate::error::IpamError;
use crate::exhausted::Releasing;
use crate::release::handle_repair::repair_unwatched_handles;
use crate::release::release_addresses;
use crate::write_gate::OpenGate;

/// The outcome of a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChangeOutcome {
    /// The change was made.
    Applied,
    /// The objects have changed since they were read, as the text describes.
    Refused(String),
}

/// Makes the change.
pub(super) async fn execute(store: &Datastore, change: ReleaseChange) -> Result<ChangeOutcome, CliError> {
    let _releasing = Releasing::here();
    match change {
        ReleaseChange::Release { request, .. } => release_address(store, &request).await,
        ReleaseChange::Handle(fix) => fix_handle(store, fix).await,
        ReleaseChange::Block(repair) => store_block(store, *repair).await,
    }
}

/// Releases an address if its handle and sequence number still match the request.
async fn release_address(store: &Datastore, request: &ReleaseRequest) -> Result<ChangeOutcome, CliError> {
    match release_addresses(store, &SystemClock::start(), std::slice::from_ref(request)).await {
        Ok(outcome) if outcome.released.is_empty() => {
            Ok(ChangeOutcome::Refused("it was released by another just now".into()))
        }
        Ok(_) => Ok(ChangeOutcome::Applied),
        Err(IpamError::Release(changed)) => Ok(ChangeOutcome::Refused(changed.to_string())),
        Err(IpamError::Corrupt(corrupt)) => Ok(ChangeOutcome::Refused(corrupt.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Stores a handle's counts, unless the handle or its blocks have changed.
async fn fix_handle(store: &Datastore, fix: HandleFix) -> Result<ChangeOutcome, CliError> {
    let repaired = repair_unwatched_handles(store, &OpenGate, &[fix.suspect]).await?;
    match repaired.failed.into_iter().next() {
        Some((_, error)) => Err(error.into()),
        None if repaired.left.is_empty() => Ok(ChangeOutcome::Applied),
        None => {
            let reason = "it or a block of it was changed by another just now, or is corrupt";
            Ok(ChangeOutcome::Refused(reason.into()))
        }
    }
}

/// Stores a repaired block, unless the block has changed.
async fn store_block(store: &Datastore, repair: BlockRepair) -> Result<ChangeOutcome, CliError> {
    let BlockRepair { read, repaired: Repaired { mut block, .. } } = repair;
    block.count_write();
    match store.update::<Block>(&read.key, &block, &read.revision).await {
        Ok(_) => Ok(ChangeOutcome::Applied),
        Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {
            Ok(ChangeOutcome::Refused("it was changed by another just now".into()))
        }
        Err(error) => Err(error.into()),
    }
}
