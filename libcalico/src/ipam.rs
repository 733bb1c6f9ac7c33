//! IP address management: the stored objects and the rules that operate on them.
//!
//! Three objects describe an allocated address:
//!
//! * The *block* records the allocated ordinals, and for each the handle and attributes, for
//!   example the pod and node.
//! * The *affinity* assigns the block to an owner, for example a node.
//! * The *handle* counts in each block the addresses of one container, tunnel, virtual machine or
//!   Service.
//!
//! Without transactions, the objects are written one after the other. Upstream's programs
//! understand every intermediate state of this order (IPAM-221):
//!
//! * To allocate, write the handle, then the block. To release, write the block, then the handle.
//!   After an interruption, the handle therefore counts too many addresses, not too few.
//! * To claim a block, write the affinity as pending, create the block, confirm the affinity.
//! * To give a block up, write the affinity as pendingDeletion, delete the block or clear its
//!   affinity, delete the affinity.
//!
//! Read [`Block`] and [`Handle`] first: the operations on one object. [`choose_pools`],
//! [`usable_block`] and [`borrow_order`] follow in the order of an allocation. [`assess()`] decides
//! whether an address is in use, [`audit()`] reports contradictions, [`usage()`] counts, and `gc`
//! selects what to release.

mod address_pool;
mod adoption;
mod affinity;
mod any_of;
mod audit;
mod block;
mod block_search;
mod borrowed;
mod config;
#[cfg(feature = "gc")]
pub mod gc;
#[cfg(test)]
mod golden;
mod gorand;
mod handle;
mod holder;
mod leak;
mod pod_state;
mod pool;
mod pool_choice;
mod pool_room;
mod pool_split;
pub mod report;
mod reservation;
mod survey;
mod tunnels;
mod usage;
mod utilization;

pub use address_pool::{AddressRefusal, AddressRules, pool_of_address};
pub use adoption::{
    Adoption, AdoptionInputs, Claim, Claimant, ContainerEvidence, Statement, foreign_interface,
    plan_adoption, prove_container,
};
pub use affinity::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, BlockAffinity, LOAD_BALANCER_HOST,
};
pub(crate) use affinity::{ROOT as AFFINITY_ROOT, WITHOUT_LABELS};
pub use any_of::{
    ANY_OF, AnyOf, Candidate, Candidates, Obstacle, Unavailable, candidates, list_for_caller,
    list_for_log,
};
pub use audit::{
    AddressOwner, AllocatedAddress, AuditedEndpoint, Finding, HandleRepair, Inventory,
    OwnedAddress, Owners, PackedAllocation, PackedBlock, PackedEndpoint, PackedHandle, Pods,
    SuspectHandle, allocation_time, audit, pod_in_use_reason, repair,
};
pub use block::{
    Allocation, AssignError, Attribute, Block, BlockRequest, BlockTooLarge, CorruptBlock,
    MAX_BLOCK_CAPACITY, OldHandle, OwnerSlot, RecordedOwner, ReleaseError, ReleaseRequest,
    Released, Repaired, WINDOWS_RESERVED_HANDLE,
};
pub use block_search::{
    BlockWalk, RoomOf, UsableBlock, borrow_order, conflicting_range, usable_block,
};
pub use config::{DEFAULT_BLOCK_LIMIT, IpamConfig, IpamConfigKey};
pub use gorand::GoRand;
pub use handle::{Handle, HandleError, HandleId, load_balancer_handle};
pub use holder::Holder;
pub use leak::{
    AddressInPod, AllocationOwner, EndedPod, InUseReason, LeakReason, Lookup, OwnerFacts,
    OwnerKind, OwnerPodsLookup, Verdict, VmiLookup, assess,
};
pub use pod_state::{NETWORK_STATUS, PodState, PodView, ReportedAddresses};
pub use pool::{Pool, PoolRejection, RejectedPool, any_pool_of, enabled_pool};
pub use pool_choice::{
    Labels, NamedPools, NoPool, PoolChoice, PoolChoiceError, PoolRequest, choose_pools,
    rejection_by_namespace, stale_blocks,
};
pub use pool_room::{BlockRoom, PoolRoom, pool_room};
pub use reservation::{MalformedReservation, Reservations};
pub use survey::{BlockSummary, ListedBlock, RECLAIM_AFTER, Room};
pub use tunnels::{Tunnel, tunnels_of};
pub use usage::{
    FamilyCount, Fragmentation, FragmentedBlock, FragmentedBy, FullestNode, NamespaceUsage,
    NodeUsage, PodsFit, PoolService, PoolUsage, Usage, UsageInput, exact_number, usage,
};
pub use utilization::{BlockUse, PoolUse, Utilization, utilization};

pub use borrowed::{BorrowedAddress, Borrowings, borrowed};
pub use pool_split::split;
