//! [`IpamCall`]: one call of the plugin, decoded: what `calico-ipam` takes from its environment and configuration, and
//! what `calico` fills in from a pod's annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use libcalico::ipam::{HandleId, OldHandle};
use libcalico::kubernetes::MachinePod;
use libcalico::net::IpVersion;
use libcalico::store::Store;
use netconf::Call;
use time::OffsetDateTime;

use crate::busy;
use crate::exhausted::{self, Notes, Releasing};
use crate::lock::HostLock;
use crate::predecessor::Predecessor;
use crate::prelude::PreludeQuery;
use crate::recent::RecentBlocks;
use crate::request::{AssignRequest, Namespace, workload_attributes};

/// Where upstream notes that a node's affinities have labels: it is gone when the node starts anew.
const LABELS_MARKER: &str = "/var/run/calico/cni/ipam_upgraded";

/// Gone when the node starts anew.
const RECENT_BLOCKS: &str = "/var/run/calico/cni/recent_blocks";

/// A call of the IPAM plugin for one container.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamCall {
    /// The network's name.
    pub network: String,
    /// The container.
    pub container_id: String,
    /// The node that asks.
    pub node: String,
    /// The pod; `None` outside Kubernetes.
    pub pod: Option<Pod>,
    /// The virtual machine that the pod runs, if it keeps its addresses from pod to pod.
    pub machine: Option<MachinePod>,
    /// Whether an IPv4 address is wanted.
    pub assign_ipv4: bool,
    /// Whether an IPv6 address is wanted.
    pub assign_ipv6: bool,
    /// Names or CIDRs of the IPv4 pools to take from, in order of preference.
    pub ipv4_pools: Vec<String>,
    /// The same for IPv6.
    pub ipv6_pools: Vec<String>,
    /// Families whose pools or address the pod's annotations name, where these may name only what the namespace may
    /// have.
    pub restricted: BTreeSet<IpVersion>,
    /// The address asked for with `IP=` in CNI_ARGS.
    pub ip: Option<IpAddr>,
    /// The pod's earlier sandbox: an address that is asked for passes from it to this container.
    pub predecessor: Option<Predecessor>,
    /// Most blocks the node may own; 0 leaves it to the cluster's settings.
    pub max_blocks: usize,
    /// What the processes of this node lock to take turns; `None` does without.
    pub lock_file: Option<PathBuf>,
    /// The file that remembers which blocks the last addresses came from; `None` does without.
    pub recent_file: Option<PathBuf>,
    /// The file that notes which addresses the node's kernel has in use, see [`crate::busy`]; `None` does without.
    pub busy_file: Option<PathBuf>,
    /// The file that notes searches which found no free address, see [`crate::exhausted`]; `None` does without.
    pub exhausted_file: Option<PathBuf>,
    /// The file that notes that the node's affinities have labels (IPAM-47); `None` looks at them each time.
    pub labels_marker: Option<PathBuf>,
}

/// Which pod a container is of.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Its namespace, with the labels that pools' namespace selectors look at.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
}

impl IpamCall {
    /// What the runtime asks for, on `node`. Outside Kubernetes all there is to know; `calico` changes pools and
    /// families to what a pod's annotations say, and fills in the labels of its namespace.
    pub fn of(call: &Call, node: impl Into<String>) -> Self {
        let ipam = &call.conf.ipam;
        IpamCall {
            network: call.conf.name.clone(),
            container_id: call.container_id.clone(),
            node: node.into(),
            pod: call.args.pod().map(|pod| Pod {
                namespace: Namespace { name: pod.namespace.into(), ..Namespace::default() },
                name: pod.name.into(),
            }),
            machine: None,
            assign_ipv4: ipam.assign_ipv4,
            assign_ipv6: ipam.assign_ipv6,
            ipv4_pools: ipam.ipv4_pools.clone(),
            ipv6_pools: ipam.ipv6_pools.clone(),
            restricted: BTreeSet::new(),
            ip: call.args.ip,
            predecessor: None,
            // For Windows, but read on every system, as upstream's (IPAM-33).
            max_blocks: usize::from(call.conf.windows.windows_use_single_network),
            lock_file: Some(PathBuf::from(&call.conf.node.ipam_lock_file)),
            recent_file: Some(PathBuf::from(RECENT_BLOCKS)),
            busy_file: Some(PathBuf::from(busy::FILE)),
            exhausted_file: Some(PathBuf::from(exhausted::FILE)),
            labels_marker: Some(PathBuf::from(LABELS_MARKER)),
        }
    }

