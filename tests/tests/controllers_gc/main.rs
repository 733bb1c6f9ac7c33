//! Garbage collection on real servers.

mod blocks;
mod claims;
mod flannel;
mod killed;
mod lab;
mod leaks;
mod nodes;
mod pools;
mod requests;
mod reused;
mod swallowed;
mod telling;
mod virtual_machines;


// The tests of a datastore start one after another. The last of them, of virtual machines, change
// definitions, so no other test can use their control planes.
