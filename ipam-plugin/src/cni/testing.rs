//! For tests: a call of the plugin.

use std::collections::BTreeSet;

use os::node_files::NodeFiles;

use super::IpamRequest;

/// Returns a runtime's call for a container of `node1` outside Kubernetes, for one IPv4 address.
pub(crate) fn call(container: &str) -> IpamRequest {
    IpamRequest {
        files: NodeFiles::of_this_node(),
        network: "net".into(),
        container_id: container.into(),
        node: "node1".into(),
        pod: None,
        vmi: None,
        assign_ipv4: true,
        assign_ipv6: false,
        ipv4_pools: Vec::new(),
        ipv6_pools: Vec::new(),
        restricted: BTreeSet::new(),
        node_selected: BTreeSet::new(),
        ip: None,
        any_of: None,
        predecessor: None,
        max_blocks: 0,
        lock_file: None,
        recent_file: None,
        busy_file: None,
        exhausted_file: None,
        labels_marker: None,
    }
}
