//! DEL: deletes the interface pair of an endpoint. The kernel deletes its routes, addresses and
//! settings with it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use libcalico::net::Cidr;
use os::lock::HostLock;

use super::netlink::{Link, NetlinkSocket, link, route};
use super::{
    ConflictReason, ConflictingInterface, DataplaneError, MacAddr, NetlinkError, NetnsFd,
    interfaces_lock, netns,
};

/// Maximum duration of a deletion, the same as upstream's.
const DEADLINE: Duration = Duration::from_secs(20);

/// The endpoint whose interface is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeardownTarget {
    /// CNI_NETNS; `None` if it is empty. A path that does not exist, or that is no namespace of a
    /// container, is equivalent to `None`.
    pub netns: Option<PathBuf>,
    /// CNI_IFNAME.
    pub container_ifname: String,
    /// The name of the endpoint's host interface, in case the namespace or the interface in it no
    /// longer exists.
    pub host_ifname: String,
    /// CNI_CONTAINERID. A host interface with an alias of another container stays. With `None`, any
    /// alias is proof.
    pub container_id: Option<String>,
    /// The proof that is required for a host interface of that name.
    pub proof: HostLinkProof,
}

/// The proof that a host interface, found by name, belongs to the endpoint to be deleted, and not
/// to its successor or to another pod. An interface without an alias must also have
/// [`MacAddr::HOST_SIDE`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostLinkProof {
    /// The name is sufficient, because it is derived from the container ID.
    Name,
    /// The name is sufficient unless the other end is in the pod's namespace. There it has another
    /// name than the interface to delete, so the pair belongs to another attachment of the
    /// container.
    NameUnlessPeerInPod,
    /// A host route through the interface to one of these addresses of the endpoint, and no
    /// carrier: a pod may claim addresses of others. With carrier, the interface is
    /// [`Unproven`](Teardown::unproven). The pod's next sandbox has the same interface name, but
    /// other addresses (CNI-108).
    RouteTo(Vec<IpAddr>),
    /// IPAM proved the owner of the interface with this index.
    Index(u32),
    /// Only an alias is proof, and only if the other end is not in the pod's namespace, as for
    /// [`NameUnlessPeerInPod`](Self::NameUnlessPeerInPod).
    Absent,
    /// Not even an alias is proof: the interface belongs to another attachment of the container.
    OtherInterface,
}

/// A deletion in progress. The traffic of the interface to be deleted is already cut.
#[derive(Debug)]
#[must_use = "finish() reports whether the interface is deleted"]
pub struct Teardown {
    /// A host interface that was left unchanged, and that IPAM may prove to be the endpoint's.
    pub unproven: Option<ConflictingInterface>,
    interface: Option<String>,
    outcome: Receiver<Result<(), DataplaneError>>,
    deadline: Instant,
}

/// The result of a completed deletion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// The deleted interface, in the pod's namespace or in the host's; `None` if none was deleted.
    pub interface: Option<String>,
}

/// The end of a pair on which the deletion is requested, and a socket in its namespace.
struct InterfaceToDelete {
    socket: NetlinkSocket,
    link: Link,
    /// The lock for an interface without an alias, so that no ADD is about to set one.
    _lock: Option<HostLock>,
}

enum SearchResult {
    Own(InterfaceToDelete),
    Unproven(ConflictingInterface),
    Missing,
}

/// The message sent when the traffic is cut: the interface to be deleted, or an interface that
/// stays for lack of proof.
type CutReport = (Option<String>, Option<ConflictingInterface>);

impl TeardownTarget {
    pub(super) fn of_host_interface(
        host_ifname: String,
        container_id: Option<String>,
        proof: HostLinkProof,
    ) -> Self {
        TeardownTarget {
            netns: None,
            container_ifname: String::new(),
            host_ifname,
            container_id,
            proof,
        }
    }

