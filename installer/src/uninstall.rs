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
//! Steps 1 and 2 need files that later steps remove, so a failure of these steps ends the run.
//!
//! An installed file is removed only if it is still the recorded one, or if the installer renews
//! its content, as that of the kubeconfig. Other installed files stay and are reported. Without
//! `--yes` nothing is changed.

mod address_users;
mod addresses;
mod chained_plugins;
mod files;
mod other_files;
mod plan;
mod preconditions;
mod report;
mod run;

pub use plan::Options;
pub use run::run;
