//! Converts between the interface of a call and the node's network.

use std::path::Path;

use libcalico::api::WorkloadEndpoint;
use libcalico::store::Store;
use libcalico::workload::Orchestrator;
use netconf::CniError;

use super::config::{
    CreateError, CreateResult, CreatedInterface, InterfaceConfig, LinkSettings, NewInterface,
};
use crate::cni_error::{dataplane_error, netns_error};
use dataplane::{
    ConflictReason, DataplaneError, EndpointPlan, ExistingInterface, HostLinkProof, MacAddr,
    PodNetwork, PriorInterface, Removal, TeardownTarget,
};

/// The endpoint that the datastore contains for the interface to be removed.
#[derive(Debug, Clone, Copy)]
pub enum RecordedEndpoint<'a> {
    /// The endpoint of the interface.
    Found(&'a WorkloadEndpoint),
    /// The datastore contains no endpoint of the interface.
    Missing,
    /// The endpoint could not be read.
    Unknown,
    /// The endpoint of another interface of the container. The host's end belongs to that
    /// interface, because its name does not depend on the interface in the container.
    OtherInterface,
}

/// Creates the interface in `netns`, or in CNI_NETNS if `netns` is `None`.
pub(super) fn create<N: PodNetwork>(
    config: &InterfaceConfig<'_>,
    network: &N,
    netns: Option<&N::Netns>,
    new: NewInterface<'_>,
) -> CreateResult {
    let assigned = new.assigned;
    let host_routes = config.has_host_routes(&assigned.result);
    let plan = EndpointPlan {
        host_routes,
        replaces_idle_routes: assigned.is_recorded,
        // Felix creates the host route, and would take it from the other pod. IPAM may have no
        // record of that pod, or was not asked (`ipAddrsNoIpam`). A pod whose own route Felix has
        // not created yet is not found.
        refuses_addresses_of_pods: !host_routes && !new.has_vmi,
        ..config.plan(&assigned.addresses, new.link, new.prior)
    };
    match netns {
        Some(netns) => run_setup(network, &plan, netns),
        None => {
            let netns = network.open_netns(Path::new(&config.call.netns));
            run_setup(network, &plan, &netns.map_err(netns_error)?)
        }
    }
}

impl InterfaceConfig<'_> {
    /// Returns true if neither end of the interface of `endpoint` exists. An interface without a
    /// name cannot be looked up, and an interface of a gRPC dataplane cannot be inspected: both
    /// count as existing.
    pub fn is_missing<N: PodNetwork>(
        &self,
        network: &N,
        netns: &N::Netns,
        endpoint: &WorkloadEndpoint,
    ) -> Result<bool, CniError> {
        let host_ifname = &endpoint.spec.interface_name;
        if self.grpc_socket().is_some() || host_ifname.is_empty() {
            return Ok(false);
        }
        network
            .is_absent(host_ifname, &self.call.ifname, netns)
            .map_err(dataplane_error)
    }

    /// Creates the interface of an endpoint again after [`is_missing`](Self::is_missing), with the
    /// addresses of the endpoint and, if it is valid, the MAC address.
    pub fn restore<N: PodNetwork>(
        &self,
        network: &N,
        netns: &N::Netns,
        endpoint: &WorkloadEndpoint,
        mtu: u32,
        prior: PriorInterface,
    ) -> CreateResult {
        let (host_ifname, addresses) = endpoint.spec.host_link();
        let mac = endpoint
            .spec
            .mac
            .parse()
            .ok()
            .filter(MacAddr::is_assignable);
        let plan = EndpointPlan {
            host_ifname,
            ..self.plan(&addresses, LinkSettings { mtu, mac }, prior)
        };
        let created = run_setup(network, &plan, netns)?;
        let CreatedInterface {
            host_ifname, mac, ..
        } = &created;
        tracing::info!(
            host_interface = %host_ifname, container_mac = %mac,
            "created both ends of an endpoint's interface again, because neither existed"
        );
        Ok(created)
    }

    /// Returns true if the host interface that DEL would find by its name belongs to another
    /// attachment of the container. A runtime also deletes interfaces whose ADD failed.
    pub fn is_of_another_interface(&self, network: &impl PodNetwork) -> Result<bool, CniError> {
        if self.grpc_socket().is_some() {
            return Ok(false);
        }
        // The file may be a namespace of another type, which is as good as none.
        let netns = network
            .open_netns(Path::new(&self.call.netns))
            .ok()
            .filter(|netns| network.can_enter(netns));
        let found = self.find_existing(network, PriorInterface::Unknown, netns.as_ref())?;
        let ExistingInterface::Conflicting(found) = found else {
            return Ok(false);
        };
        Ok(matches!(found.reason, ConflictReason::OtherInterface(_)))
    }
}

