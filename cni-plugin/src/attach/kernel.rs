//! The kernel's dataplane: from the session to [`crate::dataplane`] and back.

use std::net::IpAddr;
use std::path::Path;

use libcalico::api::WorkloadEndpointSpec;
use libcalico::conversion::Orchestrator;
use netconf::CniError;

use super::{AttachError, Attachment, Recorded};
use crate::dataplane::{
    self, DataplaneError, Endpoint, EndpointPlan, Holder, HostLinkProof, MacAddr, NetnsFd, Occupant, Reason, Teardown,
};
use crate::endpoint_plan::{self, dataplane_error, netns_error};
use crate::host_interface;
use crate::ipam::Lease;
use crate::session::Session;

pub(super) fn attach(
    session: &Session,
    netns: Option<&NetnsFd>,
    lease: &Lease,
    mac: Option<MacAddr>,
) -> Result<Attachment, AttachError> {
    let host_routes = endpoint_plan::has_host_routes(session, &lease.result);
    let plan = EndpointPlan {
        container_mac: mac,
        host_routes,
        replaces_idle_routes: lease.is_kept,
        // A virtual machine's addresses may still lead to the pod that it comes from.
        refuses_addresses_of_pods: !host_routes && lease.is_kept && session.machine.is_none(),
        ..endpoint_plan::from_conf(session, &lease.addresses)?
    };
    match netns {
        Some(netns) => set_up(&plan, netns),
        None => set_up(&plan, &NetnsFd::open(Path::new(&session.call.netns)).map_err(netns_error)?),
    }
}

/// Whether neither end of an endpoint's interface exists.
pub(super) fn is_gone(session: &Session, netns: &NetnsFd, endpoint: &WorkloadEndpointSpec) -> Result<bool, CniError> {
    dataplane::is_absent(&endpoint.interface_name, &session.call.ifname, netns).map_err(dataplane_error)
}

/// Makes the interface that an endpoint records.
pub(super) fn remake(
    session: &Session,
    netns: &NetnsFd,
    endpoint: &WorkloadEndpointSpec,
) -> Result<Attachment, AttachError> {
    let (host_ifname, addresses) = host_link_of(endpoint);
    let recorded_mac = endpoint.mac.parse().ok().filter(MacAddr::is_assignable);
    let desired = endpoint_plan::from_conf(session, &addresses)?;
    set_up(&EndpointPlan { host_ifname, container_mac: recorded_mac, ..desired }, netns)
}

fn set_up(plan: &EndpointPlan, netns: &NetnsFd) -> Result<Attachment, AttachError> {
    let attached = dataplane::setup(plan, netns).map_err(|error| match error {
        DataplaneError::BusyRoute(busy) => AttachError::BusyRoute(busy),
        left @ DataplaneError::LeftBehind { .. } => AttachError::Unknown(dataplane_error(left)),
        other => AttachError::Other(dataplane_error(other)),
    })?;
    for stage in &attached.stages {
        tracing::debug!(stage = stage.name, took_us = stage.took.as_micros() as u64, "dataplane");
    }
    Ok(Attachment {
        host_ifname: attached.host_ifname,
        host_index: Some(attached.host_index),
        mac: attached.container_mac.to_string(),
        mtu: if plan.mtu == 0 { 0 } else { attached.mtu },
        as_hosts: true,
    })
}

pub(super) async fn remove(session: &Session, recorded: Recorded<'_>) -> Result<Teardown, CniError> {
    let call = &session.call;
    let (host_ifname, addresses) = match recorded {
        Recorded::Endpoint(endpoint) => host_link_of(&endpoint.spec),
        Recorded::Nothing | Recorded::Unknown | Recorded::OtherInterface => Default::default(),
    };
    let proof = match (&session.facts.orchestrator, recorded) {
        (_, Recorded::OtherInterface) => HostLinkProof::OtherInterface,
        // Named after this very container, whatever its interface is called.
        (Orchestrator::Cni(_), Recorded::Unknown) => HostLinkProof::NameUnlessPeerInPod,
        (Orchestrator::Cni(_), _) => HostLinkProof::Name,
        // Named after the pod, whose next sandbox may have it by now.
        (Orchestrator::Kubernetes(_), _) if addresses.is_empty() => HostLinkProof::Absent,
        (Orchestrator::Kubernetes(_), _) => HostLinkProof::RouteTo(addresses),
    };
    let endpoint = Endpoint {
        netns: (!call.netns.is_empty()).then(|| call.netns.clone().into()),
        container_ifname: call.ifname.clone(),
        host_ifname: if host_ifname.is_empty() { session.host_ifname() } else { host_ifname },
        container_id: Some(call.container_id.clone()),
        proof,
    };
    let teardown = Teardown::start(endpoint.clone()).map_err(dataplane_error)?;
    let Some(unproven) = &teardown.unproven else { return Ok(teardown) };
    match Box::pin(host_interface::is_proven(session, unproven)).await {
        true => Teardown::start(Endpoint { proof: HostLinkProof::Index(unproven.index), ..endpoint })
            .map_err(dataplane_error),
        false => Ok(teardown),
    }
}

/// Whether the host's end is that of another interface in CNI_NETNS, and there is none of the name CNI_IFNAME.
pub(super) fn is_of_another_interface(session: &Session) -> Result<bool, CniError> {
    let netns = NetnsFd::open(Path::new(&session.call.netns)).ok();
    let occupant = host_interface::in_the_way(session, netns.as_ref())?;
    Ok(matches!(occupant, Some(Occupant::Holder(Holder { reason: Reason::OtherInterface(_), .. }))))
}

/// Takes away what [`attach`] has made.
pub(super) fn undo(session: &Session, host_index: u32) -> Result<(), CniError> {
    dataplane::remove(host_index, &session.interface_alias()).map_err(dataplane_error)
}

/// The host's end of an endpoint's interface, and the addresses routed to it.
pub fn host_link_of(spec: &WorkloadEndpointSpec) -> (String, Vec<IpAddr>) {
    (spec.interface_name.clone(), spec.networks().map(|network| network.network()).collect())
}
