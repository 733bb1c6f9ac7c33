//! Files, child processes and the clock of a node. Nothing here knows Calico or CNI, and no other crate of the
//! workspace is imported.

pub mod atomic_file;
pub mod child;
pub mod clock;
