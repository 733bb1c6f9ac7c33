//! DEL: the endpoint's interface pair goes, and with it its routes, addresses and settings.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use libcalico::net::Cidr;
use nix::errno::Errno;

use super::DataplaneError;
use super::mac::MacAddr;
use super::making::Making;
use super::netlink::link::{self, Link};
use super::netlink::{NetlinkError, NetlinkSocket, nsid, route};
use super::netns::{NetnsError, NetnsFd};
use super::ownership::Holder;

/// How long a deletion may take in all, as upstream.
const DEADLINE: Duration = Duration::from_secs(20);

/// What DEL is told about the endpoint to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// CNI_NETNS; `None` when it is empty. A path that does not exist is the same as none.
    pub netns: Option<PathBuf>,
    /// CNI_IFNAME.
    pub container_ifname: String,
    /// The host interface computed for the endpoint, for the case that the namespace or its interface is gone.
    pub host_ifname: String,
    /// CNI_CONTAINERID. An interface whose alias has another one stays; an alias with this one is proof. `None` does without
    /// aliases.
    pub container_id: Option<String>,
    /// What makes a host interface of that name this endpoint's own where it has no alias.
    pub proof: HostLinkProof,
}

/// What proves that a host interface without alias, found by name, belongs to the endpoint being deleted, and not to its
/// successor or to another pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostLinkProof {
    /// The name alone: it was derived from the container id.
    Name,
    /// The name, unless the other end is in the pod's namespace: it is of another interface there, as the one to delete
    /// was not found. For a caller that cannot know which interfaces the container has.
    NameUnlessPeerInPod,
    /// A host route through it to one of these addresses of the endpoint, and no carrier: the addresses may be what a pod
    /// pretends. With carrier the interface is [`Unproven`](Teardown::unproven). Names derived from a pod's name pass to the
    /// pod's next sandbox, whose addresses differ (CNI-108).
    RouteTo(Vec<IpAddr>),
    /// IPAM, for the interface of this number.
    Index(u32),
    /// Nothing does. An alias does, unless the other end is in the pod's namespace, as above.
    Absent,
    /// Nothing may: the interface is of another attachment of the container.
    OtherInterface,
}

/// A deletion under way. The endpoint's traffic is already cut; the kernel takes 12 to 50 ms more to delete, during which
/// the caller can work.
#[derive(Debug)]
#[must_use = "finish() tells whether the interface is gone"]
pub struct Teardown {
    /// A host interface that was left alone, and that IPAM may prove to be the endpoint's.
    pub unproven: Option<Holder>,
    interface: Option<String>,
    outcome: Receiver<Result<(), DataplaneError>>,
    deadline: Instant,
}

/// What a finished deletion did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// The interface deleted, in the pod's namespace or in the host's; `None` when there was none.
    pub interface: Option<String>,
}

/// The end of a pair by which it is deleted, and a socket in its namespace.
struct Target {
    socket: NetlinkSocket,
    link: Link,
    /// Held for an interface without alias: no ADD is about to give it one.
    _making: Option<Making>,
}

/// What there is to delete.
enum Found {
    /// This.
    Ours(Target),
    /// Perhaps this.
    Unproven(Holder),
    /// Nothing.
    Nothing,
}

/// What is said when the traffic is cut: the interface to be deleted, or one that stays for want of a proof.
type Cut = (Option<String>, Option<Holder>);

impl Teardown {
    /// Cuts the endpoint's traffic and starts the deletion. Nothing left to delete is success.
    ///
    /// All the work is done by one thread, which is abandoned when the kernel takes longer than 20 s.
    pub fn start(endpoint: Endpoint) -> Result<Self, DataplaneError> {
        let deadline = Instant::now() + DEADLINE;
        let ifname = endpoint.container_ifname.clone();
        let (report_cut, cut) = channel();
        let (report_outcome, outcome) = channel();
        thread::Builder::new()
            .name("teardown".into())
            .spawn(move || tear_down(&endpoint, &report_cut, &report_outcome))
            .map_err(|source| DataplaneError::Thread { ifname: ifname.clone(), source })?;
        let (interface, unproven) = receive(&cut, deadline, &ifname)??;
        Ok(Teardown { unproven, interface, outcome, deadline })
    }

