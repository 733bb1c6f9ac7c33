//! The kernel's dataplane: from the session to [`crate::dataplane`] and back.

use std::net::IpAddr;
use std::path::Path;

use libcalico::api::{WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::conversion::Orchestrator;
use libcalico::net::Cidr;
use netconf::CniError;

use super::Attachment;
use crate::dataplane::{self, Endpoint, HostLinkProof, NetnsFd, Teardown};
use crate::endpoint_plan::{self, dataplane_error, netns_error};
use crate::session::Session;

pub(super) fn attach(session: &Session, addresses: &[IpAddr]) -> Result<Attachment, CniError> {
    let plan = endpoint_plan::from_conf(session, addresses)?;
    let netns = NetnsFd::open(Path::new(&session.call.netns)).map_err(netns_error)?;
    let attached = dataplane::setup(&plan, &netns).map_err(dataplane_error)?;
    for stage in &attached.stages {
        tracing::debug!(stage = stage.name, took_us = stage.took.as_micros() as u64, "dataplane");
    }
    Ok(Attachment {
        host_ifname: attached.host_ifname,
        mac: attached.container_mac.to_string(),
        mtu: if plan.mtu == 0 { 0 } else { attached.mtu },
        as_hosts: true,
    })
}

pub(super) fn remove(session: &Session, endpoint: Option<&WorkloadEndpoint>) -> Result<Teardown, CniError> {
    let call = &session.call;
    let (recorded, addresses) = endpoint.map(|endpoint| host_link_of(&endpoint.spec)).unwrap_or_default();
    let proof = match session.facts.orchestrator {
        // Named after this very container.
        Orchestrator::Cni(_) => HostLinkProof::Name,
        // Named after the pod, whose next sandbox may have it by now.
        Orchestrator::Kubernetes(_) if addresses.is_empty() => HostLinkProof::Absent,
        Orchestrator::Kubernetes(_) => HostLinkProof::RouteTo(addresses),
    };
    Teardown::start(Endpoint {
        netns: (!call.netns.is_empty()).then(|| call.netns.clone().into()),
        container_ifname: call.ifname.clone(),
        host_ifname: if recorded.is_empty() { session.host_ifname() } else { recorded },
        proof,
    })
    .map_err(dataplane_error)
}

/// Takes away what [`attach`] has just made: the name is proof enough.
pub(super) fn undo(session: &Session, host_ifname: &str) -> Result<(), CniError> {
    Teardown::start(Endpoint {
        netns: Some(session.call.netns.clone().into()),
        container_ifname: session.call.ifname.clone(),
        host_ifname: host_ifname.to_owned(),
        proof: HostLinkProof::Name,
    })
    .and_then(Teardown::finish)
    .map(|_| ())
    .map_err(dataplane_error)
}

/// The host's end of an endpoint's interface, and the addresses routed to it.
pub fn host_link_of(spec: &WorkloadEndpointSpec) -> (String, Vec<IpAddr>) {
    let networks = spec.ip_networks.iter().filter_map(|network| network.parse::<Cidr>().ok());
    (spec.interface_name.clone(), networks.map(|cidr| cidr.network()).collect())
}
