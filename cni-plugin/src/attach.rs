//! The container's interface: made and removed, by the kernel's dataplane or by one behind gRPC (CNI-106, CNI-234).

mod grpc;
mod kernel;

use std::path::Path;

use libcalico::api::WorkloadEndpoint;
use netconf::result::Interface;
use netconf::{Call, CniError, CniResult};

use crate::dataplane::{BusyRoute, MacAddr, NetnsError, NetnsFd, Teardown};
use crate::endpoint_plan::{dataplane_error, netns_error};
use crate::ipam::Lease;
use crate::session::Session;

pub use kernel::host_link_of;

/// An interface as it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the host's end.
    pub host_ifname: String,
    /// Number of the host's end; `None` where another dataplane made it.
    host_index: Option<u32>,
    /// MAC address of the container's end, lower case with colons.
    pub mac: String,
    /// MTU as the result reports it: 0, for nothing, unless one was asked for (CNI-185).
    pub mtu: u32,
    /// Whether addresses are reported as /32 and /128: another dataplane leaves IPAM's prefixes alone (CNI-43).
    as_hosts: bool,
}

/// What the datastore has about the attachment to be removed.
#[derive(Debug, Clone, Copy)]
pub enum Recorded<'a> {
    /// Its endpoint.
    Endpoint(&'a WorkloadEndpoint),
    /// Nothing.
    Nothing,
    /// It could not be asked.
    Unknown,
    /// The endpoint of another interface of the container: the host's end, named after the container, is that one's.
    OtherInterface,
}

/// A failure to make the interface.
#[derive(Debug)]
pub enum AttachError {
    /// The host has a route to one of the addresses, which stays. Nothing of the interface is left.
    BusyRoute(BusyRoute),
    /// The interface may be there: another dataplane may have made it or may make it yet, or the kernel did not delete
    /// it.
    Unknown(CniError),
    /// Any other reason. Nothing of the interface is left.
    Other(CniError),
}

/// A removal under way.
#[derive(Debug)]
pub enum Removal {
    /// The kernel is deleting.
    Kernel(Teardown),
    /// Done already, by another dataplane.
    Done,
}

/// Opens CNI_NETNS before anything is touched. Its being the plugin's own is an error now (CNI-250), unless
/// CNI_NETNS_OVERRIDE is set; one that cannot be opened is left for the step that needs it, as upstream.
pub fn open_netns(session: &Session) -> Result<Option<NetnsFd>, CniError> {
    match NetnsFd::open(Path::new(&session.call.netns)) {
        Err(NetnsError::SameNamespace { .. }) if session.call.netns_override => Ok(None),
        Err(error @ NetnsError::SameNamespace { .. }) => Err(netns_error(error)),
        opened => Ok(opened.ok()),
    }
}

/// Makes the interface for these addresses. Leaves nothing behind when it fails, unless the error says so. `netns` is
/// what [`open_netns`] opened; `endpoint` is what will be written, which another dataplane is told about; `mac` is for
/// the kernel's only.
pub async fn attach(
    session: &Session,
    netns: Option<&NetnsFd>,
    lease: &Lease,
    endpoint: &WorkloadEndpoint,
    mac: Option<MacAddr>,
) -> Result<Attachment, AttachError> {
    let attachment = match session.call.conf.dataplane_options.grpc_socket() {
        Some(socket) => grpc::attach(session, socket, lease, endpoint).await?,
        None => kernel::attach(session, netns, lease, mac)?,
    };
    tracing::info!(host = %attachment.host_ifname, mac = %attachment.mac, "interface is up");
    Ok(attachment)
}

/// Whether neither end of an endpoint's interface exists. An empty name cannot be looked up, and what another dataplane
/// made cannot be looked at: these count as there.
pub fn is_gone(session: &Session, netns: &NetnsFd, endpoint: &WorkloadEndpoint) -> Result<bool, CniError> {
    if session.call.conf.dataplane_options.grpc_socket().is_some() || endpoint.spec.interface_name.is_empty() {
        return Ok(false);
    }
    kernel::is_gone(session, netns, &endpoint.spec)
}

/// Makes the interface of an endpoint again that [`is_gone`], with the addresses and the MAC address that it records.
pub fn remake(session: &Session, netns: &NetnsFd, endpoint: &WorkloadEndpoint) -> Result<Attachment, AttachError> {
    let attachment = kernel::remake(session, netns, &endpoint.spec)?;
    tracing::info!(host = %attachment.host_ifname, mac = %attachment.mac, "the interface was gone; it is up again");
    Ok(attachment)
}

/// Cuts the container's traffic and begins to remove its interface.
pub async fn remove(session: &Session, recorded: Recorded<'_>) -> Result<Removal, CniError> {
    match session.call.conf.dataplane_options.grpc_socket() {
        Some(socket) => grpc::remove(session, socket).await.map(|()| Removal::Done),
        None => kernel::remove(session, recorded).await.map(Removal::Kernel),
    }
}

/// Whether a pod's interface that DEL would find by its name is of another attachment: the pod has one of another name,
/// and none of the name to be deleted. A runtime deletes what it failed to add.
pub fn is_of_another_interface(session: &Session) -> Result<bool, CniError> {
    match session.call.conf.dataplane_options.grpc_socket() {
        Some(_) => Ok(false),
        None => kernel::is_of_another_interface(session),
    }
}

impl From<CniError> for AttachError {
    fn from(error: CniError) -> Self {
        AttachError::Other(error)
    }
}

impl From<AttachError> for CniError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::BusyRoute(busy) => dataplane_error(busy.into()),
            AttachError::Unknown(error) | AttachError::Other(error) => error,
        }
    }
}

impl Removal {
    /// Waits until the interface is gone.
    pub fn finish(self) -> Result<(), CniError> {
        match self {
            Removal::Kernel(teardown) => {
                let removed = teardown.finish().map_err(dataplane_error)?;
                match removed.interface {
                    Some(interface) => tracing::info!(interface, "interface is gone"),
                    None => tracing::info!("no interface to take away"),
                }
            }
            Removal::Done => tracing::info!("interface is gone, by the gRPC dataplane"),
        }
        Ok(())
    }
}

impl Attachment {
    /// Takes the interface of a failed ADD away again.
    pub async fn undo(&self, session: &Session) -> Result<(), CniError> {
        tracing::info!(host = %self.host_ifname, "taking the interface of the failed ADD away");
        match (self.host_index, session.call.conf.dataplane_options.grpc_socket()) {
            (Some(index), _) => kernel::undo(session, index),
            (None, Some(socket)) => grpc::remove(session, socket).await,
            (None, None) => Ok(()),
        }
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
            if self.as_hosts {
                ip.address = netconf::result::IpNet::host(ip.address.addr());
            }
            ip.gateway = None;
            ip.interface = Some(1);
        }
        result
    }
}
