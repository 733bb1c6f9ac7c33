//! DEL: deletes the interface pair of an endpoint. The kernel deletes its routes, addresses and
//! settings with it.

mod proof;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use os::lock::HostLock;

use super::netlink::{Link, NetlinkSocket, link};
use super::{ConflictingInterface, DataplaneError, NetnsFd, netns};
pub(super) use proof::SearchResult;

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
/// [`MacAddr::HOST_SIDE`](super::MacAddr::HOST_SIDE).
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
    fn find(&self) -> Result<SearchResult<InterfaceToDelete>, DataplaneError> {
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
        if let Some(link) = link::find(&mut socket, &self.container_ifname)?
            && self.is_own_in_pod(&mut host, &link, pod)?
        {
            return Ok(SearchResult::Own(InterfaceToDelete {
                socket,
                link,
                _lock: None,
            }));
        }
        self.find_host_end(host, Some(pod))
    }

    fn find_host_end(
        &self,
        mut socket: NetlinkSocket,
        pod: Option<&NetnsFd>,
    ) -> Result<SearchResult<InterfaceToDelete>, DataplaneError> {
        let found = self.own_host_end(&mut socket, pod)?;
        Ok(found.map(|(link, lock)| InterfaceToDelete {
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
