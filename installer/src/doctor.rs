//! `calico doctor`: what is wrong with this node's installation, and the way out.
//!
//! ```text
//! node, API server ─ gather ─▶ Facts ─ checks (pure) ─▶ Report ─▶ text or JSON, exit status
//! ```
//!
//! Nothing is changed. [`gather()`] looks, and says nothing about what is good; [`checks`] judges, and looks nowhere.

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

/// Looks at the node that `layout` shows, and judges. `net_dir` is the configuration directory on the node.
pub async fn examine(layout: &Layout, net_dir: &str, network: &dyn HostNetwork) -> Report {
    let facts = gather(layout, net_dir, network).await;
    let node = facts.node.as_ref().and_then(|node| node.name.clone().ok()).unwrap_or_default();
    Report { node, findings: checks::all(&facts) }
}
