//! Addresses that are free in IPAM but in use in the kernel.

mod chosen;
mod faults;
mod hints;
mod kubernetes;
mod none_left;
mod restored;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use integration_tests::cluster::{Cluster, Pod, handle};
use integration_tests::command::{ip, ip_json};
use integration_tests::content::Content;
use serde_json::{Value, json};

/// File of the busy notes.
const NOTES: &str = "/var/run/calico/cni/busy_addresses";

/// Log message for a busy address.
const TRIED: &str = "the host has a route to the address that IPAM chose";

/// The interface of another program.
const OTHER: &str = "live0";

/// Returns a running pod and the configuration of all ADDs. The node has a block of each family.
fn prepared(cluster: &Cluster<'_>) -> (Pod, Value) {
    cluster.load(&Content::dual_stack());
    let conf = conf(cluster);
    let resident = cluster.pod(100);
    cluster.add(&resident, &conf);
    other_program();
    (resident, conf)
}

fn conf(cluster: &Cluster<'_>) -> Value {
    let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
    cluster.conf("node1", json!({ "ipam": ipam, "log_level": "info" }))
}

fn other_program() {
    ip(&format!("link add {OTHER} type veth peer name live1")).unwrap();
    ip(&format!("link set {OTHER} up")).unwrap();
    ip("link set live1 up").unwrap();
}

fn route(verb: &str, address: &str) {
    ip(&format!(
        "{} route {verb} {address} dev {OTHER}",
        family(address)
    ))
    .unwrap();
}

fn family(address: &str) -> &'static str {
    if address.contains(':') { "-6" } else { "-4" }
}

fn devices(address: &str) -> Vec<Value> {
    let routes = ip_json(&format!("{} route show {address}", family(address))).unwrap();
    routes
        .as_array()
        .unwrap()
        .iter()
        .map(|route| route["dev"].clone())
        .collect()
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| {
        ip["address"]
            .as_str()
            .unwrap()
            .split('/')
            .next()
            .unwrap()
            .to_owned()
    })
    .collect()
}

/// Returns the free addresses of a family's only block, in the order in which IPAM assigns them.
fn next(cluster: &Cluster<'_>, family: &str) -> Vec<String> {
    let content = cluster.store.dump().unwrap();
    let blocks = content
        .into_iter()
        .filter(|(key, _)| key.contains("/assignment/") || key.starts_with("ipamblocks/"));
    let blocks = blocks.map(|(_, block)| block.get("spec").cloned().unwrap_or(block));
    let mut found: Vec<Value> = blocks
        .filter(|block| block["cidr"].to_string().contains(':') == (family == "-6"))
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let block = found.remove(0);
    let base: IpAddr = block["cidr"]
        .as_str()
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let free = block["unallocated"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ordinal| ordinal.as_u64().unwrap());
    free.map(|ordinal| match base {
        IpAddr::V4(base) => {
            std::net::Ipv4Addr::from(u32::from(base) + u32::try_from(ordinal).unwrap()).to_string()
        }
        IpAddr::V6(base) => {
            std::net::Ipv6Addr::from(u128::from(base) + u128::from(ordinal)).to_string()
        }
    })
    .collect()
}

fn held(cluster: &Cluster<'_>, pod: &Pod) -> Vec<String> {
    let accounts = cluster.accounts();
    accounts
        .held
        .iter()
        .filter(|(_, holder)| **holder == handle(pod))
        .map(|(ip, _)| ip.to_string())
        .collect()
}

/// Runs an ADD and CHECK. Returns the addresses, and the number of busy addresses that ADD tried
/// before.
#[track_caller]
fn add(cluster: &Cluster<'_>, pod: &Pod, conf: &Value) -> (Vec<String>, usize) {
    let outcome = cluster.verb("ADD", pod, conf).run();
    let result = outcome.success();
    let mut check = conf.clone();
    check["prevResult"] = result.clone();
    cluster.verb("CHECK", pod, &check).run().success();
    (addresses(&result), outcome.stderr.matches(TRIED).count())
}

/// Restores the datastore from a [dump](integration_tests::store::Store::dump). Pods are not part
/// of the backup.
fn restore(cluster: &Cluster<'_>, backup: &BTreeMap<String, Value>) {
    cluster.store.keep_only(&BTreeMap::new()).unwrap();
    let content = backup.iter().filter(|(key, _)| !key.starts_with("pods/"));
    cluster
        .store
        .load(
            &content
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        )
        .unwrap();
}

fn delete_notes() {
    let _ = fs::remove_file(NOTES);
}
