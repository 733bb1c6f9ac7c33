//! CHECK: compares the result of the ADD with the datastore. Upstream's CHECK compares nothing (IPAM-9).

use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{Block, Handle, Holder, OwnerSlot};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};
use netconf::{CniError, Code};

use super::call::IpamRequest;
use crate::error::{cni_error, log_withheld};
use crate::reads::blocks_of;

/// Compares `recorded`, the addresses in prevResult, with the datastore. The details of the error list each difference.
pub async fn check<S: Store>(store: &S, call: &IpamRequest, recorded: &[IpAddr]) -> Result<(), CniError> {
    let differences = differences(store, call, recorded).await.map_err(|error| cni_error(&error.into()))?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(CniError::new(Code::CHECK_FAILED, "the addresses of the container differ from the result of the ADD")
        .with_details(differences.join("; ")))
}

/// Returns the differences between `ips`, the addresses in prevResult, and the datastore.
pub async fn differences<S: Store>(store: &S, call: &IpamRequest, ips: &[IpAddr]) -> Result<Vec<String>, StoreError> {
    let id = call.handle();
    let mut batch = ReadBatch::new();
    let (handle, pools) = (batch.get::<Handle>(&id), batch.list::<IpPool>(&ObjectSelect::default()));
    let answers = store.read(&batch).await?;
    let handle = answers.get(&handle)?.map(|entry| entry.value);
    let pools: Vec<IpPool> = answers.list(&pools).into_iter().map(|entry| entry.value).collect();

    let counted = handle.iter().flat_map(|handle| handle.block.keys().copied());
    let blocks = blocks_of(store, &pools, ips, counted.collect()).await?;

    let mut found = Vec::new();
    if handle.is_none() {
        found.push(format!("handle {id} does not exist"));
    }
    for ip in ips {
        found.extend(difference_of_address(&blocks, *ip, call));
    }
    for entry in &blocks {
        let held = entry.value.addresses_of(&id).len();
        let counts = handle.as_ref().and_then(|handle| handle.block.get(&entry.key)).copied().unwrap_or_default();
        if i64::try_from(held).is_ok_and(|held| counts < held) && handle.is_some() {
            found.push(format!("handle {id} counts {counts} addresses in block {}, which holds {held}", entry.key));
        }
    }
    Ok(found)
}

fn difference_of_address(blocks: &[Entry<Block>], ip: IpAddr, call: &IpamRequest) -> Option<String> {
    let Some(block) = blocks.iter().find(|block| block.key.contains(ip)) else {
        return Some(format!("{ip} is in no block"));
    };
    let Some(held) = block.value.allocation(ip) else { return Some(format!("{ip} is free in block {}", block.key)) };
    if held.handle() != Some(call.handle()) {
        let holder = Holder::of(&held, call.pod.as_ref().map(|pod| pod.namespace.name.as_str()));
        log_withheld(ip, &holder);
        return Some(format!("{ip} is held by {}", holder.told));
    }
    // A VMI in migration has a pod on each of two nodes.
    let slots = [OwnerSlot::Active, OwnerSlot::Alternate];
    let mut nodes = slots.into_iter().filter_map(|slot| held.attribute?.owner(slot).get("node"));
    let active = nodes.next().map_or("", String::as_str);
    let is_recorded = active == call.node || nodes.any(|node| *node == call.node);
    (!is_recorded).then(|| format!("{ip} is allocated for node {active:?}, not {:?}", call.node))
}
