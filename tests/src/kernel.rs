//! The kernel's network state in the form of the recordings (tests/golden/README.md).

use std::fs;
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::command::ip_json;
use crate::namespaces::Host;

/// Sysctls of an interface, below /proc/sys/net; `*` stands for the interface.
const SYSCTLS: [&str; 10] = [
    "ipv4/conf/*/forwarding",
    "ipv4/conf/*/proxy_arp",
    "ipv4/conf/*/route_localnet",
    "ipv4/conf/*/rp_filter",
    "ipv4/neigh/*/proxy_delay",
    "ipv6/conf/*/accept_dad",
    "ipv6/conf/*/accept_ra",
    "ipv6/conf/*/disable_ipv6",
    "ipv6/conf/*/forwarding",
    "ipv6/conf/*/proxy_ndp",
];

/// Longest wait for the IPv6 link-local addresses of the links.
const SETTLING: Duration = Duration::from_secs(10);

/// Reads the state of the host: `cali*` links, their sysctls and routes.
pub fn host() -> Result<Value> {
    settled(|| {
        let links = host_links()?;
        let routes = routes(&links)?;
        let sysctls = sysctls(&links)?;
        Ok(json!({ "links": links, "routes": routes, "sysctls": sysctls }))
    })
}

/// Reads the part `links` of [`host`], with a third of the processes.
pub fn host_links() -> Result<Map<String, Value>> {
    links(|name| name.starts_with("cali"))
}

/// Reads the part `links` of [`pod`], with a quarter of the processes.
pub fn pod_links(host: &Host, name: &str) -> Result<Map<String, Value>> {
    host.in_pod(name, || links(|name| name != "lo"))
}

/// Reads the state of every pod's network namespace, by name.
pub fn pods(host: &Host) -> Result<Value> {
    let mut pods = Map::new();
    for name in host.pods()? {
        pods.insert(name.clone(), pod(host, &name)?);
    }
    Ok(Value::Object(pods))
}

/// Reads the state of one pod's network namespace, without `lo`.
pub fn pod(host: &Host, name: &str) -> Result<Value> {
    let state = || {
        let links = links(|name| name != "lo")?;
        let routes = routes(&links)?;
        let mut sysctls = sysctls(&links)?;
        for values in sysctls.values_mut() {
            values["ip_forward"] = json!(sysctl("ipv4/ip_forward")?);
        }
        Ok(json!({ "links": links, "neigh": neighbours()?, "routes": routes, "sysctls": sysctls }))
    };
    host.in_pod(name, || settled(state))
}

