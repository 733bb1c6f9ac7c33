//! Assigns and releases addresses in a datastore, and implements the CNI plugin `calico-ipam`.
//!
//! ```text
//! netconf::Call ─▶ IpamCall ─▶ AssignRequest ─┐
//!                                             ├▶ plan (pure) ─▶ write list ─▶ addresses ─▶ CNI result
//! Store ─▶ Prelude (1 read) ─▶ blocks (1 read)┘
//! ```
//!
//! Every operation is a loop of *read, plan, write*. The plan is a function of the objects read. The write is a list of
//! compare-and-swaps in an order of which upstream understands every prefix (IPAM-221). After a lost race, the
//! operation reads again and makes a new plan. A crash therefore leaves only states from which the next plan can
//! continue.
//!
//! Read `cni` and `request` first, then `prelude`, `assign`, `plan` and `commit` for an allocation, and `release` for a
//! release. `cli` contains the commands for operators.

pub mod affinity;
pub mod ahead;
pub mod assign;
pub mod assign_address;
mod assignment_log;
pub mod atomic_file;
pub mod budget;
pub mod busy;
pub mod busy_server;
pub mod cli;
pub mod clock;
pub mod cni;
mod commit;
pub mod datastore_settings;
mod early_handle;
pub mod ensure_block;
pub mod error;
pub mod exhausted;
pub mod forget_node;
mod gated;
mod handle_count;
pub mod host_link;
pub mod journal;
mod knowledge;
pub mod kubernetes_api;
pub mod kubevirt;
pub mod lock;
pub mod logging;
mod mend;
pub mod mend_handles;
pub mod node_name;
pub mod own_netns;
pub mod own_node;
mod plan;
pub mod predecessor;
pub mod prelude;
pub mod process;
#[cfg(test)]
mod races;
mod read_blocks;
mod recent;
pub mod release;
pub mod release_addresses;
pub mod request;
pub mod run;
pub mod security_label;
mod settle;
mod take;
#[cfg(test)]
mod testing;
mod undo;
mod upgrade;
pub mod variable;
mod workload;
