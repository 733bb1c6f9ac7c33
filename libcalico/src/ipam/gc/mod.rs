//! Garbage collection: an index of a cluster in little memory, and the decisions about the addresses, blocks, handles
//! and affinities to release.
//!
//! Watches keep an [`Index`] up to date. [`Index::examine`] checks the addresses that changed, and those whose grace
//! period has elapsed. [`Index::suspects`] returns the confirmed leaks. [`Suspect::revalidate`] decides about each of
//! them again, by the same rules ([`crate::ipam::holding()`]), on facts just read from the API server. [`plan`] groups
//! the addresses to release by block, and the caller reports the outcome of each release to the index.
//!
//! Times are [`std::time::Duration`]s since a fixed start of a monotonic clock. The index does not record which
//! watches are complete. Do not query it before all of them are.
//!
//! Read `index` first, then `examine` with `judge` and `leaks`, then `suspect`. `balance`, `claims`, `handles` and
//! `conflicts` look for other inconsistencies.

mod balance;
mod claims;
mod conflicts;
mod examine;
mod handles;
mod index;
mod judge;
mod leaks;
mod numbers;
mod rows;
mod suspect;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod verify;
mod watchlist;

pub use balance::{GoneNode, Surrender};
pub use claims::UnfinishedClaims;
pub use conflicts::{Conflict, Rival, rival};
pub use examine::{Change, ChangeKind, Scope};
pub use handles::OrphanHandles;
pub use index::{Feed, Index, Machines, PoolNumbers, Settings, UnreadableBlock};
pub use numbers::{Reclaimed, Sample};
pub use suspect::{Decision, Holder, LiveFacts, Plan, Questions, Suspect, plan, still_leaked};
pub use watchlist::Watchlist;
