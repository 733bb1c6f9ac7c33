//! [`build`]: makes a report from the objects that `check` read and from its findings.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use super::{IpamReport, LeakedHandle, ReportedAllocation, is_carried_as_finding};
use crate::api::ClusterInformationSpec;
use crate::ipam::audit::EndpointsByAddress;
use crate::ipam::{
    AddressOwner, AffinityOwner, Allocation, AllocationOwner, Finding, Inventory, PackedBlock,
};
use crate::net::Cidr;

/// The owner of addresses that Windows reserves, as calicoctl names it.
const WINDOWS: &str = "Reserved for Windows";

/// The data of ClusterInformation in a report.
#[derive(Debug, Clone, Copy)]
pub struct ReportedCluster<'a> {
    /// The version of the calicoctl that is to read the report.
    pub version: &'a str,
    /// ClusterInformation.
    pub information: &'a ClusterInformationSpec,
    /// The revision of ClusterInformation, as `metadata.resourceVersion` shows it.
    pub revision: &'a str,
}

/// Makes a report. An allocation counts as in use unless `findings` has it as a leak or the address
/// is cooling down.
pub fn build(
    cluster: &ReportedCluster<'_>,
    inventory: &Inventory<'_>,
    findings: &[Finding],
) -> IpamReport {
    let leaks: HashSet<(IpAddr, Cidr)> = findings.iter().filter_map(as_leak).collect();
    let endpoints = EndpointsByAddress::of_endpoints(inventory.endpoints);
    let recorded = inventory.owners.by_address();
    let mut allocations = BTreeMap::<String, Vec<ReportedAllocation>>::new();
    for block in inventory.blocks {
        for allocation in block.allocated() {
            let in_use = !allocation.is_cooling() && !leaks.contains(&(allocation.ip, block.cidr));
            let reported = allocation.read(|held| {
                let owners = owners_of(held, &endpoints, &recorded);
                let owners = Some(owners).filter(|owners| in_use && !owners.is_empty());
                ReportedAllocation {
                    in_use,
                    owners,
                    ..described(block, held)
                }
            });
            allocations
                .entry(allocation.ip.to_string())
                .or_default()
                .push(reported);
        }
    }
    let leaked_handle = |finding: &Finding| match finding {
        Finding::OrphanHandle {
            handle, revision, ..
        } => Some(LeakedHandle::new(handle, revision)),
        _ => None,
    };
    let ReportedCluster {
        version,
        information,
        revision,
    } = cluster;
    IpamReport {
        version: (*version).to_owned(),
        cluster_guid: information.cluster_guid.clone(),
        datastore_locked: information.datastore_ready == Some(false),
        cluster_information_revision: (*revision).to_owned(),
        cluster_type: information.cluster_type.clone(),
        allocations,
        leaked_handles: findings.iter().filter_map(leaked_handle).collect(),
        findings: findings
            .iter()
            .filter(|finding| is_carried_as_finding(finding))
            .cloned()
            .collect(),
    }
}

fn as_leak(finding: &Finding) -> Option<(IpAddr, Cidr)> {
    let Finding::AddressWithoutEndpoint(held) = finding else {
        return None;
    };
    Some((held.address, held.block))
}

/// Returns the fields that the block alone determines.
fn described(block: &PackedBlock, allocation: &Allocation<'_>) -> ReportedAllocation {
    let text = |key: &str| {
        allocation
            .attributes()
            .and_then(|attributes| attributes.get(key))
            .cloned()
    };
    let host = match block.owner() {
        Some(AffinityOwner::Host(host)) => host,
        _ => String::new(),
    };
    let node = text("node")
        .filter(|node| !node.is_empty())
        .unwrap_or_else(|| host.clone());
    let reserved = allocation
        .attribute
        .is_some_and(|attribute| attribute.is_windows_reserved());
    let handle = allocation
        .attribute
        .and_then(|attribute| attribute.handle_id.clone())
        .filter(|_| !reserved);
    ReportedAllocation {
        ip: allocation.ip.to_string(),
        handle: handle.unwrap_or_default(),
        sequence_number: Some(allocation.sequence.unwrap_or(0)),
        pod: text("pod").unwrap_or_default(),
        namespace: text("namespace").unwrap_or_default(),
        borrowed: node != host,
        node,
        owner_type: text("type").unwrap_or_default(),
        creation_timestamp: text("timestamp").unwrap_or_default(),
        cooling_down: allocation.is_cooling(),
        ..ReportedAllocation::default()
    }
}

/// Returns the objects that use the address, in the order and the words of calicoctl, which does
/// not know virtual machines.
fn owners_of(
    allocation: &Allocation<'_>,
    endpoints: &EndpointsByAddress<'_>,
    recorded: &BTreeMap<IpAddr, Vec<&AddressOwner>>,
) -> Vec<String> {
    let named = allocation
        .attribute
        .map_or(AllocationOwner::Unnamed, |attribute| {
            AllocationOwner::of(attribute).0
        });
    let recorded = recorded.get(&allocation.ip).into_iter().flatten();
    let mut owners: Vec<String> = recorded.map(ToString::to_string).collect();
    match named {
        AllocationOwner::HostReserved => owners.insert(0, WINDOWS.to_owned()),
        AllocationOwner::Service { namespace, name } if owners.is_empty() && !name.is_empty() => {
            owners.push(format!("Service({namespace}/{name})"));
        }
        AllocationOwner::Vmi { namespace, name } if !name.is_empty() => {
            owners.push(format!("VirtualMachine({namespace}/{name})"));
        }
        _ => {}
    }
    let workloads = endpoints.having(allocation.ip);
    owners.extend(workloads.map(|endpoint| format!("Workload({})", endpoint.object())));
    owners
}
