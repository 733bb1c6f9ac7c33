//! Changes by other processes and broken connections between any two requests of an operation.
//! These are upstream's race tests and crash windows of the allocation protocol.
//!
//! Read `interleavings` first, then `protocol`, then `faults`.

mod block_sizes;
mod faults;
mod foreign_answers;
mod interleavings;
mod protocol;
