//! An installation on a node, as the installer, the node agent and the doctor see it: its settings,
//! its directories and files, the credentials of the plugins, and the record of all of them.
//!
//! ```text
//! environment ─▶ settings ─┬▶ template ─▶ plugin_chain ─▶ conflist ─┐
//!                          ├▶ token ─▶ kubeconfig ──────────────────┼▶ state
//! layout ──────────────────┴▶ tls_assets, mtu ──────────────────────┘
//! ```
//!
//! Also finds the interfaces of ended containers ([`dead_interfaces`]), which the agent and the
//! doctor remove.

pub mod conflist;
pub mod dead_interfaces;
pub mod digest;
pub mod directory_access;
mod environment;
pub mod file_check;
pub mod former;
pub mod found;
pub mod kubeconfig;
pub mod layout;
pub mod mtu;
pub mod node_conf;
pub mod plugin_chain;
pub mod pod_endpoints;
pub mod service_account;
pub mod settings;
pub mod state;
pub mod supported_versions;
pub mod template;
pub mod tls_assets;
pub mod token;
pub mod version_run;
