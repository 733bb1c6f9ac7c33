//! [`Invariants`]: what must hold after each step, and when everything is at rest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use allocation::journal::PendingDel;
use allocation::testing::assert_consistent;
use libcalico::ipam::{AffinityOwner, AffinitySelect, Block, BlockAffinity, Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::Kind as _;

use crate::cluster::{Cluster, NETWORK, Sandbox, SandboxState};
use crate::datastore::Content;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub invariant: &'static str,
    /// The objects concerned.
    pub text: String,
}

impl Violation {
    /// Creates the violation of an invariant.
    pub fn new(invariant: &'static str, text: impl Into<String>) -> Self {
        Violation {
            invariant,
            text: text.into(),
        }
    }
}

/// The invariants, with the entries of journals that were there after the last step.
#[derive(Debug, Default)]
pub struct Invariants {
    journals: BTreeMap<usize, BTreeMap<PathBuf, PendingDel>>,
    /// The owner of each allocated address, at a revision of the datastore.
    owners: (u64, BTreeMap<IpAddr, String>),
    /// The violations that a limit excuses.
    pub excused: Excused,
}

/// The number of violations that a limit in `docs/limitations.md` excuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Excused {
    /// "Late writes": a write of a stopped ADD reached the datastore after the DEL.
    pub late_writes: usize,
}

impl Invariants {
    /// Checks what must hold at any time.
    pub fn after_step(&mut self, cluster: &Cluster) -> Result<(), Violation> {
        let revision = cluster.datastore.revision();
        if self.owners.0 != revision {
            self.owners = (revision, owners(cluster));
        }
        let sandboxes = cluster.sandboxes.borrow();
        let mut users = BTreeMap::<IpAddr, &Sandbox>::new();
        for sandbox in sandboxes.iter() {
            let SandboxState::Running(addresses) = &sandbox.state else {
                continue;
            };
            for address in addresses {
                if let Some(other) = users.insert(*address, sandbox) {
                    return Err(Violation::new(
                        "two running pods have different addresses",
                        format!("{address}: {} and {}", other.container, sandbox.container),
                    ));
                }
                let owner = self.owners.1.get(address).map(String::as_str);
                if owner != Some(handle(&sandbox.container).as_str()) {
                    return Err(Violation::new(
                        "an address of a running pod is allocated to it",
                        format!(
                            "{address} of {} is {}",
                            sandbox.container,
                            owner.map_or("free".into(), |owner| format!("allocated to {owner}"))
                        ),
                    ));
                }
                check_kernel(cluster, sandbox, *address)?;
            }
        }
        drop(sandboxes);
        self.check_journals(cluster)
    }

