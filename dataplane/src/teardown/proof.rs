//! Decides whether an interface belongs to the endpoint to be deleted.

use libcalico::net::Cidr;

use super::{HostLinkProof, TeardownTarget};
use crate::host_access::HostAccess;
use crate::netlink::Link;
use crate::{ConflictReason, ConflictingInterface, DataplaneError, MacAddr, NetlinkError};

/// The result of the search for the interface to be deleted.
pub(crate) enum SearchResult<T> {
    Own(T),
    Unproven(ConflictingInterface),
    Missing,
}

impl<T> SearchResult<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> SearchResult<U> {
        match self {
            SearchResult::Own(own) => SearchResult::Own(change(own)),
            SearchResult::Unproven(conflicting) => SearchResult::Unproven(conflicting),
            SearchResult::Missing => SearchResult::Missing,
        }
    }
}

/// A link, and the lock for a link without an alias.
type LockedLink<L> = (Link, Option<L>);

enum ProofResult {
    Proven,
    Unproven,
    /// A route is evidence, but the interface can carry packets.
    Insufficient,
}

impl TeardownTarget {
    /// Returns true if the interface with the name CNI_IFNAME, found in CNI_NETNS, belongs to this
    /// endpoint.
    pub(crate) fn is_own_in_pod<H: HostAccess>(
        &self,
        host: &mut H,
        inside: &Link,
        pod: &H::Netns,
    ) -> Result<bool, NetlinkError> {
        // KubeVirt renames the pod's end of the pair and creates another interface with the
        // original name.
        if !inside.is_paired {
            tracing::warn!(
                interface = inside.name,
                "keeping the interface in the pod, which is no end of a pair"
            );
            return Ok(false);
        }
        let is_of_another = self.is_of_another(host, inside, pod)?;
        if is_of_another {
            tracing::warn!(
                interface = inside.name,
                "keeping the interface in CNI_NETNS, which belongs to another container"
            );
        }
        Ok(!is_of_another)
    }

    /// Returns true if the interface found in CNI_NETNS was created for another container. A path
    /// such as `/proc/<process>/ns/net` may refer to another namespace than it did during the ADD.
    fn is_of_another<H: HostAccess>(
        &self,
        host: &mut H,
        inside: &Link,
        pod: &H::Netns,
    ) -> Result<bool, NetlinkError> {
        let (Some(id), Some(index)) = (&self.container_id, inside.peer_index) else {
            return Ok(false);
        };
        let Some(host_end) = host.link_by_index(index)? else {
            return Ok(false);
        };
        let is_of_other_container = host_end
            .alias
            .as_ref()
            .is_some_and(|alias| !alias.is_of_container(id));
        Ok(is_of_other_container && host_end.is_peer_of(inside, host.netns_id(pod)?))
    }

    /// Returns the host end if it belongs to this endpoint.
    pub(crate) fn own_host_end<H: HostAccess>(
        &self,
        host: &mut H,
        pod: Option<&H::Netns>,
    ) -> Result<SearchResult<LockedLink<H::Lock>>, DataplaneError> {
        let mut lock = None;
        let mut found = host.link(&self.host_ifname)?;
        if found.as_ref().is_some_and(|link| link.alias.is_none()) {
            // An ADD may be about to set an alias. Wait for it and look again.
            lock = host.lock(&self.host_ifname)?;
            found = host.link(&self.host_ifname)?;
        }
        let Some(link) = found.filter(|link| link.is_paired) else {
            return Ok(SearchResult::Missing);
        };
        let is_own = match (&self.container_id, &link.alias) {
            (Some(id), Some(alias)) => {
                // With these proofs the caller does not know all interfaces of the container. A
                // pair whose other end is in the pod's namespace then belongs to another
                // attachment.
                let may_be_of_other = matches!(
                    self.proof,
                    HostLinkProof::NameUnlessPeerInPod | HostLinkProof::Absent
                );
                alias.is_of_container(id) && !(may_be_of_other && is_peer_in(host, &link, pod)?)
            }
            (None, Some(_)) => true,
            (_, None) if link.mac != Some(MacAddr::HOST_SIDE) => false,
            (_, None) => match find_proof(host, &link, &self.proof, pod)? {
                ProofResult::Proven => true,
                ProofResult::Unproven => false,
                ProofResult::Insufficient => {
                    let conflicting =
                        ConflictingInterface::new(host, link, ConflictReason::Unproven)?;
                    return Ok(SearchResult::Unproven(conflicting));
                }
            },
        };
        if !is_own {
            tracing::info!(
                interface = link.name,
                "keeping the host interface: not proved to be this endpoint's"
            );
            return Ok(SearchResult::Missing);
        }
        Ok(SearchResult::Own((link, lock)))
    }
}

fn is_peer_in<H: HostAccess>(
    host: &mut H,
    link: &Link,
    pod: Option<&H::Netns>,
) -> Result<bool, NetlinkError> {
    let Some(pod) = pod else { return Ok(false) };
    let pod_id = host.netns_id(pod)?;
    Ok(pod_id.is_some() && link.peer_netns_id == pod_id)
}

fn find_proof<H: HostAccess>(
    host: &mut H,
    link: &Link,
    proof: &HostLinkProof,
    pod: Option<&H::Netns>,
) -> Result<ProofResult, NetlinkError> {
    let addresses = match proof {
        HostLinkProof::RouteTo(addresses) => addresses,
        HostLinkProof::Name => return Ok(ProofResult::Proven),
        HostLinkProof::NameUnlessPeerInPod if !is_peer_in(host, link, pod)? => {
            return Ok(ProofResult::Proven);
        }
        HostLinkProof::Index(index) if link.index == *index => return Ok(ProofResult::Proven),
        _ => return Ok(ProofResult::Unproven),
    };
    for address in addresses {
        let destination = Cidr::host(address.to_canonical());
        let routes = host.routes(destination.version(), Some(link.index))?;
        if routes.iter().any(|route| route.destination == destination) {
            return Ok(if link.has_carrier {
                ProofResult::Insufficient
            } else {
                ProofResult::Proven
            });
        }
    }
    Ok(ProofResult::Unproven)
}