    /// Returns the pod's end, or else the host end, if the pair belongs to this endpoint.
    fn find(&self) -> Result<SearchResult, DataplaneError> {
        // The container has an interface of Calico with another name, so the one named CNI_IFNAME
        // belongs to another plugin.
        if self.proof == HostLinkProof::OtherInterface {
            return Ok(SearchResult::Missing);
        }
        // Open the socket before the thread leaves the host's namespace.
        let mut host = NetlinkSocket::open()?;
        let pod = self
            .netns
            .as_deref()
            .map(NetnsFd::open_of_container)
            .transpose()?
            .flatten();
        let Some(pod) = &pod else {
            return self.find_host_end(host, None);
        };
        match pod.enter() {
            Err(error) if error.is_of_no_container() => {
                netns::log_absent(&error);
                return self.find_host_end(host, None);
            }
            entered => entered?,
        }
        let mut socket = NetlinkSocket::open()?;
        match link::find(&mut socket, &self.container_ifname)? {
            // KubeVirt renames the pod's end of the pair and creates another interface with the
            // original name.
            Some(link) if !link.is_paired => {
                tracing::warn!(
                    interface = link.name,
                    "keeping the interface in the pod, which is no end of a pair"
                );
            }
            Some(link) if self.is_of_another(&mut host, &link, pod)? => {
                tracing::warn!(
                    interface = link.name,
                    "keeping the interface in CNI_NETNS, which belongs to another container"
                );
            }
            Some(link) => {
                return Ok(SearchResult::Own(InterfaceToDelete {
                    socket,
                    link,
                    _lock: None,
                }));
            }
            None => {}
        }
        self.find_host_end(host, Some(pod))
    }

    /// Returns true if the interface found in CNI_NETNS was created for another container. A path
    /// such as `/proc/<process>/ns/net` may refer to another namespace than it did during the ADD.
    fn is_of_another(
        &self,
        host: &mut NetlinkSocket,
        inside: &Link,
        pod: &NetnsFd,
    ) -> Result<bool, NetlinkError> {
        let (Some(id), Some(index)) = (&self.container_id, inside.peer_index) else {
            return Ok(false);
        };
        let Some(host_end) = link::find_by_index(host, index)? else {
            return Ok(false);
        };
        let is_of_other_container = host_end
            .alias
            .as_ref()
            .is_some_and(|alias| !alias.is_of_container(id));
        Ok(is_of_other_container && host_end.is_peer_of(inside, link::netns_id_of(host, pod)?))
    }

