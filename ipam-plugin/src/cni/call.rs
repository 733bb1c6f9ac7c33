//! [`IpamCall`]: one call of the plugin, decoded: what `calico-ipam` takes from its environment and configuration, and
//! what `calico` fills in from a pod's annotations.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::ipam::HandleId;
use time::OffsetDateTime;

use crate::prelude::PreludeQuery;
use crate::request::{AssignRequest, Namespace, workload_attributes};

/// A call of the IPAM plugin for one container.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamCall {
    /// The network's name.
    pub network: String,
    /// The container.
    pub container_id: String,
    /// The node that asks.
    pub node: String,
    /// The pod; `None` outside Kubernetes.
    pub pod: Option<Pod>,
    /// Whether an IPv4 address is wanted.
    pub assign_ipv4: bool,
    /// Whether an IPv6 address is wanted.
    pub assign_ipv6: bool,
    /// Names or CIDRs of the IPv4 pools to take from, in order of preference.
    pub ipv4_pools: Vec<String>,
    /// The same for IPv6.
    pub ipv6_pools: Vec<String>,
    /// The address asked for with `IP=` in CNI_ARGS.
    pub ip: Option<IpAddr>,
}

/// Which pod a container is of.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Its namespace, with the labels that pools' namespace selectors look at.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
}

impl IpamCall {
    /// The handle of the container (IPAM-22).
    pub fn handle(&self) -> HandleId {
        HandleId::for_container(&self.network, &self.container_id)
    }

    /// The handle that releases before v3 gave the same container; released on DEL (IPAM-23).
    pub fn legacy_handle(&self) -> HandleId {
        match &self.pod {
            Some(pod) => HandleId::new(format!("{}.{}", pod.namespace.name, pod.name)),
            None => HandleId::new(&self.container_id),
        }
    }

    /// What an ADD has to read first.
    pub fn prelude_query(&self) -> PreludeQuery {
        PreludeQuery::workload(&self.node, self.handle())
    }

    /// The call as a request for addresses.
    pub fn assign_request(&self, now: OffsetDateTime) -> AssignRequest {
        AssignRequest {
            attributes: self.attributes(now),
            num4: usize::from(self.assign_ipv4),
            num6: usize::from(self.assign_ipv6),
            pools4: self.ipv4_pools.clone(),
            pools6: self.ipv6_pools.clone(),
            namespace: self.pod.as_ref().map(|pod| pod.namespace.clone()),
            all_or_nothing: true,
            ..AssignRequest::workload(self.handle(), &self.node)
        }
    }

    /// What is stored with each address.
    pub fn attributes(&self, now: OffsetDateTime) -> BTreeMap<String, String> {
        let pod = self.pod.as_ref().map(|pod| (pod.namespace.name.as_str(), pod.name.as_str()));
        workload_attributes(&self.node, pod, now)
    }
}
