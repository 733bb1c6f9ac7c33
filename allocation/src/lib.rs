//! Assigns and releases addresses in a datastore. The plugins, the installer and kube-controllers
//! call it.
//!
//! ```text
//! AssignRequest ──────────────────────────────────────┐
//! Store ─▶ AllocationInputs (1 read) ─▶ blocks (1 read) ┴▶ plan (pure) ─▶ write list ─▶ addresses
//! ```
//!
//! Most operations are loops of *read, plan, write*. The plan is a function of the objects read.
//! The write is a list of compare-and-swaps. If only the first few of them are applied, upstream
//! understands the stored state (IPAM-221), and the next plan can continue from it.
//!
//! Read `alloc` for an allocation and `release` for a release.

pub mod affinity;
pub mod alloc;
pub mod block_writes;
pub mod busy;
pub mod cluster_state;
pub mod error;
pub mod exhausted;
mod handle_refs;
mod hint_file;
pub mod journal;
pub mod node_cleanup;
pub mod own_node;
#[cfg(test)]
mod races;
pub mod reads;
pub mod release;
pub mod retry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod vmi;
pub mod write_gate;
