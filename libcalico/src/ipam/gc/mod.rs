//! Garbage collection: what is known of a cluster in little memory, and what may go (KC-420..KC-466).
//!
//! Feeds tell an [`Index`] what is there. [`Index::examine`] judges what changed, and what has been without holder for long
//! enough; [`Index::suspects`] are the confirmed leaks. Each is judged once more on facts read fresh from the API
//! ([`Suspect::revalidate`]), by the same rules ([`crate::ipam::holding()`]), and what is left is grouped by block
//! ([`plan`]). Then the index is told what became of it.
//!
//! Time is a [`std::time::Duration`] since some start that never goes back. Nothing here knows when the feeds are complete:
//! whoever asks must not before they are.

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
pub use verify::Size;
pub use watchlist::Watchlist;
