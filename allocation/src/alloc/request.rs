//! [`AssignRequest`]: a request for addresses from the pools.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::AllowedUse;
use libcalico::ipam::{AddressRules, AffinityOwner, HandleId, Labels, NamedPools, Reservations};
use libcalico::net::{Cidr, IpVersion};
use time::OffsetDateTime;

use crate::alloc::inputs::InputsQuery;
use crate::alloc::predecessor::Predecessor;
use crate::exhausted::SearchNotes;

/// A request for addresses from the pools.
#[derive(Debug, Clone)]
pub struct AssignRequest {
    /// The handle under which the addresses are allocated.
    pub handle: HandleId,
    /// The node that requests the addresses.
    pub node: String,
    /// Attributes that are stored with each address.
    pub attributes: BTreeMap<String, String>,
    /// Number of IPv4 addresses.
    pub num4: usize,
    /// Number of IPv6 addresses.
    pub num6: usize,
    /// Names or CIDRs of the IPv4 pools to assign from. Their order counts only for a new block and
    /// for borrowing: the node's own blocks in any of them come first. Empty: all pools that permit
    /// the request.
    pub pools4: Vec<String>,
    /// Names or CIDRs of the IPv6 pools, as for `pools4`.
    pub pools6: Vec<String>,
    /// Families whose pools or address come from the pod's annotations, if annotations are
    /// restricted to values that the pod's namespace may have.
    pub restricted: BTreeSet<IpVersion>,
    /// Families whose named pools must select the node.
    pub node_selected: BTreeSet<IpVersion>,
    /// True if a requested address is from a pod's list, so that the pool's namespace selector must
    /// match.
    pub by_list: bool,
    /// The pod's namespace; `None` outside Kubernetes, where selectors match against no labels
    /// (IPAM-96).
    pub namespace: Option<Namespace>,
    /// The intended use of the addresses.
    pub purpose: AllowedUse,
    /// Maximum number of blocks of a family that the node may own in the chosen pools, if the
    /// cluster's setting is not lower; 0 is no limit of the request (IPAM-103).
    pub max_blocks: usize,
    /// Maximum number of addresses per family under the handle; 0 is no limit. At the limit, the
    /// request returns addresses that are already allocated, or fails if these are too few
    /// (IPAM-115).
    pub max_per_handle: usize,
    /// Whether to assign no address at all if a family gets fewer addresses than requested.
    pub all_or_nothing: bool,
    /// The previous owner of a requested address, from which the address passes to this request.
    pub predecessor: Option<Predecessor>,
    /// The block of a requested address that a running workload uses already. Then any pool that
    /// contains the address will do, and strict affinity does not apply.
    pub already_used: Option<Cidr>,
    /// Addresses that are assigned only if there is no other.
    pub skipped: BTreeSet<IpAddr>,
    /// Recent searches of this node that found no free address.
    pub notes: SearchNotes,
}

/// A namespace, as the namespace selectors of pools match it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespace {
    /// The name, for messages.
    pub name: String,
    /// The labels.
    pub labels: Labels,
}

impl AssignRequest {
    /// Creates a request for one IPv4 address of a workload.
    pub fn workload(handle: HandleId, node: impl Into<String>) -> Self {
        AssignRequest {
            handle,
            node: node.into(),
            attributes: BTreeMap::new(),
            num4: 1,
            num6: 0,
            pools4: Vec::new(),
            pools6: Vec::new(),
            restricted: BTreeSet::new(),
            node_selected: BTreeSet::new(),
            by_list: false,
            namespace: None,
            purpose: AllowedUse::Workload,
            max_blocks: 0,
            max_per_handle: 0,
            all_or_nothing: false,
            predecessor: None,
            already_used: None,
            skipped: BTreeSet::new(),
            notes: SearchNotes::default(),
        }
    }

    /// Returns the number of requested addresses of a family.
    pub fn wanted(&self, version: IpVersion) -> usize {
        match version {
            IpVersion::V4 => self.num4,
            IpVersion::V6 => self.num6,
        }
    }

    /// Returns the requested pools of a family.
    pub fn pools(&self, version: IpVersion) -> &[String] {
        match version {
            IpVersion::V4 => &self.pools4,
            IpVersion::V6 => &self.pools6,
        }
    }

