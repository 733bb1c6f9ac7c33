//! The checks. Each turns the snapshot into a finding. They run in the order of their dependencies.

mod busy;
mod cluster;
mod configuration;
mod credentials;
mod leftovers;
mod node;
mod programs;

#[cfg(test)]
mod tests;

use super::finding::Finding;
use super::snapshot::NodeSnapshot;

/// Runs all checks.
pub fn all(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let mut findings = vec![configuration::chosen(snapshot)];
    findings.extend(configuration::shadowed(snapshot));
    findings.extend(configuration::oddities(snapshot));
    findings.extend(programs::all(snapshot));
    findings.push(node::name(snapshot));
    findings.extend(credentials::token(snapshot));
    findings.extend(cluster::all(snapshot));
    findings.push(node::mtu(snapshot));
    findings.push(node::settings(snapshot));
    findings.push(node::journal(snapshot));
    findings.extend(leftovers::all(snapshot));
    findings.extend(busy::all(snapshot));
    findings
}
