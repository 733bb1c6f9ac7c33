//! [`Snapshot`]: the objects that an operation has read so far. [`MissingReads`]: the objects that its plan needs next.
//!
//! [`state`] has the snapshot and its queries. [`read`] and [`survey`] fill it from the datastore, and [`record`] adds
//! the operation's own writes.

mod missing_reads;
mod read;
mod record;
mod state;
mod survey;

pub(crate) use self::missing_reads::MissingReads;
pub(crate) use self::state::{BlockRead, Snapshot};
