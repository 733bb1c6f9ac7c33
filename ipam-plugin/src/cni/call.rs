//! [`IpamRequest`]: a decoded call of the plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use libcalico::ipam::{AnyOf, HandleId, OldHandle};
use libcalico::kubernetes::VmiPod;
use libcalico::net::IpVersion;
use libcalico::store::{Store, WriteModel};
use netconf::Call;
use time::OffsetDateTime;

use allocation::alloc::block_hints::BlockHints;
use allocation::alloc::inputs::InputsQuery;
use allocation::alloc::predecessor::Predecessor;
use allocation::alloc::prefetch::{self, Prefetch};
use allocation::alloc::request::{AssignRequest, Namespace, workload_attributes};
use allocation::busy;
use allocation::exhausted::{self, ReleaseGuard, SearchNotes};
use os::lock::HostLock;
use os::node_files::NodeFiles;

/// File whose existence means that the node's affinities have labels. Upstream uses the same file;
/// a reboot deletes it.
const LABELS_MARKER: &str = "/var/run/calico/cni/ipam_upgraded";

/// File with hints about this node's blocks. A reboot deletes it.
const RECENT_BLOCKS: &str = "/var/run/calico/cni/recent_blocks";

/// A call of the IPAM plugin for one container.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamRequest {
    /// The name of the network.
    pub network: String,
    /// The container ID.
    pub container_id: String,
    /// The node on which the call runs.
    pub node: String,
    /// The pod; `None` outside Kubernetes.
    pub pod: Option<Pod>,
    /// The pod's VMI, if the VMI keeps its addresses from pod to pod.
    pub vmi: Option<VmiPod>,
    /// Whether to assign an IPv4 address.
    pub assign_ipv4: bool,
    /// Whether to assign an IPv6 address.
    pub assign_ipv6: bool,
    /// Names or CIDRs of the IPv4 pools to assign from. Their order counts only for a new block and
    /// for borrowing: the node's own blocks in any of them come first.
    pub ipv4_pools: Vec<String>,
    /// Names or CIDRs of the IPv6 pools, as for `ipv4_pools`.
    pub ipv6_pools: Vec<String>,
    /// Families whose pools or address come from the pod's annotations, if annotations are
    /// restricted to values that the pod's namespace may have.
    pub restricted: BTreeSet<IpVersion>,
    /// Families whose pools come from annotations and must select the node.
    pub node_selected: BTreeSet<IpVersion>,
    /// A requested address.
    pub ip: Option<IpAddr>,
    /// The pod's list of addresses. The pod gets the first free one of each family in the list.
    pub any_of: Option<AnyOf>,
    /// The pod's previous sandbox, from which a requested address passes to this container.
    pub predecessor: Option<Predecessor>,
    /// Maximum number of blocks of a family that the node may own in the chosen pools, if the
    /// cluster's setting is not lower; 0 is no limit of the call.
    pub max_blocks: usize,
    /// The files and locks of the node.
    pub files: NodeFiles,
    /// The lock file by which processes of this node take turns; `None` disables the lock.
    pub lock_file: Option<PathBuf>,
    /// The file with the hints about this node's blocks; `None` disables it.
    pub recent_file: Option<PathBuf>,
    /// The file of [`allocation::busy`]; `None` disables it.
    pub busy_file: Option<PathBuf>,
    /// The file of [`allocation::exhausted`]; `None` disables it.
    pub exhausted_file: Option<PathBuf>,
    /// The file whose existence means that the node's affinities have labels (IPAM-47).
    pub labels_marker: Option<PathBuf>,
}

/// The pod of a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// The namespace, with the labels that the namespace selectors of pools match.
    pub namespace: Namespace,
    /// The name.
    pub name: String,
}

impl IpamRequest {
    /// Creates the call that the runtime requests on `node`. For a pod, the caller adds the labels
    /// of the namespace; `calico` also adds the values of annotations.
    pub fn from_call(call: &Call, node: impl Into<String>, files: &NodeFiles) -> Self {
        let ipam = &call.conf.ipam;
        IpamRequest {
            network: call.conf.name.clone(),
            container_id: call.container_id.clone(),
            node: node.into(),
            pod: call.args.pod().map(|pod| Pod {
                namespace: Namespace {
                    name: pod.namespace.into(),
                    ..Namespace::default()
                },
                name: pod.name.into(),
            }),
            vmi: None,
            assign_ipv4: ipam.assign_ipv4,
            assign_ipv6: ipam.assign_ipv6,
            ipv4_pools: ipam.ipv4_pools.clone(),
            ipv6_pools: ipam.ipv6_pools.clone(),
            restricted: BTreeSet::new(),
            node_selected: BTreeSet::new(),
            ip: call.args.ip,
            any_of: None,
            predecessor: None,
            // The field is meant for Windows, but upstream reads it on every system (IPAM-33).
            max_blocks: usize::from(call.conf.windows.windows_use_single_network),
            lock_file: Some(files.path(&call.conf.node.ipam_lock_file)),
            recent_file: Some(files.path(RECENT_BLOCKS)),
            busy_file: Some(files.path(busy::FILE)),
            exhausted_file: Some(files.path(exhausted::FILE)),
            labels_marker: Some(files.path(LABELS_MARKER)),
            files: files.clone(),
        }
    }

    /// Returns the handle of the addresses: the VMI's if a VMI keeps them, the container's
    /// otherwise (IPAM-22, IPAM-24).
    pub fn handle(&self) -> HandleId {
        match &self.vmi {
            Some(vmi) => HandleId::for_vmi(&self.network, &vmi.namespace, &vmi.vmi_name),
            None => self.container_handle(),
        }
    }

