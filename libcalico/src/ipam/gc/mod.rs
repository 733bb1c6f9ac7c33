//! Garbage collection: an index of a cluster in little memory, and the decisions about the addresses, blocks, handles
//! and affinities to release.
//!
//! Watches keep an [`Index`] up to date. [`Index::examine`] checks the addresses that changed, and those whose grace
//! period has elapsed. [`Index::suspects`] returns confirmed leaks. [`Suspect::recheck`] decides about each of them
//! again, by the same rules ([`crate::ipam::assess()`]), on facts just read. [`plan`] groups the addresses to release
//! by block, and the caller reports the outcome of each release to the index.
//!
//! Times of type [`std::time::Duration`] count from a fixed start of a monotonic clock. The index does not record which
//! watches are complete. Do not query it before all of them are.
//!
//! Read `index` first, then `examine` with `assess` and `leaks`, then `suspect`. `block_reclaim` has the timers for the
//! release of blocks. `affinities`, `handles` and `conflicts` look for other inconsistencies.

mod affinities;
mod assess;
mod block_reclaim;
mod conflicts;
mod examine;
mod gauges;
mod grace_tracker;
mod handles;
mod index;
mod leaks;
mod rows;
mod suspect;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod verify;

pub use affinities::UnfinishedAffinities;
pub use block_reclaim::{DeletedNode, ExcessBlock};
pub use conflicts::{Conflict, ConflictKind, conflict_kind};
pub use examine::{Change, ChangeKind, Scope};
pub use gauges::{Reclaimed, Sample};
pub use grace_tracker::GraceTracker;
pub use handles::OrphanHandles;
pub use index::{GcSettings, Index, PoolSize, UnreadableBlock, VmiAvailability, WatchedKind};
pub use suspect::{CurrentFacts, Decision, Plan, RequiredLookups, Suspect, SuspectOwner, plan, still_leaked};
