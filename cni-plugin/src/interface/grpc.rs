//! Converts between the interface of a call and the messages of a gRPC dataplane (CNI-237).

use std::collections::BTreeMap;

use libcalico::api::{EndpointPort, WorkloadEndpoint};
use netconf::{Call, CniError, Code};

use super::config::{CreateError, CreateResult, CreatedInterface, InterfaceConfig, NewInterface};
use dataplane::grpc::wire::{
    AddRequest, ContainerSettings, IpConfig, NO_GATEWAY, Port, WorkloadIds,
};
use dataplane::{GrpcDataplane, GrpcError, MacAddr};

/// Sends the request to create the interface. If the reply contains no MAC address, requests the
/// removal of the interface and fails.
pub(super) async fn create(
    config: &InterfaceConfig<'_>,
    socket: &str,
    new: NewInterface<'_>,
) -> CreateResult {
    let (call, assigned) = (config.call, new.assigned);
    let plan = config.plan(&assigned.addresses, new.link, new.prior);
    let ips = assigned.result.ips.iter().map(|ip| IpConfig {
        address: ip.address.to_string(),
        gateway: ip
            .gateway
            .map_or(NO_GATEWAY.to_owned(), |gateway| gateway.to_string()),
    });
    let mtu = plan.mtu.try_into().unwrap_or_default();
    let request = AddRequest {
        interface_name: call.ifname.clone(),
        netns: call.netns.clone(),
        desired_host_interface_name: plan.host_ifname,
        settings: Some(ContainerSettings {
            allow_ip_forwarding: plan.allow_ip_forwarding,
            mtu,
        }),
        container_ips: ips.collect(),
        container_routes: plan.routes.iter().map(ToString::to_string).collect(),
        workload: Some(workload(new.endpoint, new.pod_annotations)),
        dataplane_options: Default::default(),
    };
    let reply = match server(call, socket)?.add(request).await {
        Ok(reply) => reply,
        // A Del sent now would not help: the server may create the interface after it.
        Err(error) if error.is_outcome_unknown() => {
            return Err(CreateError::Unknown(rejected(error)));
        }
        Err(error) => return Err(rejected(error).into()),
    };
    let text = reply.container_mac;
    let Ok(mac) = text.parse::<MacAddr>() else {
        let error = CniError::internal(format!(
            "gRPC dataplane {socket}: {text:?} is not a MAC address"
        ));
        let Err(removal) = remove(call, socket).await else {
            return Err(error.into());
        };
        let details = format!("the interface could not be removed: {removal}");
        return Err(CreateError::Unknown(error.with_details(details)));
    };
    let (host_ifname, mac) = (reply.host_interface_name, mac.to_string());
    Ok(CreatedInterface {
        host_ifname,
        host_index: None,
        mac,
        mtu: plan.mtu,
        has_host_prefixes: false,
    })
}

pub(super) async fn remove(call: &Call, socket: &str) -> Result<(), CniError> {
    server(call, socket)?
        .del(&call.ifname, &call.netns)
        .await
        .map_err(rejected)
}

fn server(call: &Call, socket: &str) -> Result<GrpcDataplane, CniError> {
    let options = call.conf.dataplane_options.options.clone();
    GrpcDataplane::new(socket, options).map_err(|error| {
        CniError::new(Code::INVALID_CONFIG, error.to_string())
            .with_details("$.dataplane_options.socket")
    })
}

fn rejected(error: GrpcError) -> CniError {
    CniError::internal(error.to_string())
}

fn workload(endpoint: &WorkloadEndpoint, annotations: &BTreeMap<String, String>) -> WorkloadIds {
    let spec = &endpoint.spec;
    let port = |port: &EndpointPort| Port {
        name: port.name.clone(),
        protocol: port
            .protocol
            .as_str()
            .map_or_else(|| port.protocol.to_string(), str::to_owned),
        port: port.port.into(),
        host_port: port.host_port.into(),
        host_ip: port.host_ip.clone(),
    };
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
