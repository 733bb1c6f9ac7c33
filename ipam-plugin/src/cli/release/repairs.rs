//! Plans the repairs of inconsistent blocks, and the corrections of handles.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use libcalico::ipam::{Finding, HandleId, PackedHandle, Repaired, SuspectHandle};
use libcalico::net::Cidr;
use time::OffsetDateTime;

use super::step::{BlockRepair, HandleFix, ReleaseChange, ReleaseStep, StepVerdict};
use crate::cli::cluster_read::ClusterRead;

/// The other steps of the same `release`, by which a handle's step is decided.
pub(super) struct OtherWork<'a> {
    pub(super) repairs: &'a [&'a BlockRepair],
    pub(super) unrepaired: BTreeSet<Cidr>,
    /// Addresses that are released afterwards.
    pub(super) to_release: &'a BTreeSet<IpAddr>,
}

/// Returns the steps for the handles in the findings and of addresses that the repairs keep. A
/// missing handle is not created for addresses that are to be released.
pub(super) fn fix_steps(
    findings: &[&Finding],
    cluster: &ClusterRead,
    other: &OtherWork<'_>,
) -> Vec<ReleaseStep> {
    let OtherWork {
        repairs,
        unrepaired,
        to_release,
    } = other;
    let mut ids: BTreeSet<String> = repairs
        .iter()
        .flat_map(|repair| repair.handles())
        .map(|id| id.to_string())
        .collect();
    for finding in findings {
        match finding {
            Finding::OrphanHandle { handle, .. } | Finding::HandleCount { handle, .. } => {
                ids.insert(handle.clone());
            }
            Finding::MissingHandle(held) if !to_release.contains(&held.address) => {
                ids.extend(held.handle.clone())
            }
            _ => {}
        }
    }
    let stored: HashMap<&str, &PackedHandle> = cluster
        .handles
        .iter()
        .map(|handle| (handle.id_text(), handle))
        .collect();
    let held = addresses_per_block(&ids, cluster, repairs);
    let step = |id: String| {
        let fix = handle_fix(&id, &stored, &held)?;
        let verdict = match fix.suspect.blocks.intersection(unrepaired).next() {
            // Only the handle records addresses that the block has lost.
            Some(block) => StepVerdict::Leave(format!("block {block} contradicts itself")),
            None => StepVerdict::Do(ReleaseChange::Handle(fix)),
        };
        Some(ReleaseStep {
            target: format!("handle {id}"),
            verdict,
        })
    };
    ids.into_iter().filter_map(step).collect()
}

fn handle_fix(
    id: &str,
    stored: &HashMap<&str, &PackedHandle>,
    held: &HashMap<HandleId, BTreeMap<Cidr, i64>>,
) -> Option<HandleFix> {
    let stored = stored.get(id);
    let id = stored.map_or_else(|| HandleId::new(id), |handle| handle.id());
    let held = held
        .get(&HandleId::new(id.as_str()))
        .cloned()
        .unwrap_or_default();
    if stored.map_or(held.is_empty(), |handle| {
        !held.is_empty() && handle.counts() == held
    }) {
        return None;
    }
    let counted = stored.into_iter().flat_map(|handle| handle.blocks());
    let blocks = counted.chain(held.keys().copied()).collect();
    let suspect = SuspectHandle {
        id,
        revision: stored.map(|handle| handle.revision()),
        blocks,
    };
    Some(HandleFix { suspect, held })
}

/// Returns the number of addresses of each of these handles in each block, after the repairs.
fn addresses_per_block(
    ids: &BTreeSet<String>,
    cluster: &ClusterRead,
    repairs: &[&BlockRepair],
) -> HashMap<HandleId, BTreeMap<Cidr, i64>> {
    let wanted: HashSet<HandleId> = ids.iter().map(HandleId::new).collect();
    let mut held = HashMap::<HandleId, BTreeMap<Cidr, i64>>::new();
    for block in &cluster.blocks {
        let handles: Vec<HandleId> = match repairs
            .iter()
            .find(|repair| repair.repaired().cidr == block.cidr)
        {
            Some(repair) => repair
                .repaired()
                .allocated()
                .filter_map(|allocation| allocation.handle())
                .collect(),
            None => block
                .allocated()
                .filter_map(|allocation| allocation.handle())
                .collect(),
        };
        for handle in handles.into_iter().filter(|handle| wanted.contains(handle)) {
            *held
                .entry(handle)
                .or_default()
                .entry(block.cidr)
                .or_default() += 1;
        }
    }
    held
}

pub(super) fn repair_step(block: Cidr, cluster: &ClusterRead, force: bool) -> ReleaseStep {
    ReleaseStep {
        target: format!("block {block}"),
        verdict: verdict(block, cluster, force),
    }
}

fn verdict(block: Cidr, cluster: &ClusterRead, force: bool) -> StepVerdict {
    if let Some(pod) = cluster.unreadable_pod() {
        return StepVerdict::Refuse(format!(
            "pod {pod} cannot be read, and may have an address of the block"
        ));
    }
    if let Some(endpoint) = cluster.unreadable_endpoint() {
        return StepVerdict::Refuse(format!(
            "endpoint {endpoint} cannot be read, and may have an address of the block"
        ));
    }
    if let Some(error) = cluster.nodes.iter().find_map(|node| node.as_ref().err()) {
        return StepVerdict::Refuse(format!(
            "nodes cannot be read ({error}), and a tunnel may have an address of the block"
        ));
    }
    let entry = cluster.inconsistent.iter().find(|entry| entry.key == block);
    let repair = entry.and_then(|read| {
        let repaired = read.value.repaired(OffsetDateTime::now_utc(), |ip| {
            cluster.recorded_owner(&read.value, ip)
        })?;
        Some(BlockRepair {
            read: read.clone(),
            repaired,
        })
    });
    let vmi_handle = repair
        .as_ref()
        .filter(|_| !force)
        .and_then(|repair| cluster.uncounted_vmi(repair.repaired()));
    if let Some(handle) = vmi_handle {
        return StepVerdict::Refuse(format!(
            "handle {handle} of a virtual machine counts an address that the block does not name; \
             use --force if the virtual machine no longer exists"
        ));
    }
    match repair {
        Some(BlockRepair {
            read,
            repaired: Repaired { freed, .. },
        }) if !force
            && !freed.is_empty()
            && (cluster.serves_services(block, read.value.owner().as_ref())
                || is_owned(&freed, cluster)) =>
        {
            StepVerdict::Refuse(
                "a Service may have an address of this block, and no handle proves which one; use \
                 --force if no Service has one"
                    .into(),
            )
        }
        Some(repair) => StepVerdict::Do(ReleaseChange::Block(Box::new(repair))),
        None => StepVerdict::Leave("an operator has to decide".into()),
    }
}

fn is_owned(addresses: &[IpAddr], cluster: &ClusterRead) -> bool {
    addresses
        .iter()
        .any(|address| cluster.owners.of(*address).next().is_some())
}
