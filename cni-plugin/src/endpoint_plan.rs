//! From the configuration to the [`EndpointPlan`] that the dataplane carries out, and its failures as CNI errors.

use std::net::IpAddr;
use std::path::Path;

use libcalico::conversion::Orchestrator;
use libcalico::net::Cidr;
use netconf::{CniError, CniResult, Code};

use crate::dataplane::plan::{DEFAULT_IPV4_GATEWAY, default_routes};
use crate::dataplane::{DataplaneError, DeviceType, EndpointPlan, NetnsError};
use crate::mtu;
use crate::session::Session;

/// The plan of this call for these addresses.
pub fn from_conf(session: &Session, addresses: &[IpAddr]) -> Result<EndpointPlan, CniError> {
    let conf = &session.call.conf;
    Ok(EndpointPlan {
        host_ifname: session.host_ifname(),
        container_ifname: session.call.ifname.clone(),
        alias: session.interface_alias(),
        before: session.before,
        addresses: addresses.to_vec(),
        mtu: effective_mtu(session)?,
        num_queues: conf.interface.num_queues.max(1),
        device: match conf.interface.device_type {
            netconf::conf::DeviceType::Veth => DeviceType::Veth,
            netconf::conf::DeviceType::Netkit => DeviceType::Netkit,
        },
        container_mac: None,
        routes: routes_of(session),
        ipv4_gateway: DEFAULT_IPV4_GATEWAY,
        allow_ip_forwarding: conf.container_settings.allow_ip_forwarding,
        host_routes: true,
        replaces_idle_routes: false,
        refuses_addresses_of_pods: false,
    })
}

/// Whether the host gets routes to the addresses. `calico-ipam` returns none for a pod whose routes are Felix's to make:
/// one that chose its addresses itself, or that a virtual machine is moving to (CNI-127).
pub fn has_host_routes(session: &Session, result: &CniResult) -> bool {
    let pod = matches!(session.facts.orchestrator, Orchestrator::Kubernetes(_));
    !(pod && session.call.conf.ipam.is_calico() && result.routes.is_empty())
}

/// The container's routes: those that host-local is configured with, for pods; else the two default routes (CNI-112).
fn routes_of(session: &Session) -> Vec<Cidr> {
    let conf = &session.call.conf;
    let pod = matches!(session.facts.orchestrator, Orchestrator::Kubernetes(_));
    let mut routes: Vec<_> = match pod && conf.ipam.is_host_local() {
        true => conf
            .ipam
            .routes
            .iter()
            .filter_map(|route| route.dst)
            .filter_map(|dst| Cidr::new(dst.addr(), dst.prefix_len()))
            .collect(),
        false => Vec::new(),
    };
    if routes.is_empty() {
        return default_routes();
    }
    if conf.interface.include_default_routes {
        routes.splice(0..0, default_routes());
    }
    routes
}

/// MTU of both ends; 0 is the kernel's default.
pub fn effective_mtu(session: &Session) -> Result<u32, CniError> {
    let interface = &session.call.conf.interface;
    mtu::effective(interface.mtu, interface.require_mtu_file, Path::new(mtu::MTU_FILE))
        .map_err(|error| CniError::new(Code::IO, error.to_string()))
}

/// A failure of the dataplane as the runtime sees it.
pub fn dataplane_error(error: DataplaneError) -> CniError {
    match error {
        DataplaneError::Netns(error) => netns_error(error),
        DataplaneError::Plan(error) => CniError::new(Code::INVALID_CONFIG, error.to_string()),
        other => CniError::internal(other.to_string()),
    }
}

/// A namespace that cannot be used.
pub fn netns_error(error: NetnsError) -> CniError {
    let code = match &error {
        NetnsError::SameNamespace { .. } => Code::SAME_NETNS,
        NetnsError::Io { .. } => Code::INTERNAL,
        _ => Code::INVALID_ENVIRONMENT,
    };
    match &error {
        // Upstream's text, which people search for.
        NetnsError::NotFound { path } => {
            CniError::new(code, format!("failed to Statfs {path:?}: no such file or directory"))
                .with_details("CNI_NETNS: the network namespace does not exist")
        }
        NetnsError::NotANamespace { .. } => {
            CniError::new(code, error.to_string()).with_details("CNI_NETNS must be the path of a network namespace")
        }
        _ => CniError::new(code, error.to_string()),
    }
}
