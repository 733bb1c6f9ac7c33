//! The checks. Each turns facts into a finding. They run in the order of their dependencies.

mod busy;
mod cluster;
mod configuration;
mod credentials;
mod leftovers;
mod node;
mod programs;

#[cfg(test)]
mod tests;

use super::facts::Facts;
use super::finding::Finding;

/// Runs all checks.
pub fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![configuration::chosen(facts)];
    findings.extend(configuration::shadowed(facts));
    findings.extend(configuration::oddities(facts));
    findings.extend(programs::all(facts));
    findings.push(node::name(facts));
    findings.extend(credentials::token(facts));
    findings.extend(cluster::all(facts));
    findings.push(node::mtu(facts));
    findings.push(node::settings(facts));
    findings.push(node::journal(facts));
    findings.extend(leftovers::all(facts));
    findings.extend(busy::all(facts));
    findings
}
