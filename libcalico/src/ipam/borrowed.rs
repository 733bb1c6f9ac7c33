//! [`borrowed`]: the addresses that nodes use from blocks of other owners.

use std::net::IpAddr;

use serde::Serialize;

use super::{Allocation, Block};
use crate::net::Cidr;

/// An address that a node uses from a block of another owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BorrowedAddress {
    /// The address.
    pub address: IpAddr,
    /// The node in the attributes of the allocation.
    pub node: String,
    /// The block.
    pub block: Cidr,
    /// The name of the block's owner; empty if the block has none.
    pub block_owner: String,
    /// `vmi`, `pod`, or the attribute `type` of the allocation, which may be missing.
    #[serde(rename = "type")]
    pub kind: String,
    /// Namespace and name of the virtual machine or the pod; empty for other owners.
    pub allocated_to: String,
}

/// The borrowed addresses of all blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Borrowings {
    /// The borrowed addresses, in the order of the blocks.
    #[serde(rename = "addresses")]
    pub rows: Vec<BorrowedAddress>,
    /// The number of allocations that name no node, so that they may be borrowed or not.
    pub without_node: usize,
}

/// Finds the borrowed addresses: those with a node other than the owner of their block. Addresses
/// that cool down are left out.
pub fn borrowed<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Borrowings {
    let mut found = Borrowings::default();
    for block in blocks {
        let owner = owner_name(block);
        for allocation in block
            .allocated()
            .filter(|allocation| !allocation.is_cooling())
        {
            match attribute(&allocation, "node") {
                "" => found.without_node += 1,
                node if node == owner => {}
                node => found.rows.push(row(block, owner, node, &allocation)),
            }
        }
    }
    found
}

fn owner_name(block: &Block) -> &str {
    let affinity = block.affinity.as_deref().unwrap_or_default();
    affinity.split_once(':').map_or("", |(_, name)| name)
}

fn row(block: &Block, owner: &str, node: &str, allocation: &Allocation<'_>) -> BorrowedAddress {
    let namespaced = |name: &str| format!("{}/{name}", attribute(allocation, "namespace"));
    let (kind, allocated_to) = match (
        attribute(allocation, "vmi-name"),
        attribute(allocation, "pod"),
    ) {
        ("", "") => (attribute(allocation, "type"), String::new()),
        ("", pod) => ("pod", namespaced(pod)),
        (machine, _) => ("vmi", namespaced(machine)),
    };
    BorrowedAddress {
        address: allocation.ip,
        node: node.to_owned(),
        block: block.cidr,
        block_owner: owner.to_owned(),
        kind: kind.to_owned(),
        allocated_to,
    }
}

/// Returns an attribute of the active owner, or an empty text if it is missing.
fn attribute<'a>(allocation: &Allocation<'a>, key: &str) -> &'a str {
    allocation
        .attributes()
        .and_then(|attributes| attributes.get(key))
        .map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn block(affinity: Value, allocations: Value, attributes: Value) -> Block {
        let stored = json!({
            "cidr": "10.0.0.0/30", "affinity": affinity, "allocations": allocations,
            "unallocated": [],
            "attributes": attributes,
        });
        serde_json::from_value(stored).unwrap()
    }

    fn of_node(node: &str, more: &[(&str, &str)]) -> Value {
        let mut attributes = json!({ "node": node });
        for (key, value) in more {
            attributes[key] = json!(value);
        }
        json!({ "handle_id": "h", "secondary": attributes })
    }

    #[test]
    fn addresses_of_other_nodes_than_the_owner_are_borrowed() {
        let pod = [("namespace", "ns"), ("pod", "web")];
        let machine = [
            ("namespace", "ns"),
            ("pod", "virt-launcher-vm"),
            ("vmi-name", "vm"),
        ];
        let attributes = json!([
            of_node("node1", &[]),
            of_node("node2", &pod),
            of_node("node2", &machine),
            of_node("node3", &[("type", "ipipTunnelAddress")]),
        ]);
        let found = borrowed([&block(json!("host:node1"), json!([0, 1, 2, 3]), attributes)]);
        let rows: Vec<[&str; 4]> = found
            .rows
            .iter()
            .map(|row| {
                [
                    row.node.as_str(),
                    row.block_owner.as_str(),
                    row.kind.as_str(),
                    row.allocated_to.as_str(),
                ]
            })
            .collect();
        let expected = [
            ["node2", "node1", "pod", "ns/web"],
            ["node2", "node1", "vmi", "ns/vm"],
            ["node3", "node1", "ipipTunnelAddress", ""],
        ];
        assert_eq!(rows, expected);
        assert_eq!(found.rows[0].address.to_string(), "10.0.0.1");
        assert_eq!(found.without_node, 0);
    }

    #[test]
    fn addresses_without_node_or_attribute_are_counted() {
        let attributes =
            json!([{ "handle_id": "h", "secondary": { "pod": "web", "namespace": "ns" } }]);
        let found = borrowed([&block(
            json!("host:node1"),
            json!([0, 9, null, null]),
            attributes,
        )]);
        assert_eq!(
            found,
            Borrowings {
                rows: Vec::new(),
                without_node: 2
            }
        );
    }

    #[test]
    fn addresses_of_services_and_cooling_ones_are_not_borrowed() {
        let mut cooling = of_node("node2", &[]);
        cooling["releasedAt"] = json!("2026-11-23T04:42:10Z");
        let attributes = json!([of_node("load-balancer", &[]), cooling]);
        let found = borrowed([&block(
            json!("virtual:load-balancer"),
            json!([0, 1, null, null]),
            attributes,
        )]);
        assert_eq!(found, Borrowings::default());
    }

    #[test]
    fn addresses_of_a_block_without_owner_are_borrowed() {
        let found = borrowed([&block(
            json!(null),
            json!([0, null, null, null]),
            json!([of_node("node1", &[])]),
        )]);
        assert_eq!(
            (found.rows.len(), found.rows[0].block_owner.as_str()),
            (1, "")
        );
    }
}
