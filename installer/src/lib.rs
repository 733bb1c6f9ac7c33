//! The installer: `calico install` and `calico uninstall`.
//!
//! ```text
//! environment ─▶ Settings ─┐
//!                          ├▶ binaries ─▶ kubeconfig ─▶ node, cluster ─▶ conflist
//! command line ─▶ Layout ──┘                                  (tried, then renamed into place)
//! ```
//!
//! The configuration comes last, because the runtime reports the node's network as ready as soon as
//! it exists (INST-7). Every file is replaced by one rename ([`os::atomic_file`]), so an
//! interrupted run leaves it as it was or complete. The crate [`installation`] has the parts of an
//! installation. Read [`install`] first, then the modules in the order of the diagram.

pub mod binaries;
pub mod cluster;
pub mod config_trial;
pub mod install;
pub mod nodename;
pub mod uninstall;
