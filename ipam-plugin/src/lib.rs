//! The CNI plugin `calico-ipam`, and its commands for people.
//!
//! ```text
//! netconf::Call ─▶ IpamRequest ─▶ allocation::AssignRequest ─▶ addresses ─▶ CNI result
//! ```
//!
//! Read `cni` first; `cli` contains the commands. The crate `allocation` assigns and releases.

mod adopt;
pub mod busy_server;
pub mod cli;
pub mod cni;
pub mod cri;
pub mod datastore_settings;
pub mod kubernetes_api;
mod pod_lookup;
pub mod run;
mod upgrade;
