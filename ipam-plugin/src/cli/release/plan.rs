//! Plans the steps for addresses and findings, by their present state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::ipam::{Finding, HandleId, HeldAddress, ReleaseRequest};
use libcalico::net::Cidr;
use time::Duration;

use super::{addresses, blocks, handles};
use crate::cli::check::Report;
use crate::cli::error::CliError;
use crate::cli::reading::Reading;
use crate::exhausted::Releasing;

/// Age below which an address without endpoint is treated as part of an ADD in progress.
const IN_FLIGHT: Duration = Duration::seconds(10);

/// The step for one address, handle or block.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    /// The description of the object.
    pub(super) target: String,
    pub(super) verdict: Verdict,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Do(Mend),
    /// No change is necessary, or none that this command makes.
    Leave(String),
    /// The step is refused.
    Refuse(String),
}

impl Verdict {
    /// Returns the repair of a block.
    fn repair(&self) -> Option<&blocks::Repair> {
        match self {
            Verdict::Do(Mend::Block(repair)) => Some(repair),
            _ => None,
        }
    }
}

/// A change that corrects one object.
#[derive(Debug, PartialEq)]
pub(super) enum Mend {
    /// Releases the address, if its allocation is unchanged since it was read.
    Release { request: ReleaseRequest, held: HeldAddress },
    /// Corrects the handle's counts, if the handle is still at the revision read.
    Handle(handles::Correction),
    /// Repairs the block, if it is still at the revision read.
    Block(Box<blocks::Repair>),
}

impl Mend {
    /// Returns the change in one word.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Mend::Release { .. } => "released",
            Mend::Handle(correction) => correction.name(),
            Mend::Block(_) => "repaired",
        }
    }

    /// Returns a description of the state before the change.
    pub(super) fn reason(&self) -> String {
        match self {
            Mend::Release { held, .. } => holder(held),
            Mend::Handle(correction) => correction.reason(),
            Mend::Block(repair) => repair.reason(),
        }
    }

    /// Makes the change. The inner error says that the objects have changed since they were read.
    pub(super) async fn carry_out(self, store: &Datastore) -> Result<Result<(), String>, CliError> {
        let _releasing = Releasing::here();
        match self {
            Mend::Release { request, .. } => addresses::release(store, &request).await,
            Mend::Handle(correction) => handles::correct(store, correction).await,
            Mend::Block(repair) => blocks::store(store, *repair).await,
        }
    }
}

/// Returns the steps to release requested addresses.
pub(super) fn of_addresses(asked: &[IpAddr], reading: &Reading, force: bool) -> Vec<Step> {
    let leaks = Leaks::of(reading);
    let asked: BTreeSet<IpAddr> = asked.iter().copied().collect();
    let step = |ip: IpAddr| Step { target: ip.to_string(), verdict: leaks.judge(ip, reading, force) };
    asked.into_iter().map(step).collect()
}

/// Returns the steps to repair the findings of a report that are still present. Blocks come first: if an inconsistent
/// block is not repaired, its handles stay unchanged, too. Handles come next, because releasing an address changes its
/// handle.
pub(super) fn of_report(report: &Report, reading: &Reading, force: bool) -> Vec<Step> {
    let leaks = Leaks::of(reading);
    let current = reading.audit(Duration::ZERO);
    let (known, gone): (Vec<_>, Vec<_>) = report.findings.iter().partition(|finding| current.contains(finding));
    let to_release: BTreeSet<IpAddr> = known.iter().filter_map(|finding| leaked(finding)).map(|h| h.address).collect();

    let corrupt_block = |finding: &&Finding| match finding {
        Finding::CorruptBlock { block, .. } => Some(*block),
        _ => None,
    };
    let corrupt: BTreeSet<Cidr> = known.iter().filter_map(corrupt_block).collect();
    let mut steps: Vec<Step> = corrupt.iter().map(|block| blocks::step(*block, reading, force)).collect();
    let repairs: Vec<&blocks::Repair> = steps.iter().filter_map(|step| step.verdict.repair()).collect();
    let settled: BTreeSet<IpAddr> = repairs.iter().flat_map(|repair| repair.settles()).collect();
    let is_repaired = |block: &Cidr| repairs.iter().any(|repair| repair.repaired().cidr == *block);
    let unrepaired = corrupt.iter().copied().filter(|block| !is_repaired(block)).collect();
    let run = handles::Run { repairs: &repairs, unrepaired, to_release: &to_release };
    let mended = handles::steps(&known, reading, &run);
    steps.extend(mended);
    for finding in &known {
        match finding {
            // The repair of the block has freed or kept these addresses.
            Finding::AddressWithoutEndpoint(HeldAddress { address, .. })
            | Finding::EndpointWithoutAddress { address, .. }
                if settled.contains(address) => {}
            Finding::AddressWithoutEndpoint(held) => {
                let verdict = leaks.judge(held.address, reading, force);
                steps.push(Step { target: held.address.to_string(), verdict });
            }
            Finding::OrphanHandle { .. }
            | Finding::HandleCount { .. }
            | Finding::MissingHandle(_)
            | Finding::CorruptBlock { .. } => {}
            other => steps.push(Step {
                target: other.to_string(),
                verdict: Verdict::Leave("this takes a person's decision".into()),
            }),
        }
    }
    let no_longer =
        |finding: &&Finding| Step { target: finding.to_string(), verdict: Verdict::Leave("it is no longer so".into()) };
    steps.extend(gone.iter().map(no_longer));
    steps
}

