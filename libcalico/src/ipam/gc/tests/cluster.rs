//! A simulated cluster: its true state, the pending events of its watches, and an index that
//! receives only these.

mod collect;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::datetime;

use super::super::*;
use crate::ipam::{
    AffinityOwner, Block, BlockRequest, EndedPod, HandleId, Lookup, OwnerSlot, PodState,
    ReportedAddresses, Reservations, VmiLookup, WINDOWS_RESERVED_HANDLE,
};
use crate::net::Cidr;

pub(super) const EPOCH: OffsetDateTime = datetime!(2026-08-22 01:02:03 UTC);
pub(super) const GRACE: Duration = Duration::from_secs(900);

#[derive(Debug, Clone, Default)]
pub(super) struct Pod {
    pub(super) node: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) reported: bool,
    pub(super) ended: Option<EndedPod>,
}

impl Pod {
    pub(super) fn state(&self) -> PodState<'_> {
        let addresses = if self.reported {
            ReportedAddresses::new(self.addresses.clone())
        } else {
            ReportedAddresses::default()
        };
        let runs = self.reported && self.ended.is_none();
        PodState {
            node: &self.node,
            addresses,
            ended: self.ended,
            runs,
        }
    }
}

/// A VMI. `runs` is true once a pod of the VMI has its address.
#[derive(Debug, Clone, Default)]
pub(super) struct Vmi {
    pub(super) runs: bool,
    pub(super) handle: Option<HandleId>,
}

#[derive(Debug, Clone)]
pub(super) enum Event {
    Block(Box<Block>),
    BlockGone(Cidr),
    Pod(String, Pod),
    PodGone(String),
    Vmi(String, bool),
    Service(String, bool),
    Node(String, bool),
}

#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) now: Duration,
    pub(super) cooldown: i64,
    pub(super) nodes: BTreeSet<String>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) vmis: BTreeMap<String, Vmi>,
    pub(super) services: BTreeSet<String>,
    pub(super) tunnels: BTreeSet<String>,
    pub(super) blocks: BTreeMap<Cidr, Block>,
    pub(super) index: Index,
    pub(super) queues: BTreeMap<Queue, VecDeque<Event>>,
    pub(super) released: Vec<Suspect>,
    handles: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Queue {
    Blocks,
    Pods,
    Vmis,
    Services,
    Nodes,
}

pub(super) const QUEUES: [Queue; 5] = [
    Queue::Blocks,
    Queue::Pods,
    Queue::Vmis,
    Queue::Services,
    Queue::Nodes,
];

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

pub(super) fn settings(cooldown: i64) -> GcSettings {
    GcSettings {
        leak_grace: Some(GRACE),
        cooldown,
        vmis: VmiAvailability::Watched,
        services: true,
    }
}

/// Returns a pool out of service, so that its blocks may have any size.
pub(super) fn out_of_service(range: &str) -> PoolShape {
    PoolShape {
        cidr: range.parse().unwrap(),
        block_prefix: 26,
        uid: String::new(),
        in_service: false,
    }
}

fn put_pools(index: &mut Index) {
    index.put_pool("v4", out_of_service("10.0.0.0/16"));
    index.put_pool("v6", out_of_service("fd00::/64"));
}

impl Cluster {
    pub(super) fn new(cooldown: i64) -> Self {
        let mut index = Index::new(settings(cooldown));
        put_pools(&mut index);
        Cluster {
            now: Duration::from_secs(1),
            cooldown,
            nodes: BTreeSet::new(),
            pods: BTreeMap::new(),
            vmis: BTreeMap::new(),
            services: BTreeSet::new(),
            tunnels: BTreeSet::new(),
            blocks: BTreeMap::new(),
            index,
            queues: BTreeMap::new(),
            released: Vec::new(),
            handles: 0,
        }
    }

    pub(super) fn wall(&self) -> OffsetDateTime {
        EPOCH + self.now
    }

    pub(super) fn queue_event(&mut self, queue: Queue, event: Event) {
        self.queues.entry(queue).or_default().push_back(event);
    }

    /// Stores the block and queues its event. Deletes an empty block without owner.
    fn write(&mut self, mut block: Block) {
        block.count_write();
        let cidr = block.cidr;
        if block.is_empty() && block.affinity.is_none() {
            self.blocks.remove(&cidr);
            self.queue_event(Queue::Blocks, Event::BlockGone(cidr));
            return;
        }
        self.blocks.insert(cidr, block.clone());
        self.queue_event(Queue::Blocks, Event::Block(Box::new(block)));
    }

