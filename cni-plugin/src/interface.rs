//! Creates and removes the container's interface with the kernel's dataplane or with a gRPC
//! dataplane (CNI-234).

mod config;
mod existing;
mod grpc;
mod kernel;

use std::path::Path;

use libcalico::store::Store;
use netconf::{Call, CniError};

use crate::cni_error::{dataplane_error, netns_error};
use dataplane::{NetnsError, PodNetwork, Removal, Removed};

pub use config::{
    CreateError, CreateResult, CreatedInterface, InterfaceConfig, LinkSettings, NewInterface,
};
pub use kernel::RecordedEndpoint;

/// The removal of an interface that has been started; `None` if a gRPC dataplane has removed the
/// interface.
#[derive(Debug)]
pub struct PendingRemoval<R>(Option<R>);

/// Opens CNI_NETNS before the ADD changes anything. The plugin's own namespace is an error here
/// (CNI-27). Returns `None` for a namespace that cannot be opened, or for the plugin's own if
/// CNI_NETNS_OVERRIDE is set.
pub fn open_netns<N: PodNetwork>(network: &N, call: &Call) -> Result<Option<N::Netns>, CniError> {
    match network.open_netns(Path::new(&call.netns)) {
        Err(NetnsError::SameNamespace { .. }) if call.netns_override => Ok(None),
        Err(error @ NetnsError::SameNamespace { .. }) => Err(netns_error(error)),
        opened => Ok(opened.ok()),
    }
}

impl InterfaceConfig<'_> {
    /// Creates the interface. [`CreateError`] says if a part of it remains after a failure. `netns`
    /// is the result of [`open_netns`].
    pub async fn create<N: PodNetwork>(
        &self,
        network: &N,
        netns: Option<&N::Netns>,
        new: NewInterface<'_>,
    ) -> CreateResult {
        let created = match self.grpc_socket() {
            Some(socket) => grpc::create(self, socket, new).await?,
            None => kernel::create(self, network, netns, new)?,
        };
        tracing::info!(
            host_interface = %created.host_ifname, container_mac = %created.mac, "interface is up",
        );
        Ok(created)
    }

    /// Starts the removal of the container's interface, whose traffic is then cut. The kernel's
    /// dataplane keeps an interface that is not proved to be this attachment's.
    pub async fn remove<N: PodNetwork>(
        &self,
        network: &N,
        store: &impl Store,
        recorded: RecordedEndpoint<'_>,
    ) -> Result<PendingRemoval<N::Removal>, CniError> {
        match self.grpc_socket() {
            Some(socket) => grpc::remove(self.call, socket)
                .await
                .map(|()| PendingRemoval(None)),
            None => kernel::remove(self, network, store, recorded)
                .await
                .map(|removal| PendingRemoval(Some(removal))),
        }
    }
}

impl<R: Removal> PendingRemoval<R> {
    /// Waits for the end of the removal.
    pub fn finish(self) -> Result<(), CniError> {
        match self.0.map(R::finish).transpose().map_err(dataplane_error)? {
            Some(Removed {
                interface: Some(interface),
            }) => tracing::info!(interface, "deleted the interface"),
            Some(Removed { interface: None }) => {
                tracing::info!("deleted no interface: none is proved to be this attachment's")
            }
            None => tracing::info!("the gRPC dataplane removed the interface"),
        }
        Ok(())
    }
}

impl CreatedInterface {
    /// Removes the interface of a failed ADD.
    pub async fn remove(
        &self,
        network: &impl PodNetwork,
        config: InterfaceConfig<'_>,
    ) -> Result<(), CniError> {
        tracing::info!(interface = %self.host_ifname, "deleting the interface of the failed ADD");
        match (self.host_index, config.grpc_socket()) {
            (Some(index), _) => network
                .undo_set_up(index, &config.alias())
                .map_err(dataplane_error),
            (None, Some(socket)) => grpc::remove(config.call, socket).await,
            (None, None) => Ok(()),
        }
    }
}
