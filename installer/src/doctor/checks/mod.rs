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
pub fn run_all(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let mut findings = vec![configuration::check_selected(snapshot)];
    findings.extend(configuration::check_shadowed(snapshot));
    findings.extend(configuration::check_problems(snapshot));
    findings.extend(programs::check(snapshot));
    findings.push(node::check_name(snapshot));
    findings.extend(credentials::check_token(snapshot));
    findings.extend(cluster::check(snapshot));
    findings.push(node::check_mtu(snapshot));
    findings.push(node::check_settings(snapshot));
    findings.push(node::check_journal(snapshot));
    findings.extend(leftovers::check(snapshot));
    findings.extend(busy::check(snapshot));
    findings
}
