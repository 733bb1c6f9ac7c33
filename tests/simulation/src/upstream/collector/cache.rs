//! Applies the events of the watches, which are the differences between two snapshots.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::api::Node;
use libcalico::ipam::{AffinityOwner, Block};
use libcalico::net::Cidr;
use libcalico::store::Entry;

use super::{AllocationId, Collector, Snapshot, Tracked};

impl Collector {
    /// Applies the differences from the last snapshot.
    pub fn observe(&mut self, snapshot: Snapshot) {
        self.is_ready = snapshot.is_ready;
        self.kubernetes_names = snapshot.nodes.iter().map(name_in_kubernetes).collect();
        let is_deleted = |name: &String| !snapshot.kubernetes_nodes.contains(name);
        if self.kubernetes_nodes.iter().any(is_deleted) {
            self.full_scan = true;
        }
        self.kubernetes_nodes = snapshot.kubernetes_nodes;
        for (key, pod) in &self.pods {
            let present = snapshot.pods.get(key);
            let is_same = present.is_some_and(|found| found.metadata.uid == pod.metadata.uid);
            // Upstream marks the name in Kubernetes, although the set has the names of Calico.
            if !is_same && !pod.spec.node_name.is_empty() {
                self.dirty_nodes.insert(pod.spec.node_name.clone());
            }
        }
        self.pods = snapshot.pods;
        self.observe_blocks(snapshot.blocks);
    }

    fn observe_blocks(&mut self, blocks: Vec<Entry<Block>>) {
        let present: BTreeSet<Cidr> = blocks.iter().map(|entry| entry.key).collect();
        let gone: Vec<Cidr> = self
            .delivered
            .keys()
            .filter(|cidr| !present.contains(cidr))
            .copied()
            .collect();
        for cidr in gone {
            self.delivered.remove(&cidr);
            self.forget(&cidr);
        }
        for entry in blocks {
            if self.delivered.get(&entry.key) != Some(&entry.revision) {
                self.delivered.insert(entry.key, entry.revision.clone());
                self.update(entry);
            }
        }
    }

    /// Removes every trace of a block.
    pub(super) fn forget(&mut self, cidr: &Cidr) {
        self.blocks.remove(cidr);
        self.clear_node_of(cidr);
        self.empty_blocks.remove(cidr);
        self.cold_blocks.remove(cidr);
        self.releasable_since.remove(cidr);
        for id in self.allocations_in(cidr) {
            self.drop_allocation(&id);
        }
    }

    /// Removes every trace of an allocation.
    pub(super) fn drop_allocation(&mut self, id: &AllocationId) {
        self.confirmed_leaks.remove(id);
        if let Some(tracked) = self.allocations.remove(id) {
            self.dirty_nodes.extend(tracked.filed_under);
        }
    }

    fn update(&mut self, entry: Entry<Block>) {
        let cidr = entry.key;
        let host = match (entry.value.owner(), &entry.value.affinity) {
            (Some(AffinityOwner::Host(name)), _) => {
                let blocks = self.blocks_of_node.entry(name.clone()).or_default();
                blocks.insert(cidr);
                self.node_of_block.insert(cidr, name.clone());
                Some(name)
            }
            (_, None) => {
                self.clear_node_of(&cidr);
                None
            }
            // Another kind of owner leaves the former node in place.
            _ => None,
        };
        self.update_allocations(&entry.value);
        self.empty_blocks.remove(&cidr);
        let is_unallocated = entry.value.allocated().next().is_none();
        match host {
            Some(host) if is_unallocated => _ = self.empty_blocks.insert(cidr, host),
            Some(_) => _ = self.releasable_since.remove(&cidr),
            None => {}
        }
        let cold = entry
            .value
            .allocated()
            .filter_map(|held| held.released_at());
        match cold.min() {
            Some(first) => _ = self.cold_blocks.insert(cidr, first),
            None => _ = self.cold_blocks.remove(&cidr),
        }
        self.blocks.insert(cidr, entry);
    }

    fn update_allocations(&mut self, block: &Block) {
        let mut present = BTreeSet::new();
        for held in block.allocated() {
            let Some(handle) = held.attribute.and_then(|found| found.handle_id.clone()) else {
                continue;
            };
            let id: (String, IpAddr) = (handle, held.ip);
            let attributes = held.attributes().cloned().unwrap_or_default();
            let sequence = held.sequence.unwrap_or_default();
            match self.allocations.get_mut(&id) {
                Some(known) if known.sequence == sequence => {}
                Some(known) => {
                    (known.sequence, known.attributes) = (sequence, attributes);
                    known.mark_valid();
                }
                None => {
                    let node = attributes.get("node").filter(|node| !node.is_empty());
                    let filed_under = node.cloned();
                    self.dirty_nodes.extend(filed_under.clone());
                    let tracked = Tracked {
                        attributes,
                        sequence,
                        block: block.cidr,
                        filed_under,
                        kubernetes_node: String::new(),
                        leaked_at: None,
                        is_confirmed: false,
                    };
                    self.allocations.insert(id.clone(), tracked);
                }
            }
            present.insert(id);
        }
        for id in self.allocations_in(&block.cidr) {
            if !present.contains(&id) {
                self.drop_allocation(&id);
            }
        }
    }

    fn allocations_in(&self, cidr: &Cidr) -> Vec<AllocationId> {
        let of_block = self
            .allocations
            .iter()
            .filter(|(_, tracked)| tracked.block == *cidr);
        of_block.map(|(id, _)| id.clone()).collect()
    }

    fn clear_node_of(&mut self, cidr: &Cidr) {
        let Some(node) = self.node_of_block.remove(cidr) else {
            return;
        };
        if let Some(blocks) = self.blocks_of_node.get_mut(&node) {
            blocks.remove(cidr);
            if blocks.is_empty() {
                self.blocks_of_node.remove(&node);
            }
        }
    }
}

fn name_in_kubernetes(node: &Node) -> (String, String) {
    let name = node.spec.kubernetes_name().unwrap_or_default();
    (node.metadata.name.clone(), name.to_owned())
}
