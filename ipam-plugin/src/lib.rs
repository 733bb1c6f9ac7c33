//! Assigns and releases addresses in a datastore, and implements the CNI plugin `calico-ipam`.
//!
//! ```text
//! netconf::Call ─▶ IpamRequest ─▶ AssignRequest ────────┐
//! Store ─▶ AllocationInputs (1 read) ─▶ blocks (1 read) ┤
//!                                                       └▶ plan (pure) ─▶ write list
//!                                                          ─▶ addresses ─▶ CNI result
//! ```
//!
//! Most operations are loops of *read, plan, write*. The plan is a function of the objects read.
//! The write is a list of compare-and-swaps. If only the first few of them are applied, upstream
//! understands the stored state (IPAM-221), and the next plan can continue from it.
//!
//! Read `cni` first, then `alloc` for an allocation and `release` for a release. `cli` contains the
//! commands for operators.

mod adopt;
pub mod affinity;
pub mod alloc;
pub mod block_writes;
pub mod busy;
pub mod busy_server;
pub mod cli;
pub mod cluster_state;
pub mod cni;
pub mod cri;
pub mod datastore_settings;
pub mod error;
pub mod exhausted;
mod handle_refs;
mod hint_file;
pub mod host_link;
pub mod journal;
pub mod kubernetes_api;
pub mod lock;
pub mod node_cleanup;
pub mod own_node;
mod pod_lookup;
#[cfg(test)]
mod races;
pub mod reads;
pub mod release;
pub mod retry;
pub mod run;
#[cfg(test)]
mod testing;
mod upgrade;
pub mod vmi;
pub mod write_gate;