    /// Returns the selectors that count for named pools of a family.
    pub(crate) fn named_pools(&self, version: IpVersion) -> NamedPools {
        NamedPools {
            by_namespace: self.restricted.contains(&version),
            by_node: self.node_selected.contains(&version),
        }
    }

    /// Returns the criteria for the pool of a requested address. `reserved` are the reservations of
    /// the cluster.
    pub(crate) fn address_rules<'a>(
        &'a self,
        version: IpVersion,
        reserved: &'a Reservations,
    ) -> AddressRules<'a> {
        let is_restricted = self.restricted.contains(&version);
        AddressRules {
            purpose: self.purpose,
            namespace: self.selected_namespace(),
            by_namespace: is_restricted || self.by_list,
            reserved: is_restricted.then_some(reserved),
        }
    }

    pub(crate) fn selected_namespace(&self) -> Option<(&str, &Labels)> {
        self.namespace
            .as_ref()
            .map(|namespace| (namespace.name.as_str(), &namespace.labels))
    }

    /// Returns the query for the first read.
    pub fn inputs_query(&self) -> InputsQuery {
        InputsQuery {
            owner: self.owner(),
            ..InputsQuery::workload(&self.node, self.handle.clone())
        }
    }

    /// Returns the owner of the blocks that are claimed for this request.
    pub fn owner(&self) -> AffinityOwner {
        owner_for(self.purpose, &self.node)
    }
}

/// Returns the owner of new blocks. Blocks for load balancers have a virtual owner instead of a node (IPAM-97).
pub fn owner_for(purpose: AllowedUse, node: &str) -> AffinityOwner {
    match purpose {
        AllowedUse::LoadBalancer => AffinityOwner::Virtual("load-balancer".into()),
        AllowedUse::Workload | AllowedUse::Tunnel => AffinityOwner::Host(node.into()),
    }
}

/// Returns the attributes that the plugin stores with each address (IPAM-27).
pub fn workload_attributes(
    node: &str,
    pod: Option<(&str, &str)>,
    now: OffsetDateTime,
) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::from([
        ("node".to_owned(), node.to_owned()),
        ("timestamp".to_owned(), go_time(now)),
    ]);
    if let Some((namespace, name)) = pod {
        attributes.insert("namespace".into(), namespace.into());
        attributes.insert("pod".into(), name.into());
    }
    attributes
}

/// Returns the time in Go's default format for UTC, for example
/// `2026-08-22 01:02:03.1234 +0000 UTC` (IPAM-28).
pub fn go_time(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let (hour, minute, second, nanos) = at.time().as_hms_nano();
    let mut fraction = if nanos == 0 {
        String::new()
    } else {
        format!(".{nanos:09}")
    };
    fraction.truncate(fraction.trim_end_matches('0').len());
    format!(
        "{} {hour:02}:{minute:02}:{second:02}{fraction} +0000 UTC",
        at.date()
    )
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn go_time_formats_as_go_prints() {
        assert_eq!(
            go_time(datetime!(2026-08-22 01:02:03.1234 UTC)),
            "2026-08-22 01:02:03.1234 +0000 UTC"
        );
        assert_eq!(
            go_time(datetime!(2026-08-22 01:02:03 UTC)),
            "2026-08-22 01:02:03 +0000 UTC"
        );
        assert_eq!(
            go_time(datetime!(2026-08-22 03:02:03.000000001 +2)),
            "2026-08-22 01:02:03.000000001 +0000 UTC"
        );
    }

    #[test]
    fn pod_attributes_are_recorded_only_for_a_kubernetes_pod() {
        let now = datetime!(2026-08-22 01:02:03 UTC);
        let plain = workload_attributes("node1", None, now);
        assert_eq!(plain.keys().collect::<Vec<_>>(), ["node", "timestamp"]);
        let pod = workload_attributes("node1", Some(("default", "web")), now);
        assert_eq!(
            (pod["namespace"].as_str(), pod["pod"].as_str()),
            ("default", "web")
        );
    }

    #[test]
    fn load_balancer_blocks_have_a_virtual_owner() {
        assert_eq!(
            owner_for(AllowedUse::LoadBalancer, "node1"),
            AffinityOwner::Virtual("load-balancer".into())
        );
        assert_eq!(
            owner_for(AllowedUse::Workload, "node1"),
            AffinityOwner::Host("node1".into())
        );
    }
}
