//! Releases of addresses.
//!
//! `by_handle` serves a DEL: all addresses of the container's handles. `by_address` releases a few given addresses, and
//! `in_batches` many addresses of given blocks, through a gate. `missing_blocks` handles blocks that a handle counts
//! and that do not exist; `handle_repair` corrects handles that count too many or too few addresses.

mod by_address;
mod by_handle;
pub mod handle_repair;
mod in_batches;
mod listings;
mod missing_blocks;

pub use self::by_address::{ReleasedAddresses, release_addresses};
pub use self::by_handle::*;
pub(crate) use self::in_batches::release_from_blocks;
pub use self::in_batches::{ReleasedBatch, Requests, release_batch};
pub use self::listings::{AddressToRelease, Listings, NoListings, addresses_to_release, still_allocated};
