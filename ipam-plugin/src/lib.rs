//! Address management: allocation and release over a datastore, and the CNI plugin `calico-ipam`.
//!
//! ```text
//! netconf::Call ─▶ IpamCall ─▶ AssignRequest ─┐
//!                                             ├▶ plan (pure) ─▶ write list ─▶ addresses ─▶ CNI result
//! Store ─▶ Prelude (1 read) ─▶ blocks (1 read)┘
//! ```
//!
//! Every operation is a loop of *read, plan, write*: the plan is a function of what was read, the write is a list of
//! compare-and-swaps in an order whose every prefix upstream understands (IPAM-221), and losing a race means to read
//! again and plan anew. So a crash leaves only states that the next plan knows how to go on from.

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
