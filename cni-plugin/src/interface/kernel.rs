//! Converts between the interface of a call and [`crate::dataplane`], the kernel's dataplane.

use std::path::Path;

use datastore::Datastore;
use libcalico::api::WorkloadEndpoint;
use libcalico::workload::Orchestrator;
use netconf::CniError;

use super::config::{CreateError, CreatedInterface, InterfaceConfig, NewInterface};
use super::existing;
use crate::cni_error::{dataplane_error, netns_error};
use crate::dataplane::{
    self, ConflictReason, ConflictingInterface, DataplaneError, EndpointPlan, ExistingInterface, HostLinkProof,
    MacAddr, NetnsFd, PriorInterface, Teardown, TeardownTarget,
};

/// The endpoint in the datastore of the interface to be removed.
#[derive(Debug, Clone, Copy)]
pub enum RecordedEndpoint<'a> {
    /// The endpoint of the interface.
    Found(&'a WorkloadEndpoint),
    /// No endpoint.
    Missing,
    /// The endpoint could not be read.
    Unknown,
    /// The endpoint of another interface of the container. The host's end belongs to that interface, because its name
    /// does not depend on the interface in the container.
    OtherInterface,
}

/// Creates the interface in `netns`, or in CNI_NETNS if `netns` is `None`.
pub(super) fn create(
    config: InterfaceConfig<'_>,
    netns: Option<&NetnsFd>,
    new: NewInterface<'_>,
) -> Result<CreatedInterface, CreateError> {
    let assigned = new.assigned;
    let host_routes = config.has_host_routes(&assigned.result);
    let plan = EndpointPlan {
        container_mac: new.mac,
        host_routes,
        replaces_idle_routes: assigned.is_recorded,
        refuses_addresses_of_pods: !host_routes && assigned.is_recorded && !new.has_vmi,
        ..config.plan(&assigned.addresses, new.prior)?
    };
    match netns {
        Some(netns) => run_setup(&plan, netns),
        None => run_setup(&plan, &NetnsFd::open(Path::new(&config.call.netns)).map_err(netns_error)?),
    }
}

/// Returns true if neither end of the interface of `endpoint` exists. An interface without a name cannot be looked up,
/// and an interface of a gRPC dataplane cannot be inspected: both count as existing.
pub fn is_missing(config: InterfaceConfig<'_>, netns: &NetnsFd, endpoint: &WorkloadEndpoint) -> Result<bool, CniError> {
    let host_ifname = &endpoint.spec.interface_name;
    if config.grpc_socket().is_some() || host_ifname.is_empty() {
        return Ok(false);
    }
    dataplane::is_absent(host_ifname, &config.call.ifname, netns).map_err(dataplane_error)
}

/// Creates the interface of an endpoint again after [`is_missing`], with the addresses and the MAC address of the
/// endpoint. `prior` is the interface that has the name of the host's end.
pub fn restore(
    config: InterfaceConfig<'_>,
    netns: &NetnsFd,
    endpoint: &WorkloadEndpoint,
    prior: PriorInterface,
) -> Result<CreatedInterface, CreateError> {
    let (host_ifname, addresses) = endpoint.spec.host_link();
    let recorded_mac = endpoint.spec.mac.parse().ok().filter(MacAddr::is_assignable);
    let desired = config.plan(&addresses, prior)?;
    let created = run_setup(&EndpointPlan { host_ifname, container_mac: recorded_mac, ..desired }, netns)?;
    tracing::info!(
        interface = %created.host_ifname, mac = %created.mac,
        "created the missing interface of an endpoint again"
    );
    Ok(created)
}

fn run_setup(plan: &EndpointPlan, netns: &NetnsFd) -> Result<CreatedInterface, CreateError> {
    let pair = dataplane::setup(plan, netns).map_err(|error| match error {
        DataplaneError::BusyRoute(busy) => CreateError::BusyRoute(busy),
        error @ DataplaneError::PairNotDeleted { .. } => CreateError::Unknown(dataplane_error(error)),
        other => CreateError::Other(dataplane_error(other)),
    })?;
    for stage in &pair.stages {
        tracing::debug!(stage = stage.name, took_us = stage.took.as_micros() as u64, "dataplane stage ended");
    }
    Ok(CreatedInterface {
        host_ifname: pair.host_ifname,
        host_index: Some(pair.host_index),
        mac: pair.container_mac.to_string(),
        mtu: if plan.mtu == 0 { 0 } else { pair.mtu },
        has_host_prefixes: true,
    })
}

/// Cuts the container's traffic and begins to delete the interface.
pub(super) async fn remove(
    config: InterfaceConfig<'_>,
    store: &Datastore,
    recorded: RecordedEndpoint<'_>,
) -> Result<Teardown, CniError> {
    let call = config.call;
    let (host_ifname, addresses) = match recorded {
        RecordedEndpoint::Found(endpoint) => endpoint.spec.host_link(),
        RecordedEndpoint::Missing | RecordedEndpoint::Unknown | RecordedEndpoint::OtherInterface => Default::default(),
    };
    let proof = match (&config.workload.orchestrator, recorded) {
        (_, RecordedEndpoint::OtherInterface) => HostLinkProof::OtherInterface,
        // The name is derived from the ID of this container, independent of the name of its interface.
        (Orchestrator::Cni(_), RecordedEndpoint::Unknown) => HostLinkProof::NameUnlessPeerInPod,
        (Orchestrator::Cni(_), _) => HostLinkProof::Name,
        // The name is derived from the pod, so the interface may already belong to the pod's next sandbox.
        (Orchestrator::Kubernetes(_), _) if addresses.is_empty() => HostLinkProof::Absent,
        (Orchestrator::Kubernetes(_), _) => HostLinkProof::RouteTo(addresses),
    };
    let target = TeardownTarget {
        netns: (!call.netns.is_empty()).then(|| call.netns.clone().into()),
        container_ifname: call.ifname.clone(),
        host_ifname: if host_ifname.is_empty() { config.host_ifname() } else { host_ifname },
        container_id: Some(call.container_id.clone()),
        proof,
    };
    let teardown = Teardown::start(target.clone()).map_err(dataplane_error)?;
    let Some(unproven) = &teardown.unproven else { return Ok(teardown) };
    match Box::pin(existing::is_allocated_to_pod(config, store, unproven)).await {
        true => Teardown::start(TeardownTarget { proof: HostLinkProof::Index(unproven.index), ..target })
            .map_err(dataplane_error),
        false => Ok(teardown),
    }
}

/// Returns true if the host interface that DEL would find by its name belongs to another attachment of the pod: the
/// pod's end has another name, and no interface in the pod has the name to be deleted. This happens because a runtime
/// also deletes interfaces whose ADD failed. Returns false for a gRPC dataplane.
pub fn is_of_another_interface(config: InterfaceConfig<'_>) -> Result<bool, CniError> {
    if config.grpc_socket().is_some() {
        return Ok(false);
    }
    let netns = NetnsFd::open(Path::new(&config.call.netns)).ok();
    let existing = existing::find(config, PriorInterface::Unknown, netns.as_ref())?;
    Ok(matches!(
        existing,
        ExistingInterface::Conflicting(ConflictingInterface { reason: ConflictReason::OtherInterface(_), .. })
    ))
}