    pub(super) fn claim(&mut self, cidr: &str, node: &str) {
        let cidr: Cidr = cidr.parse().unwrap();
        let owner = AffinityOwner::Host(node.into());
        let block = match self.blocks.get(&cidr) {
            Some(block) => {
                let mut block = block.clone();
                block.affinity = Some(owner.to_string());
                block
            }
            None => Block::new(cidr, &owner, self.wall()).unwrap(),
        };
        self.write(block);
    }

    pub(super) fn clear_affinity(&mut self, cidr: &str) {
        if let Some(mut block) = self.blocks.get(&cidr.parse().unwrap()).cloned() {
            block.clear_affinity();
            self.write(block);
        }
    }

    pub(super) fn new_handle(&mut self) -> HandleId {
        self.handles += 1;
        HandleId::new(format!("k8s-pod-network.{:064x}", self.handles))
    }

    /// Assigns an address, preferably from the node's own blocks.
    pub(super) fn assign(
        &mut self,
        v6: bool,
        node: &str,
        handle: &HandleId,
        attributes: &BTreeMap<String, String>,
    ) -> Option<IpAddr> {
        let owner = AffinityOwner::Host(node.into());
        let (cooldown, wall) = (self.cooldown, self.wall());
        let mut candidates: Vec<Block> = self.blocks.values().cloned().collect();
        candidates.retain(|block| (block.cidr.version() == crate::net::IpVersion::V6) == v6);
        candidates.sort_by_key(|block| block.owner() != Some(owner.clone()));
        for mut block in candidates {
            block.collect_garbage(cooldown, wall).unwrap();
            let request = BlockRequest {
                handle: Some(handle),
                attributes,
                requester: &owner,
                check_affinity: false,
            };
            let taken = block.assign(1, &request, &Reservations::none()).unwrap();
            if let [address] = taken[..] {
                self.write(block);
                return Some(address);
            }
        }
        None
    }

    /// Runs the ADD of a pod; false if it fails. The addresses of an earlier sandbox are left
    /// behind, as after a lost DEL.
    pub(super) fn add(&mut self, name: &str, dual: bool) -> bool {
        let Some(pod) = self
            .pods
            .get(name)
            .cloned()
            .filter(|pod| pod.ended.is_none())
        else {
            return false;
        };
        let handle = self.new_handle();
        let attributes = map(&[("namespace", "ns"), ("pod", name), ("node", &pod.node)]);
        let v4 = self.assign(false, &pod.node, &handle, &attributes);
        let v6 = if dual {
            self.assign(true, &pod.node, &handle, &attributes)
        } else {
            None
        };
        let addresses: Vec<IpAddr> = v4.into_iter().chain(v6).collect();
        if addresses.is_empty() {
            return false;
        }
        self.set_pod(
            name,
            Pod {
                addresses,
                reported: false,
                ..pod
            },
        );
        true
    }

    pub(super) fn set_pod(&mut self, name: &str, pod: Pod) {
        self.pods.insert(name.into(), pod.clone());
        self.queue_event(Queue::Pods, Event::Pod(name.into(), pod));
    }

    pub(super) fn schedule(&mut self, name: &str, node: &str) {
        if self.nodes.contains(node) && !self.pods.contains_key(name) {
            self.set_pod(
                name,
                Pod {
                    node: node.into(),
                    ..Pod::default()
                },
            );
        }
    }

    pub(super) fn report(&mut self, name: &str) {
        if let Some(pod) = self
            .pods
            .get(name)
            .cloned()
            .filter(|pod| !pod.addresses.is_empty())
        {
            self.set_pod(
                name,
                Pod {
                    reported: true,
                    ..pod
                },
            );
        }
    }

    pub(super) fn end(&mut self, name: &str, ended: EndedPod) {
        if let Some(pod) = self
            .pods
            .get(name)
            .cloned()
            .filter(|pod| pod.ended.is_none())
        {
            self.set_pod(
                name,
                Pod {
                    ended: Some(ended),
                    ..pod
                },
            );
        }
    }

    /// Deletes the pod. With `del`, its addresses are released, unless it has ended.
    pub(super) fn delete(&mut self, name: &str, del: bool) {
        let Some(pod) = self.pods.remove(name) else {
            return;
        };
        self.queue_event(Queue::Pods, Event::PodGone(name.into()));
        if del && pod.ended.is_none() {
            pod.addresses
                .into_iter()
                .for_each(|address| self.release_address(address));
        }
    }

