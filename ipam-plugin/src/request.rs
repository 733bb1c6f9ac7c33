//! [`AssignRequest`]: what an allocation is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::AllowedUse;
use libcalico::ipam::{HandleId, Labels, Owner};
use libcalico::net::IpVersion;
use time::OffsetDateTime;

use crate::exhausted::Notes;
use crate::predecessor::Predecessor;
use crate::prelude::PreludeQuery;

/// A request for addresses out of the pools.
#[derive(Debug, Clone)]
pub struct AssignRequest {
    /// What will hold the addresses.
    pub handle: HandleId,
    /// The node that asks and will own new blocks.
    pub node: String,
    /// Stored with each address (IPAM-27).
    pub attributes: BTreeMap<String, String>,
    /// How many IPv4 addresses.
    pub num4: usize,
    /// How many IPv6 addresses.
    pub num6: usize,
    /// Names or CIDRs of the IPv4 pools to take from, in order of preference; empty: whichever select the node.
    pub pools4: Vec<String>,
    /// The same for IPv6.
    pub pools6: Vec<String>,
    /// Families whose pools or address the pod's annotations name, where these may name only what the namespace may
    /// have.
    pub restricted: BTreeSet<IpVersion>,
    /// The pod's namespace; `None` outside Kubernetes, where selectors see no labels (IPAM-96).
    pub namespace: Option<Namespace>,
    /// What the addresses are for.
    pub purpose: AllowedUse,
    /// Most blocks the node may own; 0 leaves it to the cluster's settings (IPAM-103).
    pub max_blocks: usize,
    /// Most addresses per family the handle may hold; 0 is no limit. At the limit the addresses that are held already
    /// are the answer (IPAM-115).
    pub max_per_handle: usize,
    /// Write nothing unless each family can be served in full.
    pub all_or_nothing: bool,
    /// The holder from whom an address that is asked for passes to this request.
    pub predecessor: Option<Predecessor>,
    /// Addresses that are taken only where there is no other.
    pub passed_over: BTreeSet<IpAddr>,
    /// Searches of this node that found no free address a moment ago.
    pub notes: Notes,
}

/// A namespace, as pools' namespace selectors see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Its name, for messages.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
}

impl AssignRequest {
    /// A request for one IPv4 address of a workload.
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
            namespace: None,
            purpose: AllowedUse::Workload,
            max_blocks: 0,
            max_per_handle: 0,
            all_or_nothing: false,
            predecessor: None,
            passed_over: BTreeSet::new(),
            notes: Notes::default(),
        }
    }

    /// How many addresses of a family.
    pub fn wanted(&self, version: IpVersion) -> usize {
        match version {
            IpVersion::V4 => self.num4,
            IpVersion::V6 => self.num6,
        }
    }

    /// The pools asked for of a family.
    pub fn pools(&self, version: IpVersion) -> &[String] {
        match version {
            IpVersion::V4 => &self.pools4,
            IpVersion::V6 => &self.pools6,
        }
    }

    /// The namespace's name and labels, as pools' selectors see them.
    pub(crate) fn selected_namespace(&self) -> Option<(&str, &Labels)> {
        self.namespace.as_ref().map(|namespace| (namespace.name.as_str(), &namespace.labels))
    }

    /// What has to be read first.
    pub fn prelude_query(&self) -> PreludeQuery {
        PreludeQuery {
            node: self.node.clone(),
            owner: self.owner(),
            handle: self.handle.clone(),
            reads_handle: true,
            may_lag: false,
            blocks: Vec::new(),
            blocks_since: None,
        }
    }

    /// Who owns the blocks claimed for this request (IPAM-97).
    pub fn owner(&self) -> Owner {
        owner_for(self.purpose, &self.node)
    }
}

/// Load balancer addresses belong to no node (IPAM-97).
pub(crate) fn owner_for(purpose: AllowedUse, node: &str) -> Owner {
    match purpose {
        AllowedUse::LoadBalancer => Owner::Virtual("load-balancer".into()),
        AllowedUse::Workload | AllowedUse::Tunnel => Owner::Host(node.into()),
    }
}

/// What the plugin stores with each address: the node, the time, and in Kubernetes the pod (IPAM-27).
pub fn workload_attributes(node: &str, pod: Option<(&str, &str)>, now: OffsetDateTime) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::from([("node".to_owned(), node.to_owned()), ("timestamp".to_owned(), go_time(now))]);
    if let Some((namespace, name)) = pod {
        attributes.insert("namespace".into(), namespace.into());
        attributes.insert("pod".into(), name.into());
    }
    attributes
}

/// Go's default text for a UTC time, `2026-08-22 01:02:03.1234 +0000 UTC` (IPAM-28).
pub fn go_time(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let (hour, minute, second, nanos) = at.time().as_hms_nano();
    let mut fraction = if nanos == 0 { String::new() } else { format!(".{nanos:09}") };
    fraction.truncate(fraction.trim_end_matches('0').len());
    format!("{} {hour:02}:{minute:02}:{second:02}{fraction} +0000 UTC", at.date())
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn times_are_written_as_go_writes_them() {
        assert_eq!(go_time(datetime!(2026-08-22 01:02:03.1234 UTC)), "2026-08-22 01:02:03.1234 +0000 UTC");
        assert_eq!(go_time(datetime!(2026-08-22 01:02:03 UTC)), "2026-08-22 01:02:03 +0000 UTC");
        assert_eq!(go_time(datetime!(2026-08-22 03:02:03.000000001 +2)), "2026-08-22 01:02:03.000000001 +0000 UTC");
    }

    #[test]
    fn pods_are_noted_only_in_kubernetes() {
        let now = datetime!(2026-08-22 01:02:03 UTC);
        let plain = workload_attributes("node1", None, now);
        assert_eq!(plain.keys().collect::<Vec<_>>(), ["node", "timestamp"]);
        let pod = workload_attributes("node1", Some(("default", "web")), now);
        assert_eq!((pod["namespace"].as_str(), pod["pod"].as_str()), ("default", "web"));
    }

    #[test]
    fn load_balancers_belong_to_no_node() {
        assert_eq!(owner_for(AllowedUse::LoadBalancer, "node1"), Owner::Virtual("load-balancer".into()));
        assert_eq!(owner_for(AllowedUse::Workload, "node1"), Owner::Host("node1".into()));
    }
}