    /// The handle that the addresses are held by: the container's, or that of the virtual machine that keeps them
    /// (IPAM-22, IPAM-24).
    pub fn handle(&self) -> HandleId {
        match &self.machine {
            Some(machine) => HandleId::for_machine(&self.network, &machine.namespace, &machine.instance),
            None => self.container_handle(),
        }
    }

    /// The handle of the container, whatever runs in it.
    pub fn container_handle(&self) -> HandleId {
        HandleId::for_container(&self.network, &self.container_id)
    }

    /// The handle that releases before v3 gave the same container; DEL releases what it holds for it (IPAM-23).
    pub fn old_handle(&self) -> Option<OldHandle> {
        let old = match &self.pod {
            Some(pod) => OldHandle::of_pod(&pod.namespace.name, &pod.name),
            None => OldHandle::of_container(&self.container_id),
        };
        old.filter(|old| *old.id() != self.container_handle())
    }

    /// The container's handles: what a DEL looks at.
    pub fn handles(&self) -> Vec<HandleId> {
        let old = self.old_handle();
        [self.container_handle()].into_iter().chain(old.map(|old| old.id().clone())).collect()
    }

    /// What a DEL has to read first: both where that costs no more. Else the old one is looked for only when the other
    /// is not there, which is when the container is from before v3.
    pub fn handles_to_read<S: Store>(&self, store: &S) -> Vec<HandleId> {
        match store.has_transactions() {
            true => self.handles(),
            false => vec![self.container_handle()],
        }
    }

    /// What an ADD has to read first.
    pub fn prelude_query(&self) -> PreludeQuery {
        PreludeQuery::workload(&self.node, self.handle())
    }

    /// The call as a request for addresses.
    pub fn assign_request(&self, now: OffsetDateTime) -> AssignRequest {
        AssignRequest {
            attributes: self.attributes(now),
            num4: usize::from(self.assign_ipv4),
            num6: usize::from(self.assign_ipv6),
            pools4: self.ipv4_pools.clone(),
            pools6: self.ipv6_pools.clone(),
            restricted: self.restricted.clone(),
            namespace: self.pod.as_ref().map(|pod| pod.namespace.clone()),
            max_blocks: self.max_blocks,
            all_or_nothing: true,
            predecessor: self.predecessor.clone(),
            // Another process may be giving the machine its first address now (IPAM-115).
            max_per_handle: self.machine.is_some().into(),
            ..AssignRequest::workload(self.handle(), &self.node)
        }
    }

    /// The pod's namespace; empty outside Kubernetes.
    pub fn namespace(&self) -> &str {
        self.pod.as_ref().map(|pod| pod.namespace.name.as_str()).unwrap_or_default()
    }

    /// Takes the node's lock, if it can be had. Waits in this thread: a plugin process has nothing else to do.
    pub fn lock(&self) -> Option<HostLock> {
        self.lock_file.as_deref().and_then(HostLock::acquire)
    }

    /// The hint for the next ADD, to whoever holds the node's lock; `None` where none is kept.
    pub(crate) fn recent_blocks<S: Store>(&self, lock: Option<&HostLock>, store: &S) -> Option<RecentBlocks> {
        lock.filter(|lock| lock.is_held() && !store.has_transactions())?;
        self.recent_file.as_deref().map(RecentBlocks::read)
    }

    /// The addresses that the kernel was found to have in use a moment ago.
    pub(crate) fn busy_addresses(&self, now: OffsetDateTime) -> BTreeSet<IpAddr> {
        let notes = self.busy_file.as_deref().map(|file| busy::in_force(file, now)).unwrap_or_default();
        notes.into_iter().map(|note| note.address).collect()
    }

    /// The node's searches that found no free address a moment ago.
    pub(crate) fn notes(&self, now: OffsetDateTime) -> Notes {
        self.exhausted_file.as_deref().map(|file| Notes::read(file, now)).unwrap_or_default()
    }

    /// Begins a release of addresses.
    pub fn releasing(&self) -> Releasing<'_> {
        Releasing::on(self.exhausted_file.as_deref())
    }

    /// What is stored with each address.
    pub fn attributes(&self, now: OffsetDateTime) -> BTreeMap<String, String> {
        let pod = self.pod.as_ref().map(|pod| (pod.namespace.name.as_str(), pod.name.as_str()));
        let mut attributes = workload_attributes(&self.node, pod, now);
        attributes.extend(self.machine.iter().flat_map(MachinePod::attributes));
        attributes
    }
}
