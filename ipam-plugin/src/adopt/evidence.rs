//! [`NodeEvidence`]: the node's statements about the containers of its workloads.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::failure::Failure;
use libcalico::ipam::{ContainerEvidence, Statement, prove_container};
use libcalico::names::{InterfaceAlias, pod_interface};
use libcalico::net::Cidr;

use crate::cri::Sandbox;
use dataplane::host_link::{HostLink, HostLinks};

/// The node's interfaces and sandboxes, which no tenant writes.
#[derive(Debug)]
pub(crate) struct NodeEvidence<'a> {
    /// The network whose addresses are adopted.
    pub(crate) network: &'a str,
    /// The prefix of the names of pods' host interfaces.
    pub(crate) interface_prefix: &'a str,
    pub(crate) links: &'a dyn HostLinks,
    /// All sandboxes of the node that are ready.
    pub(crate) sandboxes: Statement<Vec<Sandbox>>,
}

/// A pod of the node.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodName<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// The UID in the API; empty if it is unknown.
    pub(super) uid: &'a str,
}

/// The endpoint that the datastore has for a workload.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredEndpoint<'a> {
    pub(super) container: &'a str,
    /// The host interface; empty if the endpoint names none.
    pub(super) interface: &'a str,
}

impl NodeEvidence<'_> {
    /// Returns the ID of the pod's container.
    pub(super) fn container_of_pod(
        &self,
        pod: PodName<'_>,
        endpoint: Option<StoredEndpoint<'_>>,
    ) -> Result<String, Failure> {
        let interface = self.interface_of_pod(pod, endpoint);
        prove_container(&ContainerEvidence {
            interface: &interface,
            expected: &InterfaceAlias::for_pod(self.network, pod.namespace, pod.name, ""),
            alias: self.alias_of(&interface),
            sandboxes: self.sandboxes_of(pod),
            endpoint: endpoint
                .map(|endpoint| endpoint.container)
                .filter(|container| !container.is_empty()),
        })
    }

    /// Returns true if the node has neither the interface nor a ready sandbox of the pod, as after
    /// its DEL.
    pub(super) fn is_gone(&self, pod: PodName<'_>, endpoint: Option<StoredEndpoint<'_>>) -> bool {
        let has_sandbox =
            matches!(self.sandboxes_of(pod), Statement::Known(sandboxes) if !sandboxes.is_empty());
        !has_sandbox
            && matches!(
                self.links.find(&self.interface_of_pod(pod, endpoint)),
                Ok(None)
            )
    }

    /// Returns the IDs of the pod's ready sandboxes. Two sockets may belong to the same runtime,
    /// which then lists each sandbox twice.
    fn sandboxes_of(&self, pod: PodName<'_>) -> Statement<Vec<String>> {
        let is_of_pod = |sandbox: &&Sandbox| {
            sandbox.namespace == pod.namespace
                && sandbox.pod == pod.name
                && (pod.uid.is_empty() || sandbox.uid == pod.uid)
        };
        match &self.sandboxes {
            Statement::Known(all) => {
                let ids: BTreeSet<&str> = all
                    .iter()
                    .filter(is_of_pod)
                    .map(|sandbox| sandbox.id.as_str())
                    .collect();
                Statement::Known(ids.into_iter().map(str::to_owned).collect())
            }
            Statement::Unknown(reason) => Statement::Unknown(reason.clone()),
        }
    }

    /// Returns the ID of a container that is not a pod, whose only evidence is its interface.
    pub(super) fn plain_container(&self, endpoint: StoredEndpoint<'_>) -> Result<String, Failure> {
        prove_container(&ContainerEvidence {
            interface: endpoint.interface,
            expected: &InterfaceAlias::for_container(endpoint.container),
            alias: self.alias_of(endpoint.interface),
            sandboxes: Statement::Known(Vec::new()),
            endpoint: Some(endpoint.container),
        })
    }

    /// Returns an error if the node has no route to `address` through the interface.
    pub(super) fn ensure_route(&self, interface: &str, address: IpAddr) -> Result<(), Failure> {
        if self.host_routes(interface).contains(&address) {
            return Ok(());
        }
        Err(Failure::new(format_args!(
            "the WorkloadEndpoint lists the address, but the node has no route to it through \
             interface {interface}"
        )))
    }

    /// Returns an error if the node has routes to addresses through the interface, but none to
    /// `address`. Felix may not have created the routes yet.
    pub(super) fn ensure_no_other_route(
        &self,
        interface: &str,
        address: IpAddr,
    ) -> Result<(), Failure> {
        let routes = self.host_routes(interface);
        if routes.is_empty() || routes.contains(&address) {
            return Ok(());
        }
        Err(Failure::new(format_args!(
            "the node routes other addresses to interface {interface}"
        ))
        .way_out("the pod's status may be outdated, adopt again"))
    }

    /// Returns the addresses that the node routes to the interface.
    fn host_routes(&self, interface: &str) -> Vec<IpAddr> {
        let link = self
            .links
            .find(interface)
            .ok()
            .flatten()
            .unwrap_or_default();
        let destinations = link
            .routes
            .iter()
            .filter_map(|route| Cidr::parse_or_host(route));
        destinations
            .filter(|destination| destination.size() == 1)
            .map(|destination| destination.network())
            .collect()
    }

    /// Returns the name of the pod's host interface.
    pub(super) fn interface_of_pod(
        &self,
        pod: PodName<'_>,
        endpoint: Option<StoredEndpoint<'_>>,
    ) -> String {
        let recorded = endpoint
            .map(|endpoint| endpoint.interface)
            .filter(|interface| !interface.is_empty());
        let usual = || pod_interface(self.interface_prefix, pod.namespace, pod.name);
        recorded.map_or_else(usual, str::to_owned)
    }

    fn alias_of(&self, interface: &str) -> Statement<InterfaceAlias> {
        match self.links.find(interface) {
            Ok(Some(HostLink {
                alias: Some(alias), ..
            })) => Statement::Known(alias),
            Ok(Some(_)) => {
                Statement::Unknown(format!("interface {interface} has no alias of this plugin"))
            }
            Ok(None) => Statement::Unknown(format!("interface {interface} does not exist")),
            Err(error) => Statement::Unknown(format!("interface {interface}: {error}")),
        }
    }
}
