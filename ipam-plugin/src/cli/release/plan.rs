//! Plans the steps for addresses and findings, by their present state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::report::{LeakedHandle, ReportedLeak, ReportedProblems};
use libcalico::ipam::{AllocatedAddress, Finding};
use libcalico::net::Cidr;
use time::{Duration, OffsetDateTime};

use super::repairs::{OtherWork, fix_steps, repair_step};
use super::step::{BlockRepair, ReleaseChange, ReleaseStep, StepVerdict, fingerprint_of, owner_of};
use crate::cli::cluster_read::ClusterRead;

/// Age below which an address without endpoint is treated as part of an ADD in progress.
const IN_FLIGHT: Duration = Duration::seconds(10);
const NOT_IN_USE: &str = "it is not in use";
const OUTDATED: &str = "the finding no longer applies";

pub(super) fn steps_for_addresses(
    addresses: &[IpAddr],
    cluster: &ClusterRead,
    force: bool,
) -> Vec<ReleaseStep> {
    let leaks = Leaks::of(&cluster.audit(Duration::ZERO));
    let addresses: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let step = |ip: IpAddr| ReleaseStep {
        target: ip.to_string(),
        verdict: leaks.verdict(ip, cluster, force),
    };
    addresses.into_iter().map(step).collect()
}

/// Returns the steps for the problems that all reports have. Only those that are still present lead
/// to changes. Blocks come first, because the handles of an unrepaired block stay unchanged, and
/// then handles, because releasing an address changes its handle.
pub(super) fn steps_for_report(
    reported: &ReportedProblems,
    cluster: &ClusterRead,
    force: bool,
) -> Vec<ReleaseStep> {
    let current = cluster.audit(Duration::ZERO);
    let leaks = Leaks::of(&current);
    let present: Vec<&Finding> = current
        .iter()
        .filter(|finding| is_reported(finding, reported))
        .collect();
    let to_release: BTreeSet<IpAddr> = present
        .iter()
        .copied()
        .filter_map(as_leak)
        .map(|held| held.address)
        .collect();

    let corrupt_block = |finding: &&Finding| match finding {
        Finding::CorruptBlock { block, .. } => Some(*block),
        _ => None,
    };
    let corrupt: BTreeSet<Cidr> = present.iter().filter_map(corrupt_block).collect();
    let mut steps: Vec<ReleaseStep> = corrupt
        .iter()
        .map(|block| repair_step(*block, cluster, force))
        .collect();
    let repairs: Vec<&BlockRepair> = steps
        .iter()
        .filter_map(|step| step.verdict.repair())
        .collect();
    let resolved: BTreeSet<IpAddr> = repairs
        .iter()
        .flat_map(|repair| repair.resolved_addresses())
        .collect();
    let is_repaired = |block: &Cidr| {
        repairs
            .iter()
            .any(|repair| repair.repaired().cidr == *block)
    };
    let unrepaired = corrupt
        .iter()
        .copied()
        .filter(|block| !is_repaired(block))
        .collect();
    let other = OtherWork {
        repairs: &repairs,
        unrepaired,
        to_release: &to_release,
    };
    let fixes = fix_steps(&present, cluster, &other);
    steps.extend(fixes);
    // Of overlapping blocks, another one may have allocated the address since the report.
    let is_same = |address: &&IpAddr| {
        reported
            .leaks
            .get(*address)
            .is_some_and(|leak| leaks.has(address, leak))
    };
    // The repair of a block frees or keeps its addresses.
    for address in to_release
        .iter()
        .filter(|address| !resolved.contains(*address))
        .filter(is_same)
    {
        let verdict = leaks.verdict(*address, cluster, force);
        steps.push(ReleaseStep {
            target: address.to_string(),
            verdict,
        });
    }
    steps.extend(outdated_steps(reported, &current, &leaks, cluster));
    steps
}

/// Returns true if the reports have the finding, down to the sequence number or the revision.
fn is_reported(finding: &Finding, reported: &ReportedProblems) -> bool {
    match finding {
        Finding::AddressWithoutEndpoint(held) => reported
            .leaks
            .get(&held.address)
            .is_some_and(|leak| leak.is_allocation(held)),
        Finding::OrphanHandle {
            handle, revision, ..
        } => reported
            .handles
            .contains(&LeakedHandle::new(handle, revision)),
        finding => reported.findings.contains(finding),
    }
}