/// Returns a description of an address's owner, without the address.
fn holder(held: &HeldAddress) -> String {
    let text = held.to_string();
    let holder = text.strip_prefix(&format!("{} (", held.address)).and_then(|rest| rest.strip_suffix(')'));
    holder.unwrap_or(&text).to_owned()
}

fn leaked(finding: &Finding) -> Option<&HeldAddress> {
    match finding {
        Finding::AddressWithoutEndpoint(held) => Some(held),
        _ => None,
    }
}

/// Leaked addresses. `settled` contains those that are too old for an ADD in progress.
struct Leaks {
    all: BTreeMap<IpAddr, HeldAddress>,
    settled: BTreeSet<IpAddr>,
}

impl Leaks {
    fn of(reading: &Reading) -> Self {
        let leaks = |in_flight| reading.audit(in_flight).into_iter().filter_map(|finding| leaked(&finding).cloned());
        Leaks {
            all: leaks(Duration::ZERO).map(|held| (held.address, held)).collect(),
            settled: leaks(IN_FLIGHT).map(|held| held.address).collect(),
        }
    }

    fn judge(&self, ip: IpAddr, reading: &Reading, force: bool) -> Verdict {
        let Some(held) = self.held(ip, reading) else {
            return Verdict::Leave("it is not in use".into());
        };
        if !force && let Some(reason) = self.objection(ip, &held, reading) {
            return Verdict::Refuse(format!("{reason}; --force releases it all the same"));
        }
        let handle = held.handle.as_deref().map(HandleId::new);
        Verdict::Do(Mend::Release { request: ReleaseRequest { ip, handle, sequence: held.sequence_number }, held })
    }

    /// Returns the allocation of `ip`, or `None` if the address is free or cooling down.
    fn held(&self, ip: IpAddr, reading: &Reading) -> Option<HeldAddress> {
        if let Some(held) = self.all.get(&ip) {
            return Some(held.clone());
        }
        let (block, allocation) = reading.allocation(ip)?;
        Some(HeldAddress {
            address: ip,
            block,
            handle: allocation.handle().map(|handle| handle.to_string()),
            sequence_number: allocation.sequence,
            attributes: allocation.attributes().cloned().unwrap_or_default(),
        })
    }

    /// Returns a reason not to release `ip`.
    fn objection(&self, ip: IpAddr, held: &HeldAddress, reading: &Reading) -> Option<String> {
        if let Some(endpoint) = reading.endpoints_of(ip).next() {
            return Some(format!("endpoint {} on node {} has it", endpoint.name, endpoint.node));
        }
        if let Some(keeper) = reading.pod_that_keeps(ip) {
            return Some(format!("{keeper}: {}", holder(held)));
        }
        if !self.all.contains_key(&ip) {
            return Some(format!(
                "it is kept for a tunnel, a service, the host or another interface of a container: {}",
                holder(held)
            ));
        }
        let moments_ago = format!("it was allocated moments ago, perhaps by an ADD under way: {}", holder(held));
        (!self.settled.contains(&ip)).then_some(moments_ago)
    }
}