fn run_setup<N: PodNetwork>(network: &N, plan: &EndpointPlan, netns: &N::Netns) -> CreateResult {
    let pair = network.set_up(plan, netns).map_err(|error| match error {
        DataplaneError::BusyRoute(busy) => CreateError::BusyRoute(busy),
        error @ DataplaneError::PairNotDeleted { .. } => {
            CreateError::Unknown(dataplane_error(error))
        }
        other => CreateError::Other(dataplane_error(other)),
    })?;
    for stage in &pair.stages {
        tracing::debug!(
            stage = stage.name,
            took_us = stage.took.as_micros() as u64,
            "dataplane stage ended"
        );
    }
    let (host_ifname, mac) = (pair.host_ifname, pair.container_mac.to_string());
    let mtu = if plan.mtu == 0 { 0 } else { pair.mtu };
    Ok(CreatedInterface {
        host_ifname,
        host_index: Some(pair.host_index),
        mac,
        mtu,
        has_host_prefixes: true,
    })
}

/// Begins to delete the interface; keeps an interface that is not proved to be this attachment's.
pub(super) async fn remove<N: PodNetwork>(
    config: &InterfaceConfig<'_>,
    network: &N,
    store: &impl Store,
    recorded: RecordedEndpoint<'_>,
) -> Result<N::Removal, CniError> {
    let call = config.call;
    let (host_ifname, addresses) = match recorded {
        RecordedEndpoint::Found(endpoint) => endpoint.spec.host_link(),
        RecordedEndpoint::Missing
        | RecordedEndpoint::Unknown
        | RecordedEndpoint::OtherInterface => Default::default(),
    };
    let proof = match (&config.workload.orchestrator, recorded) {
        (_, RecordedEndpoint::OtherInterface) => HostLinkProof::OtherInterface,
        // The name is derived from the ID of this container, independent of the name of its
        // interface.
        (Orchestrator::Cni(_), RecordedEndpoint::Unknown) => HostLinkProof::NameUnlessPeerInPod,
        (Orchestrator::Cni(_), _) => HostLinkProof::Name,
        // The name is derived from the pod, so the interface may already belong to the pod's next
        // sandbox.
        (Orchestrator::Kubernetes(_), _) if addresses.is_empty() => HostLinkProof::Absent,
        (Orchestrator::Kubernetes(_), _) => HostLinkProof::RouteTo(addresses),
    };
    let target = TeardownTarget {
        netns: (!call.netns.is_empty()).then(|| call.netns.clone().into()),
        container_ifname: call.ifname.clone(),
        host_ifname: if host_ifname.is_empty() {
            config.host_ifname()
        } else {
            host_ifname
        },
        container_id: Some(call.container_id.clone()),
        proof,
    };
    let removal = network
        .start_removal(target.clone())
        .map_err(dataplane_error)?;
    let Some(unproven) = removal.unproven() else {
        return Ok(removal);
    };
    if !Box::pin(config.is_allocated_to_pod(store, unproven)).await {
        return Ok(removal);
    }
    let proof = HostLinkProof::Index(unproven.index);
    network
        .start_removal(TeardownTarget { proof, ..target })
        .map_err(dataplane_error)
}