    fn find_host_end(
        &self,
        mut socket: NetlinkSocket,
        pod: Option<&NetnsFd>,
    ) -> Result<SearchResult, DataplaneError> {
        let mut lock = None;
        let mut found = link::find(&mut socket, &self.host_ifname)?;
        if found.as_ref().is_some_and(|link| link.alias.is_none()) {
            // An ADD may be about to set an alias. Wait for it and look again.
            lock = interfaces_lock::acquire(&self.host_ifname)?;
            found = link::find(&mut socket, &self.host_ifname)?;
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
                alias.is_of_container(id)
                    && !(may_be_of_other && is_peer_in(&mut socket, &link, pod)?)
            }
            (None, Some(_)) => true,
            (_, None) if link.mac != Some(MacAddr::HOST_SIDE) => false,
            (_, None) => match find_proof(&mut socket, &link, &self.proof, pod)? {
                ProofResult::Proven => true,
                ProofResult::Unproven => false,
                ProofResult::Insufficient => {
                    let conflicting =
                        ConflictingInterface::new(&mut socket, link, ConflictReason::Unproven)?;
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
        Ok(SearchResult::Own(InterfaceToDelete {
            socket,
            link,
            _lock: lock,
        }))
    }
}

impl Teardown {
    /// Cuts the traffic of the endpoint's interface and starts the deletion. Also succeeds if there
    /// is no interface, or none that may be deleted.
    pub fn start(endpoint: TeardownTarget) -> Result<Self, DataplaneError> {
        let deadline = Instant::now() + DEADLINE;
        let ifname = endpoint.container_ifname.clone();
        let (report_cut, cut) = channel();
        let (report_outcome, outcome) = channel();
        thread::Builder::new()
            .name("teardown".into())
            .spawn(move || tear_down(&endpoint, &report_cut, &report_outcome))
            .map_err(|source| DataplaneError::Thread {
                ifname: ifname.clone(),
                source,
            })?;
        let (interface, unproven) = receive(&cut, deadline, &ifname)??;
        Ok(Teardown {
            unproven,
            interface,
            outcome,
            deadline,
        })
    }

    /// Waits until the interface is deleted, at most 20 s from the start.
    pub fn finish(self) -> Result<Removed, DataplaneError> {
        if let Some(ifname) = &self.interface {
            receive(&self.outcome, self.deadline, ifname)??;
        }
        Ok(Removed {
            interface: self.interface,
        })
    }
}

/// Finds and deletes the interface. Runs on a thread of its own, which it moves into the pod's
/// namespace.
fn tear_down(
    endpoint: &TeardownTarget,
    report_cut: &Sender<Result<CutReport, DataplaneError>>,
    report_outcome: &Sender<Result<(), DataplaneError>>,
) {
    let result = endpoint.find().and_then(|mut result| {
        if let SearchResult::Own(target) = &mut result {
            link::ignore_missing(
                target
                    .socket
                    .exchange_one(link::set_down(&target.link))
                    .map(drop),
            )?;
        }
        Ok(result)
    });
    let (cut, target) = match result {
        Ok(SearchResult::Own(target)) => (Ok((Some(target.link.name.clone()), None)), Some(target)),
        Ok(SearchResult::Unproven(conflicting)) => (Ok((None, Some(conflicting))), None),
        Ok(SearchResult::Missing) => (Ok((None, None)), None),
        Err(error) => (Err(error), None),
    };
    let _ = report_cut.send(cut);
    if let Some(mut target) = target {
        let deleted = link::delete(&mut target.socket, &target.link);
        let _ = report_outcome.send(deleted.map_err(DataplaneError::from));
    }
}

fn is_peer_in(
    socket: &mut NetlinkSocket,
    link: &Link,
    pod: Option<&NetnsFd>,
) -> Result<bool, NetlinkError> {
    let Some(pod) = pod else { return Ok(false) };
    let pod_id = link::netns_id_of(socket, pod)?;
    Ok(pod_id.is_some() && link.peer_netns_id == pod_id)
}

enum ProofResult {
    Proven,
    Unproven,
    /// A route is evidence, but the interface can carry packets.
    Insufficient,
}

fn find_proof(
    socket: &mut NetlinkSocket,
    link: &Link,
    proof: &HostLinkProof,
    pod: Option<&NetnsFd>,
) -> Result<ProofResult, NetlinkError> {
    let addresses = match proof {
        HostLinkProof::RouteTo(addresses) => addresses,
        HostLinkProof::Name => return Ok(ProofResult::Proven),
        HostLinkProof::NameUnlessPeerInPod if !is_peer_in(socket, link, pod)? => {
            return Ok(ProofResult::Proven);
        }
        HostLinkProof::Index(index) if link.index == *index => return Ok(ProofResult::Proven),
        _ => return Ok(ProofResult::Unproven),
    };
    for address in addresses {
        let destination = Cidr::host(address.to_canonical());
        let routes = route::list(socket, destination.version(), Some(link.index))?;
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

fn receive<T>(from: &Receiver<T>, deadline: Instant, ifname: &str) -> Result<T, DataplaneError> {
    from.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        .map_err(|error| match error {
            RecvTimeoutError::Timeout => DataplaneError::DeletionTimeout {
                ifname: ifname.to_owned(),
                waited: DEADLINE,
            },
            RecvTimeoutError::Disconnected => DataplaneError::DeletionPanicked(ifname.to_owned()),
        })
}
