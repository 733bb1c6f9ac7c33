//! The checks. Each check turns the snapshot into findings.

mod cluster;
mod configuration;
mod connections;
mod files;
mod leftovers;
mod node;
mod proxies;

#[cfg(test)]
mod tests;

use super::report::Finding;
use super::snapshot::NodeSnapshot;

/// Runs all checks.
pub fn run_all(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let mut findings = vec![Finding::new(
        "configuration",
        configuration::check_selected(snapshot),
    )];
    let shadowed = configuration::check_shadowed(snapshot);
    findings.extend(shadowed.map(|checked| Finding::new("other configurations", checked)));
    findings.extend(configuration::check_problems(snapshot));
    findings.extend(files::check_directories(snapshot));
    findings.extend(files::check_programs(snapshot));
    findings.push(Finding::new("nodename", node::check_name(snapshot)));
    findings.extend(files::check_token(snapshot));
    findings.extend(cluster::check(snapshot));
    findings.extend(proxies::check(snapshot).map(|checked| Finding::new("proxies", checked)));
    findings.push(Finding::new("MTU", node::check_mtu(snapshot)));
    findings.push(Finding::new(
        "kernel settings",
        node::check_settings(snapshot),
    ));
    findings.extend(connections::check(snapshot));
    findings.push(Finding::new("journal", node::check_journal(snapshot)));
    findings.extend(leftovers::check(snapshot));
    findings
}
