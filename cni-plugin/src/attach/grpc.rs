//! A dataplane behind gRPC: what it is told, and what it answers (CNI-235..CNI-238).

use std::collections::BTreeMap;

use libcalico::api::{EndpointPort, WorkloadEndpoint};
use netconf::{CniError, Code};

use super::{AttachError, Attachment};
use crate::dataplane::grpc::wire::{AddRequest, ContainerSettings, IpConfig, NO_GATEWAY, Port, WorkloadIds};
use crate::dataplane::{GrpcDataplane, GrpcError, MacAddr};
use crate::endpoint_plan;
use crate::ipam::Lease;
use crate::session::Session;

pub(super) async fn attach(
    session: &Session,
    socket: &str,
    lease: &Lease,
    endpoint: &WorkloadEndpoint,
) -> Result<Attachment, AttachError> {
    let plan = endpoint_plan::from_conf(session, &lease.addresses)?;
    let ips = lease.result.ips.iter().map(|ip| IpConfig {
        address: ip.address.to_string(),
        gateway: ip.gateway.map_or(NO_GATEWAY.to_owned(), |gateway| gateway.to_string()),
    });
    let request = AddRequest {
        interface_name: session.call.ifname.clone(),
        netns: session.call.netns.clone(),
        desired_host_interface_name: plan.host_ifname,
        settings: Some(ContainerSettings {
            allow_ip_forwarding: plan.allow_ip_forwarding,
            mtu: plan.mtu.try_into().unwrap_or_default(),
        }),
        container_ips: ips.collect(),
        container_routes: plan.routes.iter().map(ToString::to_string).collect(),
        workload: Some(workload(endpoint, &session.pod_annotations)),
        dataplane_options: Default::default(),
    };
    let reply = match server(session, socket)?.add(request).await {
        Ok(reply) => reply,
        // The server may still be at it: a Del now might come before the interface does.
        Err(error) if error.is_outcome_unknown() => return Err(AttachError::Unknown(refused(error))),
        Err(error) => return Err(refused(error).into()),
    };
    let Ok(mac) = reply.container_mac.parse::<MacAddr>() else {
        let error =
            CniError::internal(format!("gRPC dataplane {socket}: {:?} is not a MAC address", reply.container_mac));
        return Err(match remove(session, socket).await {
            Ok(()) => error.into(),
            Err(left) => {
                AttachError::Unknown(error.with_details(format!("the interface could not be removed: {left}")))
            }
        });
    };
    Ok(Attachment {
        host_ifname: reply.host_interface_name,
        host_index: None,
        mac: mac.to_string(),
        mtu: plan.mtu,
        as_hosts: false,
    })
}

pub(super) async fn remove(session: &Session, socket: &str) -> Result<(), CniError> {
    server(session, socket)?.del(&session.call.ifname, &session.call.netns).await.map_err(refused)
}

fn server(session: &Session, socket: &str) -> Result<GrpcDataplane, CniError> {
    let options = session.call.conf.dataplane_options.options.clone();
    GrpcDataplane::new(socket, options).map_err(|error| {
        CniError::new(Code::INVALID_CONFIG, error.to_string()).with_details("$.dataplane_options.socket")
    })
}

fn refused(error: GrpcError) -> CniError {
    CniError::internal(error.to_string())
}

fn workload(endpoint: &WorkloadEndpoint, annotations: &BTreeMap<String, String>) -> WorkloadIds {
    let spec = &endpoint.spec;
    WorkloadIds {
        name: endpoint.metadata.name.clone(),
        namespace: endpoint.metadata.namespace.clone(),
        labels: endpoint.metadata.labels.clone(),
        annotations: annotations.clone(),
        endpoint: spec.endpoint.clone(),
        node: spec.node.clone(),
        orchestrator: spec.orchestrator.clone(),
        pod: spec.pod.clone(),
        ports: spec.ports.iter().map(port).collect(),
    }
}

fn port(port: &EndpointPort) -> Port {
    Port {
        name: port.name.clone(),
        protocol: port.protocol.as_str().map_or_else(|| port.protocol.to_string(), str::to_owned),
        port: port.port.into(),
        host_port: port.host_port.into(),
        host_ip: port.host_ip.clone(),
    }
}
