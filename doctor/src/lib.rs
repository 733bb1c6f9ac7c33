//! `calico doctor`: finds problems of this node's installation and suggests a remedy for each.
//!
//! ```text
//! node, API server ─ collect ─▶ NodeSnapshot ─ checks (pure) ─▶ DoctorReport ─▶ text or JSON
//!                                                                            ─▶ exit status
//! ```
//!
//! The doctor changes nothing, except that [`repair`] removes dead interfaces before the
//! examination. [`collect()`] makes a snapshot without judging it, and [`checks`] judge only the
//! snapshot.

pub mod checks;
mod collect;
mod network_managers;
mod report;
pub mod role;
mod snapshot;

pub use collect::collect;
pub use report::{DoctorReport, Format};

use std::path::Path;

use libcalico::ipam::Statement;
use netconf::NetConf;

use dataplane::host_network::{HostNetwork, NetworkError};
use installation::dead_interfaces::{Repair, Sources, repair_once};
use installation::layout::Layout;

/// The interfaces that a repair removed or kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repairs(Vec<Repair>);

/// Examines the node that `layout` describes. `net_dir` is the path of the configuration directory
/// on the node.
pub async fn examine(layout: &Layout, net_dir: &str, network: &dyn HostNetwork) -> DoctorReport {
    let snapshot = collect(layout, net_dir, network).await;
    let node = snapshot
        .node
        .as_ref()
        .and_then(|node| node.name.clone().ok())
        .unwrap_or_default();
    DoctorReport {
        node,
        findings: checks::run_all(&snapshot),
        repairs: None,
    }
}

/// Removes the interfaces of ended containers, after two looks at the node that are 60 s apart,
/// except those whose pods IPAM does not name. `runtime_socket` is the socket of the container
/// runtime; `None` selects each usual socket that exists. `announce` gets the number of dead
/// interfaces before the wait.
///
/// # Errors
/// Returns an error if the kernel does not list interfaces, routes or processes.
pub async fn repair(
    layout: &Layout,
    net_dir: &str,
    network: &dyn HostNetwork,
    runtime_socket: Option<&Path>,
    announce: impl FnOnce(usize),
) -> Result<Repairs, NetworkError> {
    let conf: Statement<NetConf> = collect::read_conf(layout, net_dir);
    repair_once(
        Sources {
            network,
            conf: &conf,
            runtime_socket,
        },
        announce,
    )
    .await
    .map(Repairs)
}
