//! Garbage collection: an index of a cluster in little memory, and the decisions about the
//! addresses, blocks, handles and affinities to release or repair.
//!
//! Watches keep an [`Index`] up to date. [`Index::examine`] checks the addresses that changed, and
//! [`Index::suspects`] returns confirmed leaks. [`Suspect::recheck`] decides about each of them
//! again on facts just read. [`plan`] groups the addresses to release by block.
//!
//! Times of type [`std::time::Duration`] count from a fixed start of a monotonic clock. Do not
//! query the index before all watches are complete.
//!
//! Read `index` first, then `examine` with `assess` and `leaks`, then `suspect`.

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
mod room;
mod rows;
mod suspect;
mod table;
#[cfg(test)]
mod tests;
mod thresholds;
#[cfg(test)]
mod verify;

pub use affinities::UnfinishedAffinities;
pub use block_reclaim::{DeletedNode, ExcessBlock, ExcessReason};
pub use conflicts::{Conflict, ConflictKind, conflict_kind};
pub use examine::{Change, ChangeKind, Scope};
pub use gauges::{Reclaimed, Sample};
pub use grace_tracker::GraceTracker;
pub use handles::OrphanHandles;
pub use index::{
    GcSettings, Index, NamedRoom, PoolShape, PoolSize, UnreadableBlock, VmiAvailability,
    WatchedKind,
};
pub use suspect::{
    CurrentFacts, Decision, Plan, RequiredLookups, Suspect, SuspectOwner, plan, still_leaked,
};
pub use thresholds::{Crossing, Thresholds};
