//! The process of a plugin on a node: arguments and input, result and exit status, log, environment variables and the
//! name of the node. `calico`, `calico-ipam` and the installer's agent share it; kube-controllers uses the parts for
//! environment variables and versions.

pub mod logging;
pub mod node_name;
pub mod process;

/// Excludes tests that start processes from tests that rotate a log file: between fork and exec a child shares the lock
/// of a rotation.
#[cfg(test)]
static FORKS: std::sync::Mutex<()> = std::sync::Mutex::new(());