    /// Waits until the interface is gone, at most 20 s from the start.
    pub fn finish(self) -> Result<Removed, DataplaneError> {
        if let Some(ifname) = &self.interface {
            receive(&self.outcome, self.deadline, ifname)??;
        }
        Ok(Removed { interface: self.interface })
    }
}

/// Runs on a thread of its own, which it moves into the pod's namespace. A receiver that gave up is no error here.
fn tear_down(
    endpoint: &Endpoint,
    report_cut: &Sender<Result<Cut, DataplaneError>>,
    report_outcome: &Sender<Result<(), DataplaneError>>,
) {
    match find_and_cut(endpoint) {
        Ok(Found::Ours(mut target)) => {
            let _ = report_cut.send(Ok((Some(target.link.name.clone()), None)));
            let deleted = target.socket.ask(link::delete(&target.link));
            let _ = report_outcome.send(gone_is_fine(deleted.map(drop)).map_err(DataplaneError::from));
        }
        Ok(Found::Unproven(holder)) => {
            let _ = report_cut.send(Ok((None, Some(holder))));
        }
        Ok(Found::Nothing) => {
            let _ = report_cut.send(Ok((None, None)));
        }
        Err(error) => {
            let _ = report_cut.send(Err(error));
        }
    }
}

fn find_and_cut(endpoint: &Endpoint) -> Result<Found, DataplaneError> {
    let mut found = find(endpoint)?;
    if let Found::Ours(target) = &mut found {
        gone_is_fine(target.socket.ask(link::set_down(&target.link)).map(drop))?;
    }
    Ok(found)
}

/// The pod's end, or when that is gone the host's end, provided that it is this endpoint's.
fn find(endpoint: &Endpoint) -> Result<Found, DataplaneError> {
    // The interface of this name is another plugin's.
    if endpoint.proof == HostLinkProof::OtherInterface {
        return Ok(Found::Nothing);
    }
    // Before the thread leaves the host's namespace.
    let mut host = NetlinkSocket::open()?;
    let pod = endpoint.netns.as_deref().map(open_if_present).transpose()?.flatten();
    if let Some(pod) = &pod {
        pod.enter()?;
        let mut socket = NetlinkSocket::open()?;
        match link::find(&mut socket, &endpoint.container_ifname)? {
            // KubeVirt renames the end of the pair, and leaves another interface with its name.
            Some(link) if !link.paired => {
                tracing::warn!(interface = link.name, "interface left alone: it is no end of a pair");
            }
            Some(link) if is_of_another_container(&mut host, &link, pod, endpoint)? => {
                tracing::warn!(interface = link.name, "interface left alone: CNI_NETNS is of another container by now");
            }
            Some(link) => return Ok(Found::Ours(Target { socket, link, _making: None })),
            None => {}
        }
    }
    find_host_end(host, endpoint, pod.as_ref())
}

