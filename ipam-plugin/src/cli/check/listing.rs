//! [`ListedAddress`]: an allocated address for `check --show-all-ips`, in the words of calicoctl
//! (INST-205).

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::ipam::{Allocation, PackedBlock};
use libcalico::net::Cidr;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedAddress {
    pub(super) address: IpAddr,
    pub(super) block: Cidr,
    /// The owner of the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) affinity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
    attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    alternate_attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cooling_down: bool,
    /// True if the block lacks the attributes to which the address points.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    without_attributes: bool,
}

pub(super) fn listed_addresses(blocks: &[PackedBlock]) -> Vec<ListedAddress> {
    let of_block = |block: &PackedBlock| {
        block
            .allocated()
            .map(|held| held.read(|held| listed(block, held)))
            .collect::<Vec<_>>()
    };
    blocks.iter().flat_map(of_block).collect()
}

fn listed(block: &PackedBlock, held: &Allocation<'_>) -> ListedAddress {
    ListedAddress {
        address: held.ip,
        block: block.cidr,
        affinity: block.affinity().map(str::to_owned),
        handle: held
            .attribute
            .and_then(|attribute| attribute.handle_id.clone()),
        attributes: held
            .attribute
            .map(|attribute| attribute.active_owner.clone())
            .unwrap_or_default(),
        alternate_attributes: held
            .attribute
            .map(|attribute| attribute.alternate_owner.clone())
            .unwrap_or_default(),
        cooling_down: held.is_cooling(),
        without_attributes: held.attribute.is_none(),
    }
}

impl ListedAddress {
    /// Returns handle and attributes, as in `Main:net.c1 Extra:node=node1,pod=web`.
    pub(super) fn describe(&self) -> String {
        if self.without_attributes {
            return "<missing>".into();
        }
        let pairs = |attributes: &BTreeMap<String, String>| {
            attributes
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(",")
        };
        let handle = self.handle.as_deref().unwrap_or("<none>");
        let mut text = format!("Main:{handle} Extra:{}", pairs(&self.attributes));
        if !self.alternate_attributes.is_empty() {
            text.push_str(&format!(" Alternate:{}", pairs(&self.alternate_attributes)));
        }
        text
    }
}
