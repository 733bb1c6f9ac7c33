//! Address management: the stored objects and the algebra over them.
//!
//! An address is owned when three objects agree: the *block* that says which ordinals are taken and by whom, the
//! *affinity* that says which node the block belongs to, and the *handle* that says in which blocks a container holds
//! addresses. They are written one after the other, in an order whose every intermediate state upstream understands
//! (IPAM-121, IPAM-128, IPAM-221):
//!
//! * allocate: handle, then block; release: block, then handle. So a handle's count is never below the truth.
//! * claim a block: affinity pending, block, affinity confirmed; give it up: affinity pendingDeletion, block, affinity.
//!
//! The algebra: operations on one [`Block`] and one [`Handle`]; which pools serve a request ([`choose_pools`]); which
//! block comes next ([`usable_block`], [`borrow_order`], both along [`BlockWalk`]); what is reserved
//! ([`Reservations`]); what a search for room reads of all blocks ([`BlockGlance`]); how full pools are
//! ([`utilization()`]); whether an address is held ([`holding()`]), what is wrong ([`audit()`]) and what is collected
//! (`gc`).

mod affinity;
mod audit;
mod block;
mod blockwalk;
mod candidates;
mod config;
#[cfg(feature = "gc")]
pub mod gc;
#[cfg(test)]
mod golden;
mod gorand;
mod handle;
mod handle_repair;
mod holding;
mod old_handle;
mod pod_facts;
mod pool;
mod pool_choice;
mod refusal;
mod reservation;
mod stored_time;
mod survey;
mod tunnels;
mod utilization;

pub(crate) use affinity::WITHOUT_LABELS;
pub use affinity::{AffinityKey, AffinitySelect, AffinityState, BlockAffinity, Owner};
pub use audit::{EndpointFacts, Finding, HeldAddress, Inventory, Pods, audit, pod_keeper};
pub use block::{
    Allocation, AssignError, AssignRequest, Attribute, Block, BlockTooLarge, CorruptBlock, Holder, HostReserved,
    MAX_BLOCK_CAPACITY, OwnerSlot, ReleaseError, ReleaseRequest, Released, Repaired, WINDOWS_RESERVED_HANDLE,
};
pub use blockwalk::BlockWalk;
pub use candidates::{RECLAIM_AFTER, RoomOf, UsableBlock, borrow_order, usable_block};
pub use config::{IpamConfig, TheConfig};
pub use gorand::GoRand;
pub use handle::{Handle, HandleError, HandleId};
pub use handle_repair::{HandleRepair, SuspectHandle, repair};
pub use holding::{
    Claim, ClaimKind, Ended, Evidence, HolderFacts, Holding, Keeper, MachineSight, OwnerSight, PodSight, Sight, holding,
};
pub use old_handle::OldHandle;
pub use pod_facts::{NETWORK_STATUS, PodFacts, PodWords, ReportedAddresses};
pub use pool::{Pool, any_pool_of, enabled_pool};
pub use pool_choice::{
    Labels, NoPool, PoolChoice, PoolChoiceError, PoolRequest, choose_pools, refusal_by_namespace, stale_blocks,
};
pub use refusal::{Refusal, RefusedPool};
pub use reservation::{MalformedReservation, Reservations};
pub use survey::{BlockGlance, Room, Sighting};
pub use tunnels::{Tunnel, tunnels_of};
pub use utilization::{BlockUse, PoolUse, Utilization, utilization};
