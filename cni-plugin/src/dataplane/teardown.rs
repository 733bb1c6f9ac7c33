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
use super::netlink::link::{self, Link};
use super::netlink::{NetlinkError, NetlinkSocket, nsid, route};
use super::netns::{NetnsError, NetnsFd};

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
    /// What makes a host interface of that name this endpoint's own.
    pub proof: HostLinkProof,
}

/// What proves that a host interface found by name belongs to the endpoint being deleted, and not to its successor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostLinkProof {
    /// The name alone: it was derived from the container id.
    Name,
    /// The name, unless the other end is in the pod's namespace: it is of another interface there, as the one to delete
    /// was not found. For a caller that cannot know which interfaces the container has.
    NameUnlessPeerInPod,
    /// A host route through it to one of these addresses of the endpoint. Names derived from a pod's name pass to the
    /// pod's next sandbox, whose addresses differ (CNI-108).
    RouteTo(Vec<IpAddr>),
    /// Nothing does: leave it.
    Absent,
}

/// A deletion under way. The endpoint's traffic is already cut; the kernel takes 12 to 50 ms more to delete, during which
/// the caller can work.
#[derive(Debug)]
#[must_use = "finish() tells whether the interface is gone"]
pub struct Teardown {
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
}

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
        let interface = receive(&cut, deadline, &ifname)??;
        Ok(Teardown { interface, outcome, deadline })
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
    report_cut: &Sender<Result<Option<String>, DataplaneError>>,
    report_outcome: &Sender<Result<(), DataplaneError>>,
) {
    match find_and_cut(endpoint) {
        Ok(Some(mut target)) => {
            let _ = report_cut.send(Ok(Some(target.link.name.clone())));
            let deleted = target.socket.ask(link::delete(&target.link));
            let _ = report_outcome.send(gone_is_fine(deleted.map(drop)).map_err(DataplaneError::from));
        }
        Ok(None) => {
            let _ = report_cut.send(Ok(None));
        }
        Err(error) => {
            let _ = report_cut.send(Err(error));
        }
    }
}

fn find_and_cut(endpoint: &Endpoint) -> Result<Option<Target>, DataplaneError> {
    let Some(mut target) = find(endpoint)? else { return Ok(None) };
    gone_is_fine(target.socket.ask(link::set_down(&target.link)).map(drop))?;
    Ok(Some(target))
}

/// The pod's end, or when that is gone the host's end, provided that it is this endpoint's.
fn find(endpoint: &Endpoint) -> Result<Option<Target>, DataplaneError> {
    // Before the thread leaves the host's namespace.
    let host = NetlinkSocket::open()?;
    let pod = endpoint.netns.as_deref().map(open_if_present).transpose()?.flatten();
    if let Some(pod) = &pod {
        pod.enter()?;
        let mut socket = NetlinkSocket::open()?;
        if let Some(link) = link::find(&mut socket, &endpoint.container_ifname)? {
            return Ok(Some(Target { socket, link }));
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

fn find_host_end(
    mut socket: NetlinkSocket,
    endpoint: &Endpoint,
    pod: Option<&NetnsFd>,
) -> Result<Option<Target>, DataplaneError> {
    if endpoint.proof == HostLinkProof::Absent {
        return Ok(None);
    }
    let Some(link) = link::find(&mut socket, &endpoint.host_ifname)? else { return Ok(None) };
    let ours = link.paired && link.mac == Some(MacAddr::HOST_SIDE) && proven(&mut socket, &link, &endpoint.proof, pod)?;
    if !ours {
        tracing::info!(interface = link.name, "host interface left alone: nothing proves that it is this endpoint's");
    }
    Ok(ours.then_some(Target { socket, link }))
}

fn proven(
    socket: &mut NetlinkSocket,
    link: &Link,
    proof: &HostLinkProof,
    pod: Option<&NetnsFd>,
) -> Result<bool, NetlinkError> {
    let addresses = match (proof, pod) {
        (HostLinkProof::NameUnlessPeerInPod, Some(pod)) => {
            let pod_id = nsid::of(socket, pod)?;
            return Ok(pod_id.is_none() || link.peer_netns_id != pod_id);
        }
        (HostLinkProof::Name | HostLinkProof::NameUnlessPeerInPod, _) => return Ok(true),
        (HostLinkProof::Absent, _) => return Ok(false),
        (HostLinkProof::RouteTo(addresses), _) => addresses,
    };
    for address in addresses {
        let destination = Cidr::host(address.to_canonical());
        let routes = route::list(socket, destination.version(), Some(link.index))?;
        if routes.iter().any(|route| route.destination == destination) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The interface may go at any time: its other end or its namespace is deleted by others.
fn gone_is_fine(outcome: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
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
