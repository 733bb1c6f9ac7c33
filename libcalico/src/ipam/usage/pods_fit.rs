//! [`PodsFit`]: the room for further pods in the whole cluster.

use std::collections::BTreeMap;

use serde::Serialize;

use super::facts::PoolService;
use super::family_count::{exact_number, family_number};
use super::owners::NodeUsage;
use super::pools::PoolUsage;
use crate::net::IpVersion;

/// Upper bounds of the number of further pods, by their addresses of one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodsFit {
    /// The family, 4 or 6.
    #[serde(rename = "ipVersion", serialize_with = "family_number")]
    pub version: IpVersion,
    /// The number of pods that name no pool.
    #[serde(serialize_with = "exact_number")]
    pub pods: u128,
    /// The number of pods that name a pool which other pods do not use.
    #[serde(serialize_with = "exact_number")]
    pub on_request: u128,
}

/// Returns the room in the pools. If all nodes are known, pods that name no pool do not exceed the
/// sum of the nodes.
pub(super) fn totals(
    pools: &[PoolUsage],
    nodes: &[NodeUsage],
    has_all_nodes: bool,
) -> Vec<PodsFit> {
    let mut totals = BTreeMap::new();
    for pool in pools {
        let version = pool.cidr.version();
        let total = totals.entry(version).or_insert(PodsFit {
            version,
            pods: 0,
            on_request: 0,
        });
        match pool.serves {
            PoolService::Pods => total.pods = total.pods.saturating_add(pool.free),
            PoolService::OnRequest => total.on_request = total.on_request.saturating_add(pool.free),
            PoolService::OtherUses | PoolService::OutOfService => {}
        }
    }
    if has_all_nodes {
        for total in totals.values_mut() {
            let of_family = nodes
                .iter()
                .filter(|node| node.version == total.version)
                .filter_map(|node| node.fits);
            total.pods = total.pods.min(of_family.fold(0, u128::saturating_add));
        }
    }
    totals.into_values().collect()
}
