//! The container's interface: made and removed, by the kernel's dataplane or by one behind gRPC.

use std::net::IpAddr;
use std::path::Path;

use netconf::result::{Interface, IpNet};
use netconf::{Call, CniError, CniResult};

use crate::dataplane::{self, Endpoint, HostLinkProof, NetnsError, NetnsFd, Teardown};
use crate::endpoint_plan::{self, dataplane_error, netns_error};
use crate::session::Session;

/// An interface as it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the host's end.
    pub host_ifname: String,
    /// MAC address of the container's end, lower case with colons.
    pub mac: String,
    /// MTU as the result reports it: 0, for nothing, unless one was asked for (CNI-185).
    pub mtu: u32,
}

/// Fails when CNI_NETNS is the namespace the plugin runs in, before anything is touched (CNI-250). A path that cannot
/// be opened is left for the step that needs it.
pub fn refuse_own_namespace(session: &Session) -> Result<(), CniError> {
    if session.call.netns_override {
        return Ok(());
    }
    match NetnsFd::open(Path::new(&session.call.netns)).and_then(|netns| netns.ensure_foreign()) {
        Err(error @ NetnsError::SameNamespace { .. }) => Err(netns_error(error)),
        _ => Ok(()),
    }
}

/// Makes the interface with these addresses. Leaves nothing behind when it fails.
pub fn attach(session: &Session, addresses: &[IpAddr]) -> Result<Attachment, CniError> {
    let plan = endpoint_plan::from_conf(session, addresses)?;
    let netns = NetnsFd::open(Path::new(&session.call.netns)).map_err(netns_error)?;
    let attached = dataplane::setup(&plan, &netns).map_err(dataplane_error)?;
    for stage in &attached.stages {
        tracing::debug!(stage = stage.name, took_us = stage.took.as_micros() as u64, "dataplane");
    }
    tracing::info!(host = %attached.host_ifname, mac = %attached.container_mac, "interface is up");
    Ok(Attachment {
        host_ifname: attached.host_ifname,
        mac: attached.container_mac.to_string(),
        mtu: if plan.mtu == 0 { 0 } else { attached.mtu },
    })
}

impl Attachment {
    /// Takes the interface away again.
    pub fn remove(&self, call: &Call) -> Result<(), CniError> {
        let endpoint = Endpoint {
            netns: Some(call.netns.clone().into()),
            container_ifname: call.ifname.clone(),
            host_ifname: self.host_ifname.clone(),
            proof: HostLinkProof::Name,
        };
        Teardown::start(endpoint).and_then(Teardown::finish).map(|_| ()).map_err(dataplane_error)
    }

    /// Adds both ends of the interface to what IPAM answered (CNI-38, CNI-137).
    pub fn complete(&self, ipam: CniResult, call: &Call) -> CniResult {
        let mut result = ipam;
        result.interfaces = vec![
            Interface { name: self.host_ifname.clone(), ..Interface::default() },
            Interface {
                name: call.ifname.clone(),
                mac: self.mac.clone(),
                mtu: self.mtu,
                sandbox: call.netns.clone(),
                ..Interface::default()
            },
        ];
        for ip in &mut result.ips {
            ip.address = IpNet::host(ip.address.addr());
            ip.gateway = None;
            ip.interface = Some(1);
        }
        result
    }
}
