//! The dataplane alone on a real kernel, checked with iproute2, an independent implementation.

mod conflicts;
mod failures;
mod golden;
mod netns;
mod setup;
mod teardown;
mod verify;

use std::path::Path;

use dataplane::plan::{DEFAULT_IPV4_GATEWAY, default_routes};
use dataplane::{DataplaneError, DeviceType, EndpointPlan, InterfacePair, NetnsFd, PriorInterface};
use integration_tests::command::ip_json;
use integration_tests::namespaces::{Host, NETNS_DIR};
use libcalico::names::InterfaceAlias;
use serde_json::Value;

/// Returns the plan of an ordinary endpoint.
fn plan(host_ifname: &str, addresses: &[&str]) -> EndpointPlan {
    EndpointPlan {
        host_ifname: host_ifname.into(),
        container_ifname: "eth0".into(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        mtu: 0,
        num_queues: 1,
        device: DeviceType::Veth,
        container_mac: None,
        routes: default_routes(),
        ipv4_gateway: DEFAULT_IPV4_GATEWAY,
        allow_ip_forwarding: false,
        host_routes: true,
        replaces_idle_routes: true,
        refuses_addresses_of_pods: false,
        withholds_other_pods: false,
        alias: InterfaceAlias::for_pod("net", "suite", host_ifname, "c1"),
        prior: PriorInterface::Unknown,
    }
}

/// Opens the network namespace of a pod, after creating it if necessary.
fn open(host: &Host, pod: &str) -> NetnsFd {
    host.ensure_pod(pod).unwrap();
    NetnsFd::open(&Path::new(NETNS_DIR).join(pod)).unwrap()
}

fn set_up(host: &Host, pod: &str, plan: &EndpointPlan) -> Result<InterfacePair, DataplaneError> {
    dataplane::setup(plan, &open(host, pod))
}

/// Returns the names of the interfaces in the thread's network namespace.
fn link_names() -> Vec<String> {
    let links = ip_json("link show").unwrap();
    links
        .as_array()
        .unwrap()
        .iter()
        .map(|link| link["ifname"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the only object that `ip -json -details <args>` prints.
fn only(args: &str) -> Value {
    let list = ip_json(&format!("-details {args}")).unwrap();
    assert_eq!(list.as_array().map(Vec::len), Some(1), "ip {args}: {list}");
    list[0].clone()
}
