//! The host's network, for the commands that people run on a node.

use installer::host_network::{HostNetwork, Interface};

use super::netlink::{NetlinkSocket, link};
use super::{DataplaneError, Endpoint, HostLinkProof, Teardown};

/// As the kernel has it in the namespace of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelNetwork;

impl HostNetwork for KernelNetwork {
    fn interfaces(&self) -> Result<Vec<Interface>, String> {
        let links = NetlinkSocket::open().and_then(|mut socket| link::list(&mut socket));
        let links = links.map_err(|error| error.to_string())?;
        Ok(links.into_iter().map(|link| Interface { name: link.name, mtu: link.mtu }).collect())
    }

    fn remove_pod_interface(&self, name: &str) -> Result<bool, String> {
        remove(name).map_err(|error| error.to_string())
    }
}

/// Removes the host's end of a pair with the address that all of ours have; the other end and the routes go with it.
fn remove(name: &str) -> Result<bool, DataplaneError> {
    let endpoint = Endpoint {
        netns: None,
        container_ifname: String::new(),
        host_ifname: name.to_owned(),
        proof: HostLinkProof::Name,
    };
    Ok(Teardown::start(endpoint)?.finish()?.interface.is_some())
}