    fn release_address(&mut self, address: IpAddr) {
        let Some(mut block) = self
            .blocks
            .values()
            .find(|block| block.cidr.contains(address))
            .cloned()
        else {
            return;
        };
        let Some(handle) = block.allocation(address).and_then(|held| held.handle()) else {
            return;
        };
        block
            .release_by_handle(&handle, None, self.cooldown, self.wall())
            .unwrap();
        self.write(block);
    }

    pub(super) fn node(&mut self, name: &str, exists: bool) {
        if exists {
            self.nodes.insert(name.into());
        } else {
            self.nodes.remove(name);
            self.tunnels.remove(name);
            let on: Vec<String> = self
                .pods
                .iter()
                .filter(|(_, pod)| pod.node == name)
                .map(|(name, _)| name.clone())
                .collect();
            on.iter().for_each(|pod| self.delete(pod, false));
        }
        self.queue_event(Queue::Nodes, Event::Node(name.into(), exists));
    }

    pub(super) fn tunnel(&mut self, node: &str) {
        let handle = HandleId::new(format!("ipip-tunnel-addr-{node}"));
        if !self.nodes.contains(node) {
            return;
        }
        let is_allocated = self
            .blocks
            .values()
            .any(|block| !block.addresses_of(&handle).is_empty());
        let attributes = map(&[("type", "ipipTunnelAddress"), ("node", node)]);
        if is_allocated || self.assign(false, node, &handle, &attributes).is_some() {
            self.tunnels.insert(node.into());
        }
    }

    /// Creates a VMI, or deletes it and leaves its address behind.
    pub(super) fn set_vmi(&mut self, name: &str, exists: bool) {
        if exists {
            self.vmis.entry(name.into()).or_default();
        } else {
            self.vmis.remove(name);
        }
        self.queue_event(Queue::Vmis, Event::Vmi(name.into(), exists));
    }

    /// Starts a pod of a VMI on a node. The pod becomes the owner of the VMI's address in `slot`,
    /// or gets a new address.
    pub(super) fn run_vmi(&mut self, name: &str, node: &str, slot: OwnerSlot) {
        if !self.vmis.contains_key(name) || !self.nodes.contains(node) {
            return;
        }
        let handle = HandleId::for_vmi("net", "ns", name);
        self.handles += 1;
        let launcher = format!("virt-launcher-{name}-{}", self.handles);
        let attributes = map(&[
            ("namespace", "ns"),
            ("pod", &launcher),
            ("node", node),
            ("vmi-name", name),
        ]);
        let block = self
            .blocks
            .values()
            .find(|block| !block.addresses_of(&handle).is_empty())
            .cloned();
        let runs = match block {
            Some(mut block) => {
                if slot == OwnerSlot::Alternate {
                    block.set_owner(&handle, OwnerSlot::Active, &BTreeMap::new());
                }
                block.set_owner(&handle, slot, &attributes);
                self.write(block);
                true
            }
            None => self.assign(false, node, &handle, &attributes).is_some(),
        };
        if let Some(vmi) = self.vmis.get_mut(name).filter(|_| runs) {
            *vmi = Vmi {
                runs,
                handle: Some(handle),
            };
        }
    }

    pub(super) fn service(&mut self, name: &str, exists: bool) {
        if !exists {
            self.services.remove(name);
        } else if self.services.insert(name.into()) {
            self.handles += 1;
            let handle = HandleId::new(format!("lb-{:x}", self.handles));
            let attributes = map(&[
                ("type", "LoadBalancer"),
                ("namespace", "ns"),
                ("service", name),
            ]);
            self.assign(false, "", &handle, &attributes);
        }
        self.queue_event(Queue::Services, Event::Service(name.into(), exists));
    }

    pub(super) fn allocate_without_owner(&mut self, node: &str) {
        let handle = self.new_handle();
        self.assign(false, node, &handle, &map(&[("node", node)]));
    }

