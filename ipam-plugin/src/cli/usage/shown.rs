//! [`ShownUsage`]: the document of `usage`, from which the tables are printed too.

use libcalico::ipam::{
    Borrowings, FamilyCount, Fragmentation, NamespaceUsage, NodeUsage, PodsFit, PoolUsage, Usage,
};
use serde::Serialize;

/// The parts of the use that the arguments select.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownUsage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pools: Option<Vec<PoolUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outside_pools: Option<FamilyCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nodes: Option<Vec<NodeUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) without_node: Option<FamilyCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespaces: Option<Vec<NamespaceUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) borrowed: Option<Borrowings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fragmented: Option<Fragmentation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fits: Option<Vec<PodsFit>>,
    pub(super) node_selectors_considered: bool,
    pub(super) corrupt_blocks: u64,
}

impl ShownUsage {
    pub(super) fn new(all: Usage, node_selectors_considered: bool) -> Self {
        ShownUsage {
            pools: Some(all.pools),
            outside_pools: Some(all.outside_pools),
            nodes: Some(all.nodes),
            without_node: Some(all.without_node),
            namespaces: Some(all.namespaces),
            borrowed: Some(all.borrowed),
            fragmented: Some(all.fragmented),
            fits: Some(all.fits),
            node_selectors_considered,
            corrupt_blocks: all.corrupt_blocks,
        }
    }
}
