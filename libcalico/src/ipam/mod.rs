//! Address management: the stored objects and the algebra over them.
//!
//! An address is owned when three objects agree: the *block* that says which ordinals are taken and by whom, the
//! *affinity* that says which node the block belongs to, and the *handle* that says in which blocks a container holds
//! addresses. They are written one after the other, in an order whose every intermediate state upstream understands
//! (IPAM-121, IPAM-128, IPAM-221):
//!
//! * allocate: handle, then block; release: block, then handle. So a handle's count is never below the truth.
//! * claim a block: affinity pending, block, affinity confirmed; give it up: affinity pendingDeletion, block, affinity.

mod affinity;
mod block;
mod config;
mod handle;

pub use affinity::{AffinityKey, AffinitySelect, AffinityState, BlockAffinity, Owner};
pub use block::{Attribute, Block};
pub use config::{IpamConfig, TheConfig};
pub use handle::{Handle, HandleId};
