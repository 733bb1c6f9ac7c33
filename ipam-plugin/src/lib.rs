//! Assigns and releases addresses in a datastore, and implements the CNI plugin `calico-ipam`.
//!
//! ```text
//! netconf::Call ─▶ IpamRequest ─▶ AssignRequest ─┐
//!                                                ├▶ plan (pure) ─▶ write list ─▶ addresses ─▶ CNI result
//! Store ─▶ AllocationInputs (1 read) ─▶ blocks (1 read) ┘
//! ```
//!
//! Every operation is a loop of *read, plan, write*. The plan is a function of the objects read. The write is a list of
//! compare-and-swaps in an order of which upstream understands every prefix (IPAM-221). After a lost race, the
//! operation reads again and makes a new plan. A crash therefore leaves only states from which the next plan can
//! continue.
//!
//! Read `cni` first, then `alloc` for an allocation and `release` for a release. `cli` contains the commands for
//! operators.

pub mod affinity;
pub mod alloc;
mod block_writes;
#[cfg(feature = "plugin")]
pub mod busy;
#[cfg(feature = "plugin")]
pub mod busy_server;
#[cfg(feature = "plugin")]
pub mod cli;
#[cfg(feature = "plugin")]
pub mod cni;
#[cfg(feature = "plugin")]
pub mod datastore_settings;
pub mod error;
pub mod exhausted;
mod handle_refs;
mod hint_file;
#[cfg(feature = "plugin")]
pub mod host_link;
#[cfg(feature = "plugin")]
pub mod journal;
#[cfg(feature = "plugin")]
pub mod kubernetes_api;
pub mod lock;
pub mod node_cleanup;
#[cfg(feature = "plugin")]
pub mod own_node;
#[cfg(feature = "plugin")]
mod pod_lookup;
#[cfg(all(test, feature = "plugin"))]
mod races;
pub mod reads;
pub mod release;
pub mod retry;
#[cfg(feature = "plugin")]
pub mod run;
#[cfg(all(test, feature = "plugin"))]
mod testing;
#[cfg(feature = "plugin")]
mod upgrade;
#[cfg(feature = "plugin")]
pub mod vmi;
pub mod write_gate;
