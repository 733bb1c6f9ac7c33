//! `calico doctor`: finds problems of this node's installation and suggests a remedy for each.
//!
//! ```text
//! node, API server ─ collect ─▶ NodeSnapshot ─ checks (pure) ─▶ DoctorReport ─▶ text or JSON, exit status
//! ```
//!
//! The doctor changes nothing. [`collect()`] makes a snapshot without judging it, and [`checks`] judge only the
//! snapshot.

pub mod checks;
mod collect;
mod report;
pub mod role;
mod snapshot;

pub use collect::collect;
pub use report::{DoctorReport, Format};

use crate::host_network::HostNetwork;
use crate::layout::Layout;

/// Examines the node that `layout` describes. `net_dir` is the path of the configuration directory on the node.
pub async fn examine(layout: &Layout, net_dir: &str, network: &dyn HostNetwork) -> DoctorReport {
    let snapshot = collect(layout, net_dir, network).await;
    let node = snapshot.node.as_ref().and_then(|node| node.name.clone().ok()).unwrap_or_default();
    DoctorReport { node, findings: checks::run_all(&snapshot) }
}