    /// Checks that an entry of a journal is there as long as its container holds an address from
    /// before the DEL.
    fn check_journals(&mut self, cluster: &Cluster) -> Result<(), Violation> {
        for number in 0..cluster.nodes.len() {
            let present = entries(cluster, number);
            let former = self.journals.insert(number, present).unwrap_or_default();
            let present = &self.journals[&number];
            for (path, entry) in former {
                if present.contains_key(&path) {
                    continue;
                }
                let held = self
                    .owners
                    .1
                    .iter()
                    .find(|(_, owner)| entry.handles.iter().any(|handle| handle == *owner));
                let sandboxes = cluster.sandboxes.borrow();
                let is_live = sandboxes.iter().any(|sandbox| {
                    sandbox.container == entry.container_id
                        && matches!(
                            sandbox.state,
                            SandboxState::Starting | SandboxState::Running(_)
                        )
                });
                // The DEL that runs now may release the addresses by itself.
                let is_deleted_now = sandboxes.iter().any(|sandbox| {
                    sandbox.container == entry.container_id
                        && sandbox.state == SandboxState::Stopping
                });
                let Some((address, owner)) = held else {
                    continue;
                };
                let path = Handle::path(&HandleId::new(owner));
                if cluster.datastore.is_changed_late(&path) {
                    self.excused.late_writes += 1;
                    continue;
                }
                if !is_live && !is_deleted_now {
                    return Err(Violation::new(
                        "a deferred DEL is kept until its addresses are free",
                        format!("{address} of {}", entry.container_id),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks what must hold when all pods are gone and no fault occurs.
    pub fn at_rest(&self, cluster: &Cluster) -> Result<(), Violation> {
        if let Some((pod, error)) = cluster.waiting.borrow().iter().next() {
            return Err(Violation::new(
                "each waiting pod is served",
                format!("{pod}: {error:?}"),
            ));
        }
        if let Some((address, owner)) = owners(cluster).iter().next() {
            return Err(Violation::new(
                "all addresses are free when all pods are gone",
                format!("{address} is allocated to {owner}"),
            ));
        }
        check_collected(cluster)?;
        for number in 0..cluster.nodes.len() {
            if let Some(entry) = entries(cluster, number).values().next() {
                return Err(Violation::new(
                    "all journals are empty when all pods are gone",
                    entry.container_id.clone(),
                ));
            }
            if let Some(link) = cluster.nodes[number].kernel.host_links().first() {
                return Err(Violation::new(
                    "no interface is left when all pods are gone",
                    format!("{link:?}"),
                ));
            }
        }
        Ok(())
    }
}

/// Checks that nothing is left that garbage collection deletes: handles, affinities without a block,
/// more than one empty block of a node, and objects of deleted nodes.
fn check_collected(cluster: &Cluster) -> Result<(), Violation> {
    let invariant = "blocks, handles and affinities agree when all pods are gone";
    let pairs = cluster.datastore.read(|content| match content {
        Content::Etcd(pairs) => Some(pairs.clone()),
        Content::Kubernetes(_) => None,
    });
    if let Some(pairs) = pairs {
        let checked = catch_unwind(AssertUnwindSafe(|| assert_consistent(&pairs, true)));
        checked.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Violation::new(invariant, text.unwrap_or_default())
        })?;
    }
    let mut owners = BTreeSet::new();
    for (cidr, block) in cluster.datastore.list::<Block>(&None) {
        let Some(AffinityOwner::Host(node)) = block.owner() else {
            continue;
        };
        if !cluster.kubernetes.has_node(&node) {
            return Err(Violation::new(
                "no block of a deleted node is left",
                format!("{cidr} of {node}"),
            ));
        }
        if !owners.insert(node.clone()) {
            return Err(Violation::new(
                "a node keeps at most one empty block",
                format!("{cidr} of {node} is another one"),
            ));
        }
    }
    let affinities = cluster
        .datastore
        .list::<BlockAffinity>(&AffinitySelect::default());
    let orphan = affinities.iter().find(|(key, _)| match &key.owner {
        AffinityOwner::Host(node) => !cluster.kubernetes.has_node(node),
        AffinityOwner::Virtual(_) => false,
    });
    match orphan {
        Some((key, _)) => Err(Violation::new(
            "no affinity of a deleted node is left",
            key.to_string(),
        )),
        None => Ok(()),
    }
}

fn handle(container: &str) -> String {
    format!("{NETWORK}.{container}")
}

fn owners(cluster: &Cluster) -> BTreeMap<IpAddr, String> {
    let blocks = cluster.datastore.list::<Block>(&None);
    let mut owners = BTreeMap::new();
    for (_, block) in &blocks {
        for allocation in block.allocated() {
            let handle = allocation.handle();
            let owner = handle.map_or(String::new(), |handle| handle.to_string());
            owners.insert(allocation.ip, owner);
        }
    }
    owners
}

fn entries(cluster: &Cluster, node: usize) -> BTreeMap<PathBuf, PendingDel> {
    let journal = cluster.nodes[node].journal();
    if journal.is_empty() {
        return BTreeMap::new();
    }
    let entries = journal.entries().unwrap_or_default().into_iter();
    entries
        .filter_map(|entry| Some((entry.path, entry.pending_del.ok()?)))
        .collect()
}

fn check_kernel(cluster: &Cluster, sandbox: &Sandbox, address: IpAddr) -> Result<(), Violation> {
    let links = cluster.nodes[sandbox.node].kernel.host_links();
    let destination = Cidr::host(address);
    let leads_to_sandbox = links.iter().any(|host| {
        let peer = host.peer.as_ref();
        let netns = peer.and_then(|peer| peer.netns.as_deref());
        host.destinations.contains(&destination)
            && host.link.has_carrier
            && netns == Some(Path::new(&sandbox.netns))
    });
    if leads_to_sandbox {
        return Ok(());
    }
    Err(Violation::new(
        "a running pod has its interface and route",
        format!("{} has none for {address}: {links:?}", sandbox.container),
    ))
}
