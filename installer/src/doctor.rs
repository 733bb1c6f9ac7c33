//! `calico doctor`: finds problems of this node's installation and suggests a remedy for each.
//!
//! ```text
//! node, API server ─ gather ─▶ Facts ─ checks (pure) ─▶ Report ─▶ text or JSON, exit status
//! ```
//!
//! The doctor changes nothing. [`gather()`] collects facts without judging them, and [`checks`] judges them without
//! further access to the node. Read `facts`, then `checks`.

pub mod checks;
mod facts;
mod finding;
mod gather;
mod report;
pub mod role;

pub use facts::{
    BlockCount, BusyAddress, Cache, Chosen, Cluster, Content, DatastoreKind, Facts, File, Granted, Holder, Lock,
    NodeName, Origin, PodInterface, Pool, Program, ProgramState, Setting, TlsFile, TokenFile,
};
pub use finding::{Finding, State};
pub use gather::gather;
pub use report::{Format, Report};

use crate::host_network::HostNetwork;
use crate::layout::Layout;

/// Examines the node that `layout` describes. `net_dir` is the path of the configuration directory on the node.
pub async fn examine(layout: &Layout, net_dir: &str, network: &dyn HostNetwork) -> Report {
    let facts = gather(layout, net_dir, network).await;
    let node = facts.node.as_ref().and_then(|node| node.name.clone().ok()).unwrap_or_default();
    Report { node, findings: checks::all(&facts) }
}
