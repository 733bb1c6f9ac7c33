//! Releases of addresses.
//!
//! `by_handle` serves a DEL. `by_address` releases a few given addresses, and `in_batches` many
//! addresses of given blocks. `missing_blocks` prevents late creations of missing blocks;
//! `handle_repair` corrects the counts of handles.

mod by_address;
mod by_handle;
pub mod handle_repair;
mod in_batches;
mod missing_blocks;
mod unlisted;

pub use self::by_address::{ReleasedAddresses, release_addresses};
pub use self::by_handle::{
    HandleRead, HandleRelease, HandleWrite, PendingRelease, ReadHandles, ReleaseInputs,
    ReleasedHandles, release,
};

pub use self::in_batches::{ReleasedBatch, Requests, release_batch, release_from_blocks};
pub use self::unlisted::{AddressToRelease, Unlisted, addresses_to_release, still_allocated};
