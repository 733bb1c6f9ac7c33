//! Checks for leftovers of ended processes and pods.

use crate::doctor::finding::Finding;
use crate::doctor::snapshot::{Cache, Holder, Lock, NodeSnapshot, Observed, PodInterface};

/// Number of items of one kind that a finding names.
const NAMED: usize = 5;

/// Runs the checks. Those that need the datastore are left out without it; another finding reports that.
pub(super) fn check(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let mut findings: Vec<Finding> = snapshot.locks.iter().map(check_lock).collect();
    findings.extend(check_cache(snapshot));
    if let Some(cluster) = snapshot.cluster.as_ref().filter(|cluster| cluster.reached.is_ok()) {
        findings.extend(check_interfaces(&cluster.interfaces));
    }
    findings
}

fn check_lock(Lock { name, path, holder }: &Lock) -> Finding {
    let place = path.display();
    let Holder { process, command } = match holder {
        Ok(None) => return Finding::ok(*name, "free"),
        Err(reason) => return Finding::skipped(*name, format!("{place}: {reason}")),
        Ok(Some(holder)) => holder,
    };
    let Some(process) = process else {
        let seen = format!("{place} stays locked, by a process that is not seen from this container");
        return Finding::warn(*name, seen, "run `calico doctor` on the node itself, or look into its /proc/locks");
    };
    Finding::warn(
        *name,
        format!("{place} stays locked by process {process} ({command})"),
        format!("plugins wait up to 30 s for it, then go on without; if it is stuck: kill {process}"),
    )
}

fn check_cache(snapshot: &NodeSnapshot) -> Option<Finding> {
    const NAME: &str = "libcni cache";
    Some(match &snapshot.cache {
        Ok(None) => return None,
        Err(reason) => Finding::skipped(NAME, reason.clone()),
        Ok(Some(Cache { results, stale, .. })) if stale.is_empty() => {
            Finding::ok(NAME, format!("{results} results, each with its interface"))
        }
        Ok(Some(Cache { directory, results, stale })) => Finding::warn(
            NAME,
            format!(
                "{} of {results} results are of containers whose interface is gone: {}",
                stale.len(),
                join_first(stale)
            ),
            format!(
                "the runtime's DEL removes them, after a reboot within minutes; what stays and is of no container \
                 (`crictl pods`) can be removed from {}",
                directory.display()
            ),
        ),
    })
}

fn check_interfaces(found: &Observed<Vec<PodInterface>>) -> Vec<Finding> {
    const NAME: &str = "interfaces of pods";
    let found = match found {
        Ok(found) => found,
        Err(reason) => return vec![Finding::skipped(NAME, reason.clone())],
    };
    let (with, without): (Vec<_>, Vec<_>) = found.iter().partition(|interface| interface.endpoint.is_some());
    let mut findings = Vec::new();
    match without.first() {
        None => findings.push(Finding::ok(NAME, format!("{}, each with its endpoint", found.len()))),
        Some(first) => {
            let described: Vec<String> = without.iter().map(|interface| describe(interface)).collect();
            findings.push(Finding::warn(
                NAME,
                format!("{} of {} have no endpoint: {}", without.len(), found.len(), join_first(&described)),
                format!("if their pods are gone (`crictl pods`), delete them: ip link delete {}", first.name),
            ));
        }
    }
    let routes: Vec<(String, &str)> = with
        .iter()
        .flat_map(|interface| interface.stray_addresses().map(|address| (address.to_string(), interface.name.as_str())))
        .collect();
    if let Some((address, interface)) = routes.first() {
        let described: Vec<String> = routes.iter().map(|(address, name)| format!("{address} through {name}")).collect();
        findings.push(Finding::warn(
            "routes to pods",
            format!(
                "{} lead to an address that their endpoint does not have: {}",
                routes.len(),
                join_first(&described)
            ),
            format!(
                "if `crictl inspectp` of no pod shows the address, delete the route: ip route delete {address} dev \
                 {interface}"
            ),
        ));
    }
    findings
}

fn describe(interface: &PodInterface) -> String {
    let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
    if addresses.is_empty() {
        return interface.name.clone();
    }
    format!("{} ({})", interface.name, addresses.join(", "))
}

pub(super) fn join_first(names: &[String]) -> String {
    let named = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > NAMED { format!("{named} …") } else { named }
}
