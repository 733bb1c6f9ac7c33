//! The alias that ADD writes on the host interface.

use integration_tests::cluster::{Cluster, on};
use integration_tests::command::present;
use integration_tests::content::Content;
use integration_tests::skip::skipped;
use libcalico::names::InterfaceAlias;
use serde_json::json;

use crate::host_interfaces::{Sandbox, alias_of, lines_with};

#[on(etcd, local)]
fn add_writes_container_and_pod_into_the_alias(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let plain = cluster.pod(1);
    let result = cluster.add(&plain, &conf);
    let ifname = result["interfaces"][0]["name"].as_str().unwrap();
    assert_eq!(
        alias_of(ifname),
        Some(InterfaceAlias::for_container(&plain.container_id).to_string())
    );

    let sandbox = Sandbox::new(cluster, 2, "team-a", "web-0");
    sandbox.call(cluster, "ADD", &conf).run().success();
    assert_eq!(alias_of(&sandbox.host_ifname()), Some(sandbox.alias()));
    let newer = Sandbox::new(cluster, 3, "team-a", "web-0");
    newer.call(cluster, "ADD", &conf).run().success();
    assert_eq!(alias_of(&newer.host_ifname()), Some(newer.alias()));
}

#[on(etcd, local)]
fn long_container_id_is_shortened_in_the_alias(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let mut sandbox = Sandbox::new(cluster, 1, "team-a", "web-0");
    sandbox.pod.container_id = "f".repeat(200);
    sandbox.call(cluster, "ADD", &conf).run().success();
    let alias = alias_of(&sandbox.host_ifname()).unwrap();
    assert_eq!(alias, sandbox.alias());
    assert!(alias.len() < 200, "{alias}");
}

/// The sends create the pair, set up its end on the host, and set up its end in the pod.
#[on(local)]
fn add_takes_three_netlink_sends(cluster: &Cluster<'_>) {
    if !present("strace") {
        return skipped("strace is not installed (Debian: strace)");
    }
    cluster.load(&Content::dual_stack());
    let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
    let conf = cluster.conf("node1", json!({ "ipam": ipam }));
    let trace = cluster.host.dir("strace").join("trace");
    let wrapper = format!(
        "strace -f -qq -o {} -e trace=sendto,sendmsg,sendmmsg -e signal=none",
        trace.display()
    );
    let sandbox = Sandbox::new(cluster, 1, "team-a", "web-0");
    sandbox
        .call(cluster, "ADD", &conf)
        .under(&wrapper)
        .run()
        .success();
    assert_eq!(
        lines_with(&trace, &["AF_NETLINK"]),
        3,
        "{}",
        std::fs::read_to_string(&trace).unwrap()
    );
}
