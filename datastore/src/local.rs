//! The embedded datastore: one SQLite file that many processes share.
//!
//! A read batch is one read transaction, and a list of writes is one write transaction. A
//! transaction that another process blocks is retried until the deadline. A committed transaction
//! survives a power failure.
//!
//! Read `schema` first, then `file`, which opens or creates the database, then `pairs` and `store`.

mod error;
mod file;
mod pairs;
mod schema;
mod store;

pub use store::Local;
