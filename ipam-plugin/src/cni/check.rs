//! CHECK: compares the result of the ADD with the datastore. Upstream's CHECK compares nothing
//! (IPAM-9).

use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{Block, Handle, Holder, OwnerSlot};
use libcalico::net::IpVersion;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};
use netconf::{CniError, Code};

use super::call::IpamRequest;
use allocation::error::{cni_error, log_withheld};
use allocation::reads::blocks_of;

/// Compares `recorded`, the addresses in prevResult, with the datastore. The details of the error
/// list each difference. Addresses that another plugin of the list assigned are no differences.
pub async fn check<S: Store>(
    store: &S,
    call: &IpamRequest,
    recorded: &[IpAddr],
) -> Result<(), CniError> {
    let allocations = Allocations::read(store, call, recorded)
        .await
        .map_err(|error| cni_error(&error.into()))?;
    let own: Vec<IpAddr> = recorded
        .iter()
        .copied()
        .filter(|ip| !allocations.is_of_another(*ip, recorded, call))
        .collect();
    let differences = allocations.differences(&own, call);
    if differences.is_empty() {
        return Ok(());
    }
    Err(CniError::new(
        Code::CHECK_FAILED,
        "the addresses of the container differ from the result of the ADD",
    )
    .with_details(differences.join("; ")))
}

/// Returns the differences between `ips`, addresses that the container should have, and the
/// datastore.
pub async fn differences<S: Store>(
    store: &S,
    call: &IpamRequest,
    ips: &[IpAddr],
) -> Result<Vec<String>, StoreError> {
    Ok(Allocations::read(store, call, ips)
        .await?
        .differences(ips, call))
}

/// The container's handle, and the blocks of its addresses.
struct Allocations {
    handle: Option<Handle>,
    blocks: Vec<Entry<Block>>,
}

impl Allocations {
    async fn read<S: Store>(
        store: &S,
        call: &IpamRequest,
        ips: &[IpAddr],
    ) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let (handle, pools) = (
            batch.get::<Handle>(&call.handle()),
            batch.list::<IpPool>(&ObjectSelect::default()),
        );
        let answers = store.read(&batch).await?;
        let handle = answers.get(&handle)?.map(|entry| entry.value);
        let pools: Vec<IpPool> = answers
            .list(&pools)
            .into_iter()
            .map(|entry| entry.value)
            .collect();
        let counted = handle
            .iter()
            .flat_map(|handle| handle.block.keys().copied());
        let blocks = blocks_of(store, &pools, ips, counted.collect()).await?;
        Ok(Allocations { handle, blocks })
    }

    fn differences(&self, ips: &[IpAddr], call: &IpamRequest) -> Vec<String> {
        let (id, mut found) = (call.handle(), Vec::new());
        if self.handle.is_none() {
            found.push(format!("handle {id} does not exist"));
        }
        found.extend(
            ips.iter()
                .filter_map(|ip| difference_of_address(&self.blocks, *ip, call)),
        );
        for entry in &self.blocks {
            let held = entry.value.addresses_of(&id).len();
            let counts = self
                .handle
                .as_ref()
                .and_then(|handle| handle.block.get(&entry.key))
                .copied()
                .unwrap_or_default();
            if i64::try_from(held).is_ok_and(|held| counts < held) && self.handle.is_some() {
                found.push(format!(
                    "handle {id} counts {counts} addresses in block {}, which holds {held}",
                    entry.key
                ));
            }
        }
        found
    }

    /// Returns true if another plugin assigned an address of prevResult. This plugin assigns one
    /// address of a family, from a block. Thus an address in no block is another plugin's if this
    /// plugin assigns none of the family, or if prevResult has another one of the family that is in
    /// a block.
    fn is_of_another(&self, ip: IpAddr, recorded: &[IpAddr], call: &IpamRequest) -> bool {
        let is_in_block = |ip: &IpAddr| self.blocks.iter().any(|block| block.key.contains(*ip));
        let family = IpVersion::of(ip);
        let is_assigned = match (call.ip, family) {
            (Some(requested), _) => IpVersion::of(requested) == family,
            (None, IpVersion::V4) => call.assign_ipv4,
            (None, IpVersion::V6) => call.assign_ipv6,
        };
        let mut others = recorded
            .iter()
            .filter(|other| IpVersion::of(**other) == family);
        !is_in_block(&ip) && (!is_assigned || others.any(is_in_block))
    }
}

fn difference_of_address(
    blocks: &[Entry<Block>],
    ip: IpAddr,
    call: &IpamRequest,
) -> Option<String> {
    let Some(block) = blocks.iter().find(|block| block.key.contains(ip)) else {
        return Some(format!("{ip} is in no block"));
    };
    let Some(held) = block.value.allocation(ip) else {
        return Some(format!("{ip} is free in block {}", block.key));
    };
    if held.handle() != Some(call.handle()) {
        let holder = Holder::of(
            &held,
            call.pod.as_ref().map(|pod| pod.namespace.name.as_str()),
        );
        log_withheld(ip, &holder);
        return Some(format!("{ip} is held by {}", holder.for_caller));
    }
    // A VMI in migration has a pod on each of two nodes.
    let slots = [OwnerSlot::Active, OwnerSlot::Alternate];
    let mut nodes = slots
        .into_iter()
        .filter_map(|slot| held.attribute?.owner(slot).get("node"));
    let active = nodes.next().map_or("", String::as_str);
    let is_recorded = active == call.node || nodes.any(|node| *node == call.node);
    (!is_recorded).then(|| format!("{ip} is allocated for node {active:?}, not {:?}", call.node))
}
