//! [`Snapshot`]: the objects that an operation has read so far. [`MissingReads`]: the objects that its plan needs next.
//!
//! [`state`] has the snapshot and its queries, and records the operation's own writes. [`read`] and [`survey`] fill it
//! from the datastore.

mod read;
mod state;
mod survey;

pub(crate) use self::read::MissingReads;
pub(crate) use self::state::{BlockRead, Snapshot};
