//! Creates and removes the container's interface with the kernel's dataplane or with a gRPC dataplane (CNI-234).
//!
//! `config` derives the plan from the call, `existing` handles an existing interface of the same name, and
//! `kernel` and `grpc` execute the plan.

mod config;
pub mod existing;
mod grpc;
mod kernel;

use std::collections::BTreeMap;
use std::path::Path;

use datastore::Datastore;
use libcalico::api::WorkloadEndpoint;
use netconf::{Call, CniError};

use crate::cni_error::{dataplane_error, netns_error};
use crate::dataplane::{self, Before, BusyRoute, MacAddr, NetnsError, NetnsFd, Teardown};
use crate::ipam::AssignedAddresses;

pub use config::InterfaceConfig;
pub use kernel::{is_gone, is_of_another_interface, restore};

/// The interface to create for one ADD.
#[derive(Debug, Clone, Copy)]
pub struct NewInterface<'a> {
    /// The addresses of the interface.
    pub assigned: &'a AssignedAddresses,
    /// The endpoint that will be written, for a gRPC dataplane.
    pub endpoint: &'a WorkloadEndpoint,
    /// The pod's annotations, for a gRPC dataplane.
    pub pod_annotations: &'a BTreeMap<String, String>,
    /// The MAC address of the container's end, if the pod requests one. For the kernel's dataplane only.
    pub mac: Option<MacAddr>,
    /// The interface that had the name of the host's end before this ADD.
    pub before: Before,
    /// Whether to accept addresses that are routed to another pod: the addresses of a VMI may still be routed to the
    /// pod from which the VMI migrates.
    pub has_vmi: bool,
}

/// An interface that this ADD created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedInterface {
    /// Name of the host's end.
    pub host_ifname: String,
    /// Index of the host's end; `None` if a gRPC dataplane created it.
    host_index: Option<u32>,
    /// MAC address of the container's end, lower case with colons.
    pub mac: String,
    /// MTU in the result. The result has no MTU if it is 0, because none was configured.
    pub mtu: u32,
    /// Whether to report addresses as /32 and /128. With a gRPC dataplane, upstream reports the prefixes of IPAM
    /// (CNI-43).
    pub as_hosts: bool,
}

/// The endpoint in the datastore of the interface to be removed.
#[derive(Debug, Clone, Copy)]
pub enum Recorded<'a> {
    /// The endpoint of the interface.
    Endpoint(&'a WorkloadEndpoint),
    /// No endpoint.
    Nothing,
    /// The endpoint could not be read.
    Unknown,
    /// The endpoint of another interface of the container. The host's end belongs to that interface, because its name
    /// does not depend on the interface in the container.
    OtherInterface,
}

/// A failure to create the interface.
#[derive(Debug)]
pub enum CreateError {
    /// The host has a route to an address that must not be replaced. No part of the interface remains.
    BusyRoute(BusyRoute),
    /// The interface may exist: a gRPC dataplane may have created it or may still create it, or the kernel did not
    /// delete it.
    Unknown(CniError),
    /// Any other failure. No part of the interface remains.
    Other(CniError),
}

/// The removal of an interface that has been started: a deletion by the kernel; `None` if a gRPC dataplane has removed
/// the interface.
#[derive(Debug)]
pub struct PendingRemoval(Option<Teardown>);

/// Opens CNI_NETNS before the ADD changes anything. The plugin's own namespace is an error here (CNI-27), unless
/// CNI_NETNS_OVERRIDE is set. Returns `None` for a namespace that cannot be opened; as in upstream, the step that needs
/// the namespace fails.
pub fn open_netns(call: &Call) -> Result<Option<NetnsFd>, CniError> {
    match NetnsFd::open(Path::new(&call.netns)) {
        Err(NetnsError::SameNamespace { .. }) if call.netns_override => Ok(None),
        Err(error @ NetnsError::SameNamespace { .. }) => Err(netns_error(error)),
        opened => Ok(opened.ok()),
    }
}

/// Creates the interface. After a failure no part of it remains, except with [`CreateError::Unknown`]. `netns` is the
/// result of [`open_netns`].
pub async fn create(
    config: InterfaceConfig<'_>,
    netns: Option<&NetnsFd>,
    new: NewInterface<'_>,
) -> Result<CreatedInterface, CreateError> {
    let created = match config.grpc_socket() {
        Some(socket) => grpc::create(config, socket, new).await?,
        None => kernel::create(config, netns, new)?,
    };
    tracing::info!(host = %created.host_ifname, mac = %created.mac, "interface is up");
    Ok(created)
}

/// Cuts the container's traffic and starts the removal of its interface. `store` is read if only IPAM can prove that
/// the interface belongs to the pod.
pub async fn remove(
    config: InterfaceConfig<'_>,
    store: &Datastore,
    recorded: Recorded<'_>,
) -> Result<PendingRemoval, CniError> {
    match config.grpc_socket() {
        Some(socket) => grpc::remove(config.call, socket).await.map(|()| PendingRemoval(None)),
        None => kernel::remove(config, store, recorded).await.map(|teardown| PendingRemoval(Some(teardown))),
    }
}

impl From<CniError> for CreateError {
    fn from(error: CniError) -> Self {
        CreateError::Other(error)
    }
}

impl From<CreateError> for CniError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::BusyRoute(busy) => dataplane_error(busy.into()),
            CreateError::Unknown(error) | CreateError::Other(error) => error,
        }
    }
}

impl PendingRemoval {
    /// Waits until the interface no longer exists.
    pub fn finish(self) -> Result<(), CniError> {
        let Some(teardown) = self.0 else {
            tracing::info!("interface is gone, by the gRPC dataplane");
            return Ok(());
        };
        match teardown.finish().map_err(dataplane_error)?.interface {
            Some(interface) => tracing::info!(interface, "interface is gone"),
            None => tracing::info!("no interface to take away"),
        }
        Ok(())
    }
}

impl CreatedInterface {
    /// Removes the interface of a failed ADD.
    pub async fn remove(&self, config: InterfaceConfig<'_>) -> Result<(), CniError> {
        tracing::info!(host = %self.host_ifname, "taking the interface of the failed ADD away");
        match (self.host_index, config.grpc_socket()) {
            (Some(index), _) => dataplane::remove(index, &config.alias()).map_err(dataplane_error),
            (None, Some(socket)) => grpc::remove(config.call, socket).await,
            (None, None) => Ok(()),
        }
    }
}