/// Returns a step without a change for each problem of the reports that is no longer present.
fn outdated_steps(
    reported: &ReportedProblems,
    current: &[Finding],
    leaks: &Leaks,
    cluster: &ClusterRead,
) -> Vec<ReleaseStep> {
    let left = |target: String, reason: String| ReleaseStep {
        target,
        verdict: StepVerdict::Leave(reason),
    };
    let addresses = reported
        .leaks
        .iter()
        .filter(|(address, leak)| !leaks.has(address, leak));
    let mut steps: Vec<ReleaseStep> = addresses
        .map(|(address, leak)| {
            left(
                address.to_string(),
                leaks.reason_to_keep(*address, leak, cluster),
            )
        })
        .collect();
    let reallocated = reported.reallocated.iter();
    steps.extend(reallocated.map(|address| {
        left(
            address.to_string(),
            "the reports have different allocations".into(),
        )
    }));
    let orphan = |finding: &Finding| match finding {
        Finding::OrphanHandle {
            handle, revision, ..
        } => Some(LeakedHandle::new(handle, revision)),
        _ => None,
    };
    let present: BTreeSet<LeakedHandle> = current.iter().filter_map(orphan).collect();
    let handles = reported
        .handles
        .iter()
        .filter(|handle| !present.contains(*handle));
    steps.extend(handles.map(|handle| left(format!("handle {}", handle.id), OUTDATED.into())));
    let findings = reported
        .findings
        .iter()
        .filter(|finding| !current.contains(finding));
    steps.extend(findings.map(|finding| left(finding.to_string(), OUTDATED.into())));
    steps
}

fn as_leak(finding: &Finding) -> Option<&AllocatedAddress> {
    let Finding::AddressWithoutEndpoint(held) = finding else {
        return None;
    };
    Some(held)
}

/// Addresses without endpoint.
struct Leaks(BTreeMap<IpAddr, AllocatedAddress>);

impl Leaks {
    fn of(findings: &[Finding]) -> Self {
        Leaks(
            findings
                .iter()
                .filter_map(as_leak)
                .map(|held| (held.address, held.clone()))
                .collect(),
        )
    }

    /// Returns true if the allocation of a report is still a leak.
    fn has(&self, ip: &IpAddr, leak: &ReportedLeak) -> bool {
        self.0.get(ip).is_some_and(|held| leak.is_allocation(held))
    }

    fn verdict(&self, ip: IpAddr, cluster: &ClusterRead, force: bool) -> StepVerdict {
        let Some(held) = self.held(ip, cluster) else {
            return StepVerdict::Leave(NOT_IN_USE.into());
        };
        if !force && let Some(reason) = self.objection(ip, &held, cluster) {
            return StepVerdict::Refuse(format!("{reason}; --force releases it all the same"));
        }
        let allocation = cluster.allocation_in(held.block, ip);
        let fingerprint = allocation.and_then(|allocation| allocation.read(fingerprint_of));
        StepVerdict::Do(ReleaseChange::Release { held, fingerprint })
    }

    /// Returns the allocation of `ip`, or `None` if the address is free or cooling down.
    fn held(&self, ip: IpAddr, cluster: &ClusterRead) -> Option<AllocatedAddress> {
        if let Some(held) = self.0.get(&ip) {
            return Some(held.clone());
        }
        let (block, allocation) = cluster.allocation(ip)?;
        Some(allocation.read(|held| AllocatedAddress {
            address: ip,
            block,
            handle: held.handle().map(|handle| handle.to_string()),
            sequence_number: held.sequence,
            attributes: held.attributes().cloned().unwrap_or_default(),
        }))
    }

    /// Returns the reason why the leak of a report is left alone.
    fn reason_to_keep(&self, ip: IpAddr, leak: &ReportedLeak, cluster: &ClusterRead) -> String {
        match self.held(ip, cluster) {
            None => NOT_IN_USE.into(),
            Some(held) if !leak.is_allocation(&held) => {
                "it was allocated again since the report".into()
            }
            Some(held) => self
                .objection(ip, &held, cluster)
                .unwrap_or_else(|| OUTDATED.into()),
        }
    }

    fn objection(
        &self,
        ip: IpAddr,
        held: &AllocatedAddress,
        cluster: &ClusterRead,
    ) -> Option<String> {
        if let Some(endpoint) = cluster.endpoints_of(ip).next() {
            return Some(format!(
                "endpoint {} on node {} has it",
                endpoint.name(),
                endpoint.node()
            ));
        }
        if let Some(owner) = cluster.owners.of(ip).next() {
            return Some(format!("{owner} has it"));
        }
        if let Some(keeper) = cluster.keeping_pod(held) {
            return Some(format!("{keeper}: {}", owner_of(held)));
        }
        if let Some(endpoint) = cluster.unreadable_endpoint() {
            return Some(format!(
                "endpoint {endpoint} cannot be read, and may have it"
            ));
        }
        if !self.0.contains_key(&ip) {
            return Some(format!(
                "it is kept for a tunnel, a service, the host or another interface of a container: \
                 {}",
                owner_of(held)
            ));
        }
        let recent_reason = format!(
            "it was allocated moments ago, perhaps by an ADD under way: {}",
            owner_of(held)
        );
        let age = held
            .allocation_time()
            .map(|since| OffsetDateTime::now_utc() - since);
        age.is_some_and(|age| age < IN_FLIGHT)
            .then_some(recent_reason)
    }
}
