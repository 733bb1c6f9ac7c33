//! The installer: `calico install`, the node agent, `calico uninstall` and `calico doctor`.
//!
//! ```text
//! environment ─▶ Settings ─┐
//!                          ├▶ binaries ─▶ kubeconfig ─▶ node, cluster ─▶ conflist
//! command line ─▶ Layout ──┘                                  (tried, then renamed into place)
//! ```
//!
//! The configuration comes last, because the runtime reports the node's network as ready as soon as
//! it exists (INST-7). Every file is replaced by one rename ([`os::atomic_file`]), so an
//! interrupted run leaves it as it was or complete. Read [`install`] first, then the modules in the
//! order of the diagram, then [`agent`].

pub mod agent;
pub mod binaries;
pub mod cluster;
pub mod command_line;
pub mod config_trial;
pub mod conflist;
mod dead_interfaces;
pub mod digest;
pub mod directory_access;
pub mod doctor;
mod environment;
mod former;
mod found;
pub mod install;
pub mod kubeconfig;
pub mod layout;
pub mod mtu;
pub mod node_conf;
pub mod nodename;
pub mod plugin_chain;
mod pod_endpoints;
pub mod service_account;
pub mod settings;
pub mod state;
mod supported_versions;
pub mod template;
pub mod tls_assets;
pub mod token;
pub mod uninstall;
mod version_run;