    /// Returns the handle of the container, even if a VMI keeps the addresses.
    pub fn container_handle(&self) -> HandleId {
        HandleId::for_container(&self.network, &self.container_id)
    }

    /// Returns the prefetch of this request, or `None` if a prefetch is impossible or saves
    /// nothing.
    pub fn prefetch<S: Store>(&self, store: &S) -> Option<Prefetch> {
        if self.ip.is_some() {
            return None;
        }
        let wanted = [
            (IpVersion::V4, self.assign_ipv4),
            (IpVersion::V6, self.assign_ipv6),
        ];
        let families: Vec<_> = wanted
            .into_iter()
            .filter_map(|(version, wanted)| wanted.then_some(version))
            .collect();
        let files = (self.lock_file.as_deref()?, self.recent_file.as_deref()?);
        let pod = self.pod.as_ref().map_or("", |pod| pod.name.as_str());
        Prefetch::new(
            store,
            &self.files,
            files,
            &self.network,
            (self.namespace(), pod),
            &families,
        )
    }

    /// Disables the prefetch on this node until another ADD has succeeded; see [`prefetch::stop`].
    pub async fn stop_prefetch(&self, own: Option<&Prefetch>) {
        let (lock_file, recent_file) = (self.lock_file.as_deref(), self.recent_file.as_deref());
        prefetch::stop(&self.files, lock_file, recent_file, own).await;
    }

    /// Returns the handle that Calico before v3 gave this container, under which DEL also releases
    /// addresses (IPAM-23). Returns `None` if that handle equals the present one or may be a VMI's.
    pub fn old_handle(&self) -> Option<OldHandle> {
        let old = match &self.pod {
            Some(pod) => OldHandle::of_pod(&pod.namespace.name, &pod.name),
            None => OldHandle::of_container(&self.container_id),
        };
        old.filter(|old| *old.id() != self.container_handle())
    }

    /// Returns the handles that a DEL of this container releases.
    pub fn handles(&self) -> Vec<HandleId> {
        let old = self.old_handle();
        [self.container_handle()]
            .into_iter()
            .chain(old.map(|old| old.id().clone()))
            .collect()
    }

    /// Returns the handles that a DEL reads first: both where that takes one request, and otherwise
    /// only the present one.
    pub fn handles_to_read<S: Store>(&self, store: &S) -> Vec<HandleId> {
        match store.write_model() {
            WriteModel::Transactional => self.handles(),
            WriteModel::PerObject => vec![self.container_handle()],
        }
    }

    /// Returns the query for the first read of an ADD.
    pub fn inputs_query(&self) -> InputsQuery {
        InputsQuery::workload(&self.node, self.handle())
    }

    /// Returns the call as a request for addresses.
    pub fn assign_request(&self, now: OffsetDateTime) -> AssignRequest {
        AssignRequest {
            attributes: self.attributes(now),
            num4: usize::from(self.assign_ipv4),
            num6: usize::from(self.assign_ipv6),
            pools4: self.ipv4_pools.clone(),
            pools6: self.ipv6_pools.clone(),
            restricted: self.restricted.clone(),
            node_selected: self.node_selected.clone(),
            namespace: self.pod.as_ref().map(|pod| pod.namespace.clone()),
            max_blocks: self.max_blocks,
            all_or_nothing: true,
            predecessor: self.predecessor.clone(),
            // Another process may assign the VMI's first address at the same time (IPAM-115).
            max_per_handle: self.vmi.is_some().into(),
            ..AssignRequest::workload(self.handle(), &self.node)
        }
    }

    /// Returns the pod's namespace, or an empty string outside Kubernetes.
    pub fn namespace(&self) -> &str {
        self.pod
            .as_ref()
            .map(|pod| pod.namespace.name.as_str())
            .unwrap_or_default()
    }

    /// Takes the node's lock. Returns `None` if that fails or the lock is disabled.
    pub async fn lock(&self) -> Option<HostLock> {
        self.files.ipam_lock(self.lock_file.as_deref()?).await
    }

    /// Reads the node's file of block hints, which the caller updates for later ADDs; `None` unless
    /// the caller has the node's lock and a prefetch can use the hints.
    pub(crate) fn recent_blocks<S: Store>(
        &self,
        lock: Option<&HostLock>,
        store: &S,
    ) -> Option<BlockHints> {
        match store.write_model() {
            WriteModel::Transactional => None,
            WriteModel::PerObject => BlockHints::read_locked(lock?, self.recent_file.as_deref()),
        }
    }

    pub(crate) fn busy_addresses(&self, now: OffsetDateTime) -> BTreeSet<IpAddr> {
        let notes = self
            .busy_file
            .as_deref()
            .map(|file| busy::valid_notes(file, now))
            .unwrap_or_default();
        notes.into_iter().map(|note| note.address).collect()
    }

    pub(crate) fn notes(&self, now: OffsetDateTime) -> SearchNotes {
        self.exhausted_file
            .as_deref()
            .map(|file| SearchNotes::read(file, now))
            .unwrap_or_default()
    }

    /// Begins a release of addresses, which invalidates the searches on record.
    pub fn begin_release(&self) -> ReleaseGuard {
        ReleaseGuard::on(self.exhausted_file.as_deref())
    }

    /// Returns the attributes that are stored with each address.
    pub fn attributes(&self, now: OffsetDateTime) -> BTreeMap<String, String> {
        let pod = self
            .pod
            .as_ref()
            .map(|pod| (pod.namespace.name.as_str(), pod.name.as_str()));
        let mut attributes = workload_attributes(&self.node, pod, now);
        attributes.extend(self.vmi.iter().flat_map(VmiPod::attributes));
        attributes
    }
}
