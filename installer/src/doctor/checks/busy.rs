//! Addresses that are free in IPAM, although a host route on the node leads to them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::leftovers::join_first;
use crate::doctor::finding::Finding;
use crate::doctor::snapshot::{BusyAddress, NodeSnapshot};

const NAME: &str = "busy addresses";

/// Returns a finding for free addresses with a host route: those that ADDs noted in the last minute, and those in the
/// kernel's routing table. An unreachable datastore is the subject of another finding.
pub(super) fn check(snapshot: &NodeSnapshot) -> Option<Finding> {
    let cluster = snapshot.cluster.as_ref().filter(|cluster| cluster.reached.is_ok());
    let (routed, reason) = match cluster.map(|cluster| &cluster.busy) {
        Some(Ok(routed)) => (&routed[..], None),
        Some(Err(reason)) => (&[][..], Some(reason.clone())),
        None if snapshot.noted.is_empty() => return None,
        None => (&[][..], None),
    };
    // A note wins over the routing table because it describes the route in more detail.
    let described = |busy: &BusyAddress| (busy.address, format!("{} (route {})", busy.address, busy.route));
    let busy: BTreeMap<IpAddr, String> = routed.iter().chain(&snapshot.noted).map(described).collect();
    let Some(first) = busy.keys().next() else {
        return Some(match reason {
            Some(reason) => Finding::skipped(NAME, reason),
            None => Finding::ok(NAME, "none: no host route leads to an address that IPAM has free"),
        });
    };
    let described: Vec<String> = busy.values().cloned().collect();
    Some(Finding::warn(
        NAME,
        format!(
            "{} addresses that IPAM may give to pods have a host route, and ADDs pass over them: {}",
            busy.len(),
            join_first(&described)
        ),
        format!(
            "if nobody uses the route, delete it: ip route delete {first}; else reserve the address with an \
             IPReservation; after a restore of the datastore: `calico-ipam check`"
        ),
    ))
}
