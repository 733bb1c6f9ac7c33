//! What other processes and broken connections do between any two requests of an operation. Upstream's race tests
//! (ipam.md 9.4), and every crash window of 4.6, with and without transactions.

mod faults;
mod interleavings;
mod protocol;
