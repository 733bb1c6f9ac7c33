//! Files, locks, child processes and the clock of a node. Imports no other crate of the workspace.

pub mod atomic_file;
pub mod child;
pub mod clock;
pub mod file_wait;
pub mod input_file;
pub mod lock;
pub mod node_files;
