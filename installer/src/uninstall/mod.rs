//! `calico uninstall`: removes the installed files from a node.
//!
//! ```text
//! state, digests on disk ─ plan (pure) ─▶ 0 blockers are reported, and nothing is changed
//!                                         1 the configuration is renamed, so no new pod uses it
//!                                         2 interfaces, then addresses, if requested
//!                                         3 programs, kubeconfig, TLS files
//!                                         4 the renamed configuration, the state
//!                            report ◀─────┘
//! ```
//!
//! Each step needs files that later steps remove, so a failed step ends the run.
//!
//! A file is removed only if it is recorded in the state and still has the recorded digest. All others stay and are
//! reported. Without `--yes` nothing is changed.

mod address_users;
mod addresses;
mod chained_plugins;
mod files;
mod interfaces;
mod other_files;
mod plan;
mod preconditions;
mod release_error;
mod report;
mod run;

pub use plan::Options;
pub use run::run;
