//! Plans the steps for addresses and findings, by their present state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{AllocatedAddress, Finding};
use libcalico::net::Cidr;
use time::Duration;

use super::repairs::{OtherWork, fix_steps, repair_step};
use super::step::{BlockRepair, ReleaseChange, ReleaseStep, StepVerdict, owner_of};
use crate::cli::check::Report;
use crate::cli::cluster_read::ClusterRead;

/// Age below which an address without endpoint is treated as part of an ADD in progress.
const IN_FLIGHT: Duration = Duration::seconds(10);

pub(super) fn steps_for_addresses(addresses: &[IpAddr], cluster: &ClusterRead, force: bool) -> Vec<ReleaseStep> {
    let leaks = Leaks::find(cluster);
    let addresses: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let step = |ip: IpAddr| ReleaseStep { target: ip.to_string(), verdict: leaks.verdict(ip, cluster, force) };
    addresses.into_iter().map(step).collect()
}

/// Returns the steps for the findings of a report; only findings that are still present lead to changes. Blocks come
/// first, because the handles of an unrepaired block stay unchanged, and then handles, because releasing an address
/// changes its handle.
pub(super) fn steps_for_report(report: &Report, cluster: &ClusterRead, force: bool) -> Vec<ReleaseStep> {
    let leaks = Leaks::find(cluster);
    let current = cluster.audit(Duration::ZERO);
    let (present, outdated): (Vec<_>, Vec<_>) = report.findings.iter().partition(|finding| current.contains(finding));
    let to_release: BTreeSet<IpAddr> = present.iter().copied().filter_map(as_leak).map(|held| held.address).collect();

    let corrupt_block = |finding: &&Finding| match finding {
        Finding::CorruptBlock { block, .. } => Some(*block),
        _ => None,
    };
    let corrupt: BTreeSet<Cidr> = present.iter().filter_map(corrupt_block).collect();
    let mut steps: Vec<ReleaseStep> = corrupt.iter().map(|block| repair_step(*block, cluster, force)).collect();
    let repairs: Vec<&BlockRepair> = steps.iter().filter_map(|step| step.verdict.repair()).collect();
    let resolved: BTreeSet<IpAddr> = repairs.iter().flat_map(|repair| repair.resolved_addresses()).collect();
    let is_repaired = |block: &Cidr| repairs.iter().any(|repair| repair.repaired().cidr == *block);
    let unrepaired = corrupt.iter().copied().filter(|block| !is_repaired(block)).collect();
    let other = OtherWork { repairs: &repairs, unrepaired, to_release: &to_release };
    let fixes = fix_steps(&present, cluster, &other);
    steps.extend(fixes);
    for finding in &present {
        match finding {
            // The repair of the block frees or keeps these addresses.
            Finding::AddressWithoutEndpoint(AllocatedAddress { address, .. })
            | Finding::EndpointWithoutAddress { address, .. }
                if resolved.contains(address) => {}
            Finding::AddressWithoutEndpoint(held) => {
                let verdict = leaks.verdict(held.address, cluster, force);
                steps.push(ReleaseStep { target: held.address.to_string(), verdict });
            }
            Finding::OrphanHandle { .. }
            | Finding::HandleCount { .. }
            | Finding::MissingHandle(_)
            | Finding::CorruptBlock { .. } => {}
            other => steps.push(ReleaseStep {
                target: other.to_string(),
                verdict: StepVerdict::Leave("an operator has to decide".into()),
            }),
        }
    }
    let outdated_step = |finding: &&Finding| ReleaseStep {
        target: finding.to_string(),
        verdict: StepVerdict::Leave("the finding no longer applies".into()),
    };
    steps.extend(outdated.iter().map(outdated_step));
    steps
}

fn as_leak(finding: &Finding) -> Option<&AllocatedAddress> {
    let Finding::AddressWithoutEndpoint(held) = finding else { return None };
    Some(held)
}

/// Addresses without endpoint. Those in `old_enough` are not treated as part of an ADD in progress.
struct Leaks {
    all: BTreeMap<IpAddr, AllocatedAddress>,
    old_enough: BTreeSet<IpAddr>,
}

impl Leaks {
    fn find(cluster: &ClusterRead) -> Self {
        let leaks = |in_flight| cluster.audit(in_flight).into_iter().filter_map(|finding| as_leak(&finding).cloned());
        Leaks {
            all: leaks(Duration::ZERO).map(|held| (held.address, held)).collect(),
            old_enough: leaks(IN_FLIGHT).map(|held| held.address).collect(),
        }
    }

    fn verdict(&self, ip: IpAddr, cluster: &ClusterRead, force: bool) -> StepVerdict {
        let Some(held) = self.held(ip, cluster) else { return StepVerdict::Leave("it is not in use".into()) };
        if !force && let Some(reason) = self.objection(ip, &held, cluster) {
            return StepVerdict::Refuse(format!("{reason}; --force releases it all the same"));
        }
        StepVerdict::Do(ReleaseChange::Release(held))
    }

    /// Returns the allocation of `ip`, or `None` if the address is free or cooling down.
    fn held(&self, ip: IpAddr, cluster: &ClusterRead) -> Option<AllocatedAddress> {
        if let Some(held) = self.all.get(&ip) {
            return Some(held.clone());
        }
        let (block, allocation) = cluster.allocation(ip)?;
        Some(AllocatedAddress {
            address: ip,
            block,
            handle: allocation.handle().map(|handle| handle.to_string()),
            sequence_number: allocation.sequence,
            attributes: allocation.attributes().cloned().unwrap_or_default(),
        })
    }

    fn objection(&self, ip: IpAddr, held: &AllocatedAddress, cluster: &ClusterRead) -> Option<String> {
        if let Some(endpoint) = cluster.endpoints_of(ip).next() {
            return Some(format!("endpoint {} on node {} has it", endpoint.name, endpoint.node));
        }
        if let Some(keeper) = cluster.keeping_pod(ip) {
            return Some(format!("{keeper}: {}", owner_of(held)));
        }
        if !self.all.contains_key(&ip) {
            return Some(format!(
                "it is kept for a tunnel, a service, the host or another interface of a container: {}",
                owner_of(held)
            ));
        }
        let recent_reason = format!("it was allocated moments ago, perhaps by an ADD under way: {}", owner_of(held));
        (!self.old_enough.contains(&ip)).then_some(recent_reason)
    }
}
