//! Logs the addresses that a handle got, with their blocks and pools.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::api::IpPool;
use libcalico::ipam::HandleId;
use libcalico::net::Cidr;
use libcalico::store::Entry;

/// Logs addresses with their blocks. Logs nothing if there are no addresses.
pub(crate) fn assigned(
    handle: &HandleId,
    pools: &[Entry<IpPool>],
    addresses: impl IntoIterator<Item = (IpAddr, Cidr)>,
) {
    let (mut ips, mut blocks, mut names) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (ip, block) in addresses {
        let mut pools = pools.iter().map(|entry| &entry.value);
        let pool = pools.find(|pool| pool.spec.range().is_ok_and(|range| range.contains(ip)));
        names.extend(pool.map(|pool| pool.metadata.name.clone()));
        blocks.insert(block.to_string());
        ips.push(ip);
    }
    if ips.is_empty() {
        return;
    }
    let (blocks, pools) = (Vec::from_iter(blocks).join(","), Vec::from_iter(names).join(","));
    tracing::info!(addresses = joined(&ips), blocks, %handle, pools, "assigned addresses");
}

/// Returns addresses as the value of a log field.
pub(crate) fn joined(ips: &[IpAddr]) -> String {
    ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