fn open_if_present(path: &Path) -> Result<Option<NetnsFd>, NetnsError> {
    match NetnsFd::open(path) {
        Err(NetnsError::NotFound { .. }) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Whether an interface found in CNI_NETNS was made for another container. A path such as `/proc/<process>/ns/net` may lead to
/// another namespace than at the time of the ADD.
fn is_of_another_container(
    host: &mut NetlinkSocket,
    inside: &Link,
    pod: &NetnsFd,
    endpoint: &Endpoint,
) -> Result<bool, NetlinkError> {
    let (Some(id), Some(index)) = (&endpoint.container_id, inside.peer_index) else { return Ok(false) };
    let Some(host_end) = link::find_by_index(host, index)? else { return Ok(false) };
    let is_others = host_end.alias.as_ref().is_some_and(|alias| !alias.is_of_container(id));
    Ok(is_others && host_end.is_peer_of(inside, nsid::of(host, pod)?))
}

fn find_host_end(
    mut socket: NetlinkSocket,
    endpoint: &Endpoint,
    pod: Option<&NetnsFd>,
) -> Result<Found, DataplaneError> {
    let mut making = None;
    let mut found = link::find(&mut socket, &endpoint.host_ifname)?;
    if found.as_ref().is_some_and(|link| link.alias.is_none()) {
        // An ADD may be about to give it one.
        making = Some(Making::nobody(&endpoint.host_ifname)?);
        found = link::find(&mut socket, &endpoint.host_ifname)?;
    }
    let Some(link) = found.filter(|link| link.paired) else { return Ok(Found::Nothing) };
    let ours = match (&endpoint.container_id, &link.alias) {
        (Some(id), Some(alias)) => alias.is_of_container(id) && is_of_attachment(&mut socket, &link, endpoint, pod)?,
        (None, Some(_)) => true,
        (_, None) if link.mac != Some(MacAddr::HOST_SIDE) => false,
        (_, None) => match proven(&mut socket, &link, &endpoint.proof, pod)? {
            Proven::Yes => true,
            Proven::No => false,
            Proven::Perhaps => return Ok(Found::Unproven(Holder::unproven(&mut socket, link)?)),
        },
    };
    if !ours {
        tracing::info!(interface = link.name, "host interface left alone: nothing proves that it is this endpoint's");
        return Ok(Found::Nothing);
    }
    Ok(Found::Ours(Target { socket, link, _making: making }))
}

/// Whether an interface of the container is that of the attachment to be deleted, as far as the caller knows the container's.
fn is_of_attachment(
    socket: &mut NetlinkSocket,
    link: &Link,
    endpoint: &Endpoint,
    pod: Option<&NetnsFd>,
) -> Result<bool, NetlinkError> {
    match endpoint.proof {
        HostLinkProof::NameUnlessPeerInPod | HostLinkProof::Absent => Ok(!is_peer_in(socket, link, pod)?),
        _ => Ok(true),
    }
}

fn is_peer_in(socket: &mut NetlinkSocket, link: &Link, pod: Option<&NetnsFd>) -> Result<bool, NetlinkError> {
    let Some(pod) = pod else { return Ok(false) };
    let pod_id = nsid::of(socket, pod)?;
    Ok(pod_id.is_some() && link.peer_netns_id == pod_id)
}

/// Whether an interface without alias is the endpoint's.
enum Proven {
    Yes,
    No,
    /// A route says so, and the interface can carry packets.
    Perhaps,
}

fn proven(
    socket: &mut NetlinkSocket,
    link: &Link,
    proof: &HostLinkProof,
    pod: Option<&NetnsFd>,
) -> Result<Proven, NetlinkError> {
    let yes = |is_so: bool| if is_so { Proven::Yes } else { Proven::No };
    let addresses = match proof {
        HostLinkProof::Name => return Ok(Proven::Yes),
        HostLinkProof::NameUnlessPeerInPod => return Ok(yes(!is_peer_in(socket, link, pod)?)),
        HostLinkProof::Index(index) => return Ok(yes(link.index == *index)),
        HostLinkProof::Absent | HostLinkProof::OtherInterface => return Ok(Proven::No),
        HostLinkProof::RouteTo(addresses) => addresses,
    };
    for address in addresses {
        let destination = Cidr::host(address.to_canonical());
        let routes = route::list(socket, destination.version(), Some(link.index))?;
        if routes.iter().any(|route| route.destination == destination) {
            return Ok(if link.running { Proven::Perhaps } else { Proven::Yes });
        }
    }
    Ok(Proven::No)
}

/// The interface may go at any time: its other end or its namespace is deleted by others.
pub(super) fn gone_is_fine(outcome: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match outcome {
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(()),
        outcome => outcome,
    }
}

fn receive<T>(from: &Receiver<T>, deadline: Instant, ifname: &str) -> Result<T, DataplaneError> {
    from.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|error| match error {
        RecvTimeoutError::Timeout => DataplaneError::DeletionTimeout { ifname: ifname.to_owned(), waited: DEADLINE },
        RecvTimeoutError::Disconnected => DataplaneError::DeletionPanicked { ifname: ifname.to_owned() },
    })
}

#[cfg(test)]
mod tests;