    pub(super) fn in_use(&self, address: IpAddr) -> bool {
        let Some(block) = self
            .blocks
            .values()
            .find(|block| block.cidr.contains(address))
        else {
            return false;
        };
        let Some(held) = block.allocation(address).filter(|held| !held.is_cooling()) else {
            return false;
        };
        let Some(handle) = held.handle() else {
            return false;
        };
        let attribute = |key: &str| {
            held.attributes()
                .and_then(|attribute| attribute.get(key))
                .map(String::as_str)
        };
        self.pods
            .values()
            .any(|pod| pod.ended.is_none() && pod.addresses.contains(&address))
            || self
                .vmis
                .values()
                .any(|vmi| vmi.runs && vmi.handle.as_ref() == Some(&handle))
            || attribute("service").is_some_and(|name| self.services.contains(name))
            || self
                .tunnels
                .iter()
                .any(|node| handle.as_str() == format!("ipip-tunnel-addr-{node}"))
            || handle.as_str() == WINDOWS_RESERVED_HANDLE
    }

    pub(super) fn leaked(&self) -> Vec<IpAddr> {
        let held = self
            .blocks
            .values()
            .flat_map(Block::allocated)
            .filter(|held| !held.is_cooling());
        held.map(|held| held.ip)
            .filter(|address| !self.in_use(*address))
            .collect()
    }

    pub(super) fn deliver(&mut self, queue: Queue, n: usize) {
        for _ in 0..n {
            let Some(event) = self.queues.entry(queue).or_default().pop_front() else {
                return;
            };
            apply_event(&mut self.index, &event);
        }
    }

    pub(super) fn deliver_all(&mut self) {
        QUEUES
            .into_iter()
            .for_each(|queue| self.deliver(queue, usize::MAX));
    }

    /// Discards the pending events of a watch and lists its objects again.
    pub(super) fn relist(&mut self, queue: Queue) {
        self.queues.remove(&queue);
        let mut index = std::mem::take(&mut self.index);
        self.list(queue, &mut index);
        self.index = index;
    }

    fn list(&self, queue: Queue, index: &mut Index) {
        let feeds: &[WatchedKind] = match queue {
            Queue::Blocks => &[WatchedKind::Blocks],
            Queue::Pods => &[WatchedKind::Pods],
            Queue::Vmis => &[WatchedKind::VirtualMachines, WatchedKind::Vmis],
            Queue::Services => &[WatchedKind::Services],
            Queue::Nodes => &[WatchedKind::CalicoNodes, WatchedKind::KubernetesNodes],
        };
        feeds.iter().for_each(|feed| index.begin_list(*feed));
        match queue {
            Queue::Blocks => self
                .blocks
                .values()
                .for_each(|block| index.put_block(block).unwrap()),
            Queue::Pods => self
                .pods
                .iter()
                .for_each(|(name, pod)| index.put_pod("ns", name, &pod.state())),
            Queue::Vmis => {
                for name in self.vmis.keys() {
                    apply_event(index, &Event::Vmi(name.clone(), true));
                }
            }
            Queue::Services => self
                .services
                .iter()
                .for_each(|name| index.put_service("ns", name)),
            Queue::Nodes => {
                for name in &self.nodes {
                    apply_event(index, &Event::Node(name.clone(), true));
                }
            }
        }
        feeds.iter().for_each(|feed| index.end_list(*feed));
    }

    /// Returns a new index that has received only the present objects.
    pub(super) fn rebuilt_index(&self) -> Index {
        let mut index = Index::new(settings(self.cooldown));
        put_pools(&mut index);
        QUEUES
            .into_iter()
            .for_each(|queue| self.list(queue, &mut index));
        index
    }

    pub(super) fn check(&self) {
        self.index.verify().unwrap();
    }
}

fn apply_event(index: &mut Index, event: &Event) {
    match event {
        Event::Block(block) => index.put_block(block).unwrap(),
        Event::BlockGone(cidr) => index.remove_block(cidr),
        Event::Pod(name, pod) => index.put_pod("ns", name, &pod.state()),
        Event::PodGone(name) => index.remove_pod("ns", name),
        Event::Vmi(name, true) => {
            index.put_virtual_machine("ns", name);
            index.put_vmi("ns", name);
        }
        Event::Vmi(name, false) => {
            index.remove_virtual_machine("ns", name);
            index.remove_vmi("ns", name);
        }
        Event::Service(name, true) => index.put_service("ns", name),
        Event::Service(name, false) => index.remove_service("ns", name),
        Event::Node(name, true) => {
            index.put_calico_node(name, Some(name));
            index.put_kubernetes_node(name, false);
        }
        Event::Node(name, false) => {
            index.remove_kubernetes_node(name);
            index.remove_calico_node(name);
        }
    }
}