/// Reads until the state is stable, or until [`SETTLING`] is over. A link gets its link-local
/// address a few milliseconds after it came up, and a link may disappear between being listed and
/// being read.
fn settled(read: impl Fn() -> Result<Value>) -> Result<Value> {
    let deadline = Instant::now() + SETTLING;
    loop {
        let state = read();
        let moves = state.as_ref().map_or_else(is_gone, awaits_link_local);
        if !moves || Instant::now() > deadline {
            return state;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

fn awaits_link_local(state: &Value) -> bool {
    let links = state["links"].as_object().into_iter().flatten();
    links.into_iter().any(|(name, link)| {
        let up = link["state"]
            .as_array()
            .is_some_and(|flags| flags.contains(&json!("UP")));
        let ipv6 = state["sysctls"][name][format!("ipv6/conf/{name}/disable_ipv6")] == "0";
        let addresses = link["addrs"].as_array().into_iter().flatten();
        let has_one = addresses
            .filter_map(Value::as_str)
            .any(|a| a.ends_with(" link") && a.starts_with("fe80:"));
        let has_route = state["routes"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|r| r["dev"] == *name && r["dst"] == "fe80::/64");
        up && ipv6 && !(has_one && has_route)
    })
}

fn links(wanted: impl Fn(&str) -> bool) -> Result<Map<String, Value>> {
    let mut links = Map::new();
    for link in array(ip_json("-details address show")?) {
        let Some(name) = link["ifname"].as_str().filter(|name| wanted(name)) else {
            continue;
        };
        links.insert(name.to_owned(), describe_link(&link));
    }
    Ok(links)
}

fn describe_link(link: &Value) -> Value {
    let addresses: Vec<_> = list(&link["addr_info"])
        .iter()
        .map(describe_address)
        .collect();
    // LOWER_UP and NO-CARRIER depend on the peer.
    let of_this_end = |flag: &&Value| *flag != "LOWER_UP" && *flag != "NO-CARRIER";
    let mut flags: Vec<_> = list(&link["flags"])
        .iter()
        .filter(of_this_end)
        .cloned()
        .collect();
    flags.sort_by_key(|flag| flag.to_string());
    json!({
        "addrs": addresses,
        "alias": link["ifalias"],
        "kind": link["linkinfo"]["info_kind"],
        "mac": link["address"],
        "mtu": link["mtu"],
        "numrx": link["num_rx_queues"],
        "numtx": link["num_tx_queues"],
        "state": flags,
    })
}

fn describe_address(address: &Value) -> String {
    let field = |name: &str| address[name].as_str().unwrap_or("?").to_owned();
    format!(
        "{}/{} {}",
        field("local"),
        address["prefixlen"],
        field("scope")
    )
}

/// Reads the routes of the main table over the given links.
fn routes(links: &Map<String, Value>) -> Result<Vec<Value>> {
    let mut routes = Vec::new();
    for family in ["-4", "-6"] {
        for route in array(ip_json(&format!("{family} route show"))?) {
            if route["dev"]
                .as_str()
                .is_some_and(|dev| links.contains_key(dev))
            {
                routes.push(describe_route(route));
            }
        }
    }
    Ok(sorted_routes(routes))
}

/// Returns a route as iproute2 prints it, without `linkdown`, empty flags and the default `pref`.
/// The kernel sets and clears `linkdown` some time after the carrier changed.
fn describe_route(mut route: Value) -> Value {
    if let Some(flags) = route.get_mut("flags").and_then(Value::as_array_mut) {
        flags.retain(|flag| flag != "linkdown");
    }
    if let Some(fields) = route.as_object_mut() {
        fields.retain(|name, value| match name.as_str() {
            "flags" => value.as_array().is_none_or(|flags| !flags.is_empty()),
            "pref" => value != "medium",
            _ => true,
        });
    }
    route
}

/// Sorts routes, whose order in the kernel differs between address families and versions.
pub(crate) fn sorted_routes(mut routes: Vec<Value>) -> Vec<Value> {
    let key = |route: &Value| {
        let text = |field: &str| route[field].as_str().unwrap_or_default().to_owned();
        (
            text("dst"),
            text("dev"),
            route["metric"].as_u64().unwrap_or(0),
        )
    };
    routes.sort_by_key(key);
    routes
}

fn sysctls(links: &Map<String, Value>) -> Result<Map<String, Value>> {
    let mut by_link = Map::new();
    for name in links.keys() {
        let mut values = Map::new();
        for pattern in SYSCTLS {
            let path = pattern.replace('*', name);
            let value = sysctl(&path)?;
            values.insert(path, json!(value));
        }
        by_link.insert(name.clone(), Value::Object(values));
    }
    Ok(by_link)
}

/// Reads a value of the calling thread's network namespace.
pub fn sysctl(path: &str) -> Result<String> {
    let path = format!("/proc/sys/net/{path}");
    Ok(fs::read_to_string(&path)
        .with_context(|| path)?
        .trim()
        .to_owned())
}

fn neighbours() -> Result<Vec<Value>> {
    let permanent = array(ip_json("neighbour show nud permanent")?);
    let describe = |n: Value| json!({ "dev": n["dev"], "dst": n["dst"], "mac": n["lladdr"] });
    Ok(permanent.into_iter().map(describe).collect())
}

fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items
            .into_iter()
            .filter(|item| item != &json!({}))
            .collect(),
        _ => Vec::new(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ip;
    use crate::namespaces::isolated;

    #[test]
    fn kernel_state_has_the_format_of_the_recordings() {
        isolated(|host| {
            host.add_pod("pod1").unwrap();
            ip(
                "link add caliabc numrxqueues 1 numtxqueues 1 mtu 1410 type veth peer name eth0 \
                 numrxqueues 1 numtxqueues 1 netns pod1",
            )
            .unwrap();
            ip("link set caliabc address ee:ee:ee:ee:ee:ee up").unwrap();
            ip("-n pod1 link set eth0 up").unwrap();
            ip("-n pod1 address add 10.65.1.9/32 dev eth0").unwrap();
            ip("route add 10.65.1.9/32 dev caliabc").unwrap();
            ip("-n pod1 neighbour add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent")
                .unwrap();

            let host_state = super::host().unwrap();
            let link = &host_state["links"]["caliabc"];
            assert_eq!(link["addrs"], json!(["fe80::ecee:eeff:feee:eeee/64 link"]));
            assert_eq!(link["state"], json!(["BROADCAST", "MULTICAST", "UP"]));
            assert_eq!(
                (&link["mtu"], &link["numrx"], &link["kind"]),
                (&json!(1410), &json!(1), &json!("veth"))
            );
            assert_eq!(
                host_state["routes"],
                json!([
                    {"dev": "caliabc", "dst": "10.65.1.9", "scope": "link"},
                    {"dev": "caliabc", "dst": "fe80::/64", "metric": 256, "protocol": "kernel"},
                ])
            );
            assert_eq!(
                host_state["sysctls"]["caliabc"]["ipv4/conf/caliabc/proxy_arp"],
                "0"
            );

            let pod_state = pod(host, "pod1").unwrap();
            assert_eq!(
                pod_state["links"]["eth0"]["addrs"][0],
                "10.65.1.9/32 global"
            );
            assert_eq!(pod_state["sysctls"]["eth0"]["ip_forward"], "0");
            assert_eq!(
                pod_state["neigh"],
                json!([{"dev": "eth0", "dst": "169.254.1.1", "mac": "ee:ee:ee:ee:ee:ee"}])
            );
            assert_eq!(pods(host).unwrap()["pod1"]["routes"], pod_state["routes"]);
        });
    }

    #[test]
    fn state_of_an_empty_pod_has_no_entries() {
        isolated(|host| {
            host.add_pod("pod1").unwrap();
            let empty = json!({"links": {}, "neigh": [], "routes": [], "sysctls": {}});
            assert_eq!(pods(host).unwrap(), json!({ "pod1": empty }));
        });
    }
}
