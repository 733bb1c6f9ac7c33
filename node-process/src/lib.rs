//! The process of a plugin on a node: arguments and input, result and exit status, log, environment
//! variables and the name of the node. `calico`, `calico-ipam` and the installer share it;
//! kube-controllers uses the format of log lines, the help about environment variables, the HTTP
//! server and the declaration of metrics.

pub mod http_server;
pub mod logging;
pub mod metrics;
pub mod node_name;
pub mod process;

/// Lock by which tests that start processes and tests that rotate a log file never run at the same
/// time: between fork and exec a child process shares the lock of a rotation.
#[cfg(test)]
static FORKS: std::sync::Mutex<()> = std::sync::Mutex::new(());
