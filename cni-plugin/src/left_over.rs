//! Interfaces of pods that no runtime tears down any more: `calico uninstall --tear-down-pods`.

use crate::dataplane::{Endpoint, HostLinkProof, Teardown};

/// Removes the host's end of a pod's interface, and with it the pod's end and all routes through it. An interface that is not
/// one of ours, by its kind and its address, is left alone. Says whether there was one.
///
/// # Errors
/// The kernel's words.
pub fn remove_interface(host_ifname: &str) -> Result<bool, String> {
    let endpoint = Endpoint {
        netns: None,
        container_ifname: String::new(),
        host_ifname: host_ifname.to_owned(),
        proof: HostLinkProof::Name,
    };
    let removed = Teardown::start(endpoint).and_then(Teardown::finish).map_err(|error| error.to_string())?;
    Ok(removed.interface.is_some())
}
