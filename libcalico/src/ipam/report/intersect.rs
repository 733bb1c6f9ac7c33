//! [`intersect`]: the problems that every one of several reports has.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{IpamReport, LeakedHandle, ReportedAllocation, is_handle};
use crate::ipam::{AllocatedAddress, Finding};

/// The problems that every report has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedProblems {
    /// The addresses that are neither in use nor cooling down, with one and the same allocation in
    /// all reports.
    pub leaks: BTreeMap<IpAddr, ReportedLeak>,
    /// The addresses that are leaked in all reports, but of different allocations.
    pub reallocated: Vec<IpAddr>,
    /// The handles that no block names, at one and the same revision.
    pub handles: Vec<LeakedHandle>,
    /// The findings about blocks and handles.
    pub findings: Vec<Finding>,
}

/// A leaked address in a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedLeak {
    /// The handle; empty for none.
    handle: String,
    /// The sequence number, where a missing one counts as 0.
    sequence_number: u64,
}

impl ReportedLeak {
    fn of(allocation: &ReportedAllocation) -> Self {
        let sequence_number = allocation.sequence_number.unwrap_or(0);
        ReportedLeak {
            handle: allocation.handle.clone(),
            sequence_number,
        }
    }

    /// Returns true if `held` is the allocation of the report.
    pub fn is_allocation(&self, held: &AllocatedAddress) -> bool {
        is_handle(&self.handle, held.handle.as_deref())
            && held.sequence_number.unwrap_or(0) == self.sequence_number
    }
}

/// Returns the problems that every report has. Without reports, there are none.
///
/// calicoctl takes handle and sequence number from its last report, so that it releases an address
/// that was allocated again between the reports (INST-208).
pub fn intersect<'r>(reports: impl IntoIterator<Item = &'r IpamReport>) -> ReportedProblems {
    let mut reports = reports.into_iter();
    let Some(first) = reports.next() else {
        return ReportedProblems::default();
    };
    let mut common = ReportedProblems {
        leaks: leaks(first),
        reallocated: Vec::new(),
        handles: first.leaked_handles.clone(),
        findings: first.findings.clone(),
    };
    for report in reports {
        let others = leaks(report);
        common
            .reallocated
            .retain(|address| others.contains_key(address));
        let (same, changed): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut common.leaks)
            .into_iter()
            .filter(|(address, _)| others.contains_key(address))
            .partition(|(address, leak)| others.get(address) == Some(leak));
        common.leaks = same;
        common.reallocated.extend(changed.into_keys());
        common
            .handles
            .retain(|handle| report.leaked_handles.contains(handle));
        common
            .findings
            .retain(|finding| report.findings.contains(finding));
    }
    common.reallocated.sort();
    common
}

/// Returns the leaked addresses of a report. An address with several allocations is leaked only if
/// none of them is in use, and then counts only if all are the same.
fn leaks(report: &IpamReport) -> BTreeMap<IpAddr, ReportedLeak> {
    let leak = |(address, allocations): (&String, &Vec<ReportedAllocation>)| {
        let is_leaked =
            |allocation: &ReportedAllocation| !allocation.in_use && !allocation.cooling_down;
        let first = ReportedLeak::of(allocations.first()?);
        let is_same = allocations
            .iter()
            .all(|one| is_leaked(one) && ReportedLeak::of(one) == first);
        Some((address.parse::<IpAddr>().ok().filter(|_| is_same)?, first))
    };
    report.allocations.iter().filter_map(leak).collect()
}
