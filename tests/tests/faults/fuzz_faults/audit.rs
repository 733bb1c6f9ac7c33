//! The invariants that hold after each round.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use integration_tests::content::NETWORK;
use integration_tests::kernel;
use integration_tests::namespaces::Host;
use serde_json::{Value, json};

use super::node_pair::{Live, NodePair};

/// Checks that exactly the networked sandboxes have addresses and interfaces.
pub(crate) fn check(pair: &mut NodePair<'_>) -> Result<()> {
    datastore(pair)?;
    for node in 0..pair.nodes.len() {
        let live: Vec<&Live> = pair
            .live
            .values()
            .filter(|live| live.node == node)
            .collect();
        pair.nodes[node]
            .on(|host| kernel_of(host, &live))
            .with_context(|| pair.nodes[node].name.clone())?;
    }
    let live: Vec<&Live> = pair.live.values().collect();
    if let Some(one) = pair.rng.choice(live) {
        let node = &pair.nodes[one.node];
        let outcome =
            node.run(&node.verb_with("CHECK", &one.sandbox, &json!({ "prevResult": one.result })))?;
        ensure!(
            outcome.exit == Some(0),
            "CHECK of {}: {}",
            one.sandbox.container_id,
            outcome.stdout
        );
    }
    Ok(())
}

fn datastore(pair: &NodePair<'_>) -> Result<()> {
    let accounts = pair.cluster.store.accounts()?;
    let problem = |problem: &&String| {
        !pair
            .live
            .values()
            .any(|live| is_overcount(problem, &handle_of(live)))
    };
    let problems: Vec<&String> = accounts.problems.iter().filter(problem).collect();
    ensure!(problems.is_empty(), "{problems:#?}");
    let mut expected = BTreeMap::new();
    for live in pair.live.values() {
        for address in &live.addresses {
            let handle = handle_of(live);
            let other = expected.insert(*address, handle.clone());
            ensure!(
                other.is_none(),
                "{address} was given to {handle} and to {other:?}"
            );
        }
    }
    ensure!(
        accounts.held == expected,
        "held: {:#?}\nnetworked: {expected:#?}",
        accounts.held
    );
    let used: BTreeSet<&IpAddr> = accounts.used.keys().collect();
    ensure!(
        used.into_iter().eq(expected.keys()),
        "endpoints have {:#?}\nnetworked: {expected:#?}",
        accounts.used
    );
    let check = pair.cluster.store.calico_ipam(
        &pair.cluster.plugins,
        &["check", "--settle", "0", "-o", "json"],
    )?;
    let report: Value = serde_json::from_str(&check.stdout)
        .with_context(|| format!("calico-ipam check: {check:?}"))?;
    let wrong = |finding: &&Value| {
        !is_unfinished_claim(pair, finding) && !is_overcount_of_live(pair, finding)
    };
    let findings: Vec<&Value> = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(wrong)
        .collect();
    ensure!(
        findings.is_empty() && report["unreadable"].is_null(),
        "calico-ipam check: {report:#}"
    );
    Ok(())
}

fn handle_of(live: &Live) -> String {
    format!("{NETWORK}.{}", live.sandbox.container_id)
}

/// Returns true if `problem` says that `handle` counts more addresses than it has. The DEL of the
/// sandbox deletes the handle.
fn is_overcount(problem: &str, handle: &str) -> bool {
    let numbers = problem
        .strip_prefix(&format!("handle {handle}: holds "))
        .and_then(|rest| {
            let (held, counted) = rest.split_once(" addresses, counts ")?;
            Some((held.parse::<u64>().ok()?, counted.parse::<u64>().ok()?))
        });
    numbers.is_some_and(|(held, counted)| counted > held)
}

fn is_overcount_of_live(pair: &NodePair<'_>, finding: &Value) -> bool {
    finding["finding"] == "handleCount"
        && finding["counted"].as_i64() > finding["held"].as_i64()
        && pair
            .live
            .values()
            .any(|live| finding["handle"] == handle_of(live))
}

/// Returns true for an affinity that upstream or an ADD left incomplete. A later ADD of the node
/// may repair it.
fn is_unfinished_claim(pair: &NodePair<'_>, finding: &Value) -> bool {
    let Some(block) = finding["block"].as_str() else {
        return false;
    };
    let is_of_claim = finding["finding"] == "blockWithoutAffinity" && !finding["state"].is_null();
    let field = format!("block={block} ");
    let mut lines = pair.history.iter().flat_map(|entry| entry.lines());
    is_of_claim
        && (pair.claims.contains(block)
            || lines.any(|line| {
                line.contains("cannot confirm the block affinity") && line.contains(&field)
            }))
}

fn kernel_of(host: &Host, live: &[&Live]) -> Result<()> {
    let seen = kernel::host()?;
    let links = seen["links"].as_object().map_or(0, serde_json::Map::len);
    ensure!(
        links == live.len(),
        "{links} interfaces for {} sandboxes: {}",
        live.len(),
        seen["links"]
    );
    let routed: BTreeSet<&str> = texts(&seen["routes"], "dst")
        .filter(|to| !to.starts_with("fe80:"))
        .collect();
    let expected: Vec<String> = live
        .iter()
        .flat_map(|live| &live.addresses)
        .map(IpAddr::to_string)
        .collect();
    ensure!(
        routed == expected.iter().map(String::as_str).collect(),
        "routes to {routed:?}, not to {expected:?}"
    );
    for live in live {
        let inside = kernel::pod(host, &live.sandbox.netns)?["links"]["eth0"]["addrs"].to_string();
        let has = |address: &IpAddr| inside.contains(&format!("\"{address}/"));
        ensure!(
            live.addresses.iter().all(has),
            "{} has {inside}, not {:?}",
            live.sandbox.netns,
            live.addresses
        );
    }
    Ok(())
}

fn texts<'v>(list: &'v Value, field: &'static str) -> impl Iterator<Item = &'v str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(move |item| item[field].as_str())
}
