//! The rows of nodes and namespaces.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::facts::{BlockFacts, UsageInput};
use super::family_count::{FamilyCount, exact_number, family_number};
use super::room::PodRoom;
use crate::ipam::{AllocationOwner, Borrowings, Labels};
use crate::net::{Cidr, IpVersion};

/// The row of tunnel addresses.
const TUNNELS: &str = "(tunnels)";
/// The row of the addresses of Services.
const SERVICES: &str = "(services)";
/// The row of addresses that name no namespace.
const NONE: &str = "(none)";

/// The addresses of one family that a node uses and has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsage {
    /// The node's name.
    pub node: String,
    /// The family, 4 or 6.
    #[serde(rename = "ipVersion", serialize_with = "family_number")]
    pub version: IpVersion,
    /// The number of blocks that the node owns.
    pub blocks: u64,
    /// The number of addresses that the node's pods and tunnels use, in any block.
    pub used: u64,
    /// The number of those addresses that are in blocks of other owners.
    pub borrowed: u64,
    /// The number of addresses in the node's blocks that others use.
    pub lent: u64,
    /// The number of free addresses in the node's blocks.
    pub free: u64,
    /// The number of further pods for which the node can get addresses, if no other node gets any;
    /// `None` if the node does not exist.
    #[serde(serialize_with = "exact_if_known")]
    pub fits: Option<u128>,
}

/// The addresses that a namespace uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamespaceUsage {
    /// The namespace, or the name of the addresses without one, in parentheses.
    pub namespace: String,
    /// The number of addresses in use.
    #[serde(flatten)]
    pub used: FamilyCount,
}

/// The addresses in use by their owners.
pub(super) struct OwnerCounts {
    nodes: BTreeMap<(String, IpVersion), u64>,
    pub(super) without_node: FamilyCount,
    pub(super) namespaces: Vec<NamespaceUsage>,
}

/// Counts each address in use for one node and for one namespace.
pub(super) fn count(blocks: &[BlockFacts<'_>]) -> OwnerCounts {
    let (mut nodes, mut without_node) = (
        BTreeMap::<(String, IpVersion), u64>::new(),
        FamilyCount::default(),
    );
    let mut namespaces = BTreeMap::<&str, FamilyCount>::new();
    for facts in blocks {
        for allocation in facts
            .block
            .allocated()
            .filter(|allocation| !allocation.is_cooling())
        {
            let (owner, named) = allocation
                .attribute
                .map_or((AllocationOwner::Unnamed, None), AllocationOwner::of);
            namespaces
                .entry(namespace_of(&owner))
                .or_default()
                .add(facts.version(), 1);
            match node_of(&owner, named, facts) {
                Some(node) => *nodes.entry((node.to_owned(), facts.version())).or_default() += 1,
                None => without_node.add(facts.version(), 1),
            }
        }
    }
    let namespaces = namespaces.into_iter();
    let namespaces = namespaces
        .map(|(name, used)| NamespaceUsage {
            namespace: name.to_owned(),
            used,
        })
        .collect();
    OwnerCounts {
        nodes,
        without_node,
        namespaces,
    }
}

/// Returns the node that an allocation names, or else the owner of its block. A Service has no node
/// (KC-500).
fn node_of<'a>(
    owner: &AllocationOwner<'_>,
    named: Option<&'a str>,
    block: &'a BlockFacts<'_>,
) -> Option<&'a str> {
    match owner {
        AllocationOwner::Service { .. } => None,
        _ => named.or_else(|| block.owning_node()),
    }
}

fn namespace_of<'a>(owner: &AllocationOwner<'a>) -> &'a str {
    match owner {
        AllocationOwner::Tunnel => TUNNELS,
        AllocationOwner::Service { .. } => SERVICES,
        _ => owner.names().map_or(NONE, |(namespace, _)| namespace),
    }
}

/// Returns the rows of the nodes that exist, own a block or use an address.
pub(super) fn node_usages(
    owners: &OwnerCounts,
    blocks: &[BlockFacts<'_>],
    borrowed: &Borrowings,
    room: &PodRoom<'_>,
    input: &UsageInput<'_>,
) -> Vec<NodeUsage> {
    let labels: BTreeMap<&str, &Labels> = input
        .nodes
        .into_iter()
        .flatten()
        .map(|node| (node.metadata.name.as_str(), &node.metadata.labels))
        .collect();
    let mut versions: BTreeSet<IpVersion> = room
        .versions()
        .into_iter()
        .chain(blocks.iter().map(BlockFacts::version))
        .collect();
    if versions.is_empty() {
        versions.insert(IpVersion::V4);
    }
    let names = labels.keys().copied();
    let names = names.chain(blocks.iter().filter_map(BlockFacts::owning_node));
    let names: BTreeSet<&str> = names
        .chain(owners.nodes.keys().map(|(node, _)| node.as_str()))
        .collect();
    let mut rows = BTreeMap::new();
    for name in names {
        for &version in &versions {
            let fits = match (input.nodes, labels.get(name)) {
                (Some(_), None) => None,
                (_, labels) => Some(room.pods_on(name, labels.copied(), version)),
            };
            let used = owners
                .nodes
                .get(&(name.to_owned(), version))
                .copied()
                .unwrap_or_default();
            let node = name.to_owned();
            let row = NodeUsage {
                node,
                version,
                blocks: 0,
                used,
                borrowed: 0,
                lent: 0,
                free: 0,
                fits,
            };
            rows.insert((name, version), row);
        }
    }
    let mut owner_of = BTreeMap::<Cidr, &str>::new();
    for block in blocks {
        let Some(node) = block.owning_node() else {
            continue;
        };
        owner_of.insert(block.block.cidr, node);
        if let Some(row) = rows.get_mut(&(node, block.version())) {
            row.blocks += 1;
            row.free += block.free;
        }
    }
    for address in &borrowed.rows {
        let version = address.block.version();
        if let Some(row) = rows.get_mut(&(address.node.as_str(), version)) {
            row.borrowed += 1;
        }
        let lender = owner_of
            .get(&address.block)
            .and_then(|owner| rows.get_mut(&(*owner, version)));
        if let Some(row) = lender {
            row.lent += 1;
        }
    }
    rows.into_values().collect()
}

fn exact_if_known<S: serde::Serializer>(
    number: &Option<u128>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => exact_number(number, serializer),
        None => serializer.serialize_none(),
    }
}
