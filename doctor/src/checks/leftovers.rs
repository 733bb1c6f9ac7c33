//! Checks for leftovers of ended processes and pods, and of earlier installations.

use std::path::PathBuf;

use crate::report::{Checked, Finding, pass, warn};
use crate::snapshot::{
    BusyAddresses, Cache, Cluster, Lock, LockHolder, NodeSnapshot, Observed, PodInterface,
    Unobserved,
};

/// Number of items of one kind that a finding names.
const MAX_LISTED_ITEMS: usize = 5;

/// Runs the checks. If the datastore does not respond, the checks that need it return no finding.
pub(super) fn check(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let answers = snapshot.cluster.as_ref().and_then(Cluster::answers);
    let locks = snapshot.locks.iter();
    let mut findings: Vec<Finding> = locks
        .map(|lock| Finding::new(lock.name, check_lock(lock)))
        .collect();
    let cache = snapshot.cache.clone().transpose();
    findings.extend(cache.map(|cache| Finding::new("libcni cache", cache.and_then(check_cache))));
    if let Some(answers) = answers {
        findings.push(Finding::new(
            "interfaces of pods",
            check_interfaces(&answers.interfaces),
        ));
        let routes = answers
            .interfaces
            .as_ref()
            .ok()
            .and_then(|found| check_routes(found));
        findings.extend(routes.map(|checked| Finding::new("routes to pods", checked)));
    }
    let busy = check_busy(answers.map(|answers| &answers.busy), &snapshot.recent_busy);
    findings.extend(busy.map(|checked| Finding::new("busy addresses", checked)));
    findings.extend(
        check_former(&snapshot.former).map(|checked| Finding::new("former directories", checked)),
    );
    findings
}

fn check_former(paths: &[PathBuf]) -> Option<Checked> {
    if paths.is_empty() {
        return None;
    }
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let count = names.len();
    Some(warn(
        format!(
            "{count} files of an earlier installation remain in other directories: {}",
            join_first(&names)
        ),
        "mount these directories as the former ones until the installer has removed the files \
         (docs/options.md, Directories), or delete the files",
    ))
}

fn check_lock(Lock { path, holder, .. }: &Lock) -> Checked {
    let place = path.display();
    let LockHolder { process, command } = match holder {
        Ok(None) => return pass("free"),
        Err(reason) => return Err(Unobserved::new(format!("{place}: {reason}"))),
        Ok(Some(holder)) => holder,
    };
    let Some(process) = process else {
        let observation = format!("{place} stays locked by a process that is not visible here");
        return warn(
            observation,
            "run `calico doctor` on the node itself, or read its /proc/locks",
        );
    };
    warn(
        format!("{place} stays locked by process {process} ({command})"),
        format!(
            "plugins may wait for the lock for up to 30 s; if the process is stuck: kill {process}"
        ),
    )
}

fn check_cache(
    Cache {
        directory,
        results,
        stale,
    }: Cache,
) -> Checked {
    if stale.is_empty() {
        return pass(format!("{results} results, each with an interface"));
    }
    let (count, listed, directory) = (stale.len(), join_first(&stale), directory.display());
    warn(
        format!(
            "{count} of {results} results belong to containers whose interface is missing: {listed}"
        ),
        format!(
            "wait for the runtime's DEL, after a reboot some minutes; then remove the results of \
             containers that do not exist (`crictl pods`) from {directory}"
        ),
    )
}

fn check_interfaces(found: &Observed<Vec<PodInterface>>) -> Checked {
    let found = found.as_ref().map_err(Clone::clone)?;
    let without: Vec<&PodInterface> = found
        .iter()
        .filter(|interface| interface.endpoint.is_none())
        .collect();
    let all = found.len();
    let Some(first) = without.first() else {
        return pass(format!("{all} interfaces, each with an endpoint"));
    };
    let described: Vec<String> = without
        .iter()
        .map(|interface| describe(interface))
        .collect();
    let name = &first.name;
    warn(
        format!(
            "{} of {all} interfaces have no endpoint: {}",
            without.len(),
            join_first(&described)
        ),
        format!(
            "run `calico doctor --repair` on the node, which removes those of ended containers; if \
             it keeps one whose pod does not exist any more (`crictl pods`): ip link delete {name}"
        ),
    )
}

fn check_routes(found: &[PodInterface]) -> Option<Checked> {
    let with = found
        .iter()
        .filter(|interface| interface.endpoint.is_some());
    let routes: Vec<(String, &str)> = with
        .flat_map(|interface| {
            interface
                .stray_addresses()
                .map(|address| (address.to_string(), interface.name.as_str()))
        })
        .collect();
    let (address, interface) = routes.first()?;
    let described: Vec<String> = routes
        .iter()
        .map(|(address, name)| format!("{address} through {name}"))
        .collect();
    let (count, listed) = (routes.len(), join_first(&described));
    Some(warn(
        format!(
            "{count} routes lead to an address that the pod's endpoint does not have: {listed}"
        ),
        format!(
            "if `crictl inspectp` shows the address for no pod, delete the route: ip route delete \
             {address} dev {interface}"
        ),
    ))
}

/// Checks the free addresses with a host route: `recent`, which ADDs recorded in the last minute,
/// and `routed`, which are in the kernel's routing table. `routed` is `None` if the datastore did
/// not respond.
fn check_busy(routed: Option<&Observed<BusyAddresses>>, recent: &BusyAddresses) -> Option<Checked> {
    let (mut busy, reason) = match routed {
        Some(Ok(routed)) => (routed.clone(), None),
        Some(Err(reason)) => (BusyAddresses::new(), Some(reason.clone())),
        None if recent.is_empty() => return None,
        None => (BusyAddresses::new(), None),
    };
    // The record of an ADD describes the route in more detail than the entry of the routing table.
    busy.extend(recent.clone());
    let Some(first) = busy.keys().next() else {
        return Some(reason.map_or_else(
            || pass("no host route leads to an address that is free in IPAM"),
            Err,
        ));
    };
    let described: Vec<String> = busy
        .iter()
        .map(|(address, route)| format!("{address} (route {route})"))
        .collect();
    let (count, listed) = (busy.len(), join_first(&described));
    Some(warn(
        format!(
            "{count} addresses that are free in IPAM have a host route, so ADDs skip them: {listed}"
        ),
        format!(
            "delete the route if it is unused: ip route delete {first}; else reserve the address \
             with an IPReservation; after a restore of the datastore run `calico-ipam check`"
        ),
    ))
}

fn describe(interface: &PodInterface) -> String {
    let addresses: Vec<String> = interface
        .addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    let name = &interface.name;
    if addresses.is_empty() {
        name.clone()
    } else {
        format!("{name} ({})", addresses.join(", "))
    }
}

/// Joins the first names, and adds `…` if there are more.
pub(super) fn join_first(names: &[String]) -> String {
    let named = names
        .iter()
        .take(MAX_LISTED_ITEMS)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MAX_LISTED_ITEMS {
        format!("{named} …")
    } else {
        named
    }
}
