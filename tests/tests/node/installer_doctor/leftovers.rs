//! Leftovers of ended processes and containers, with real locks, interfaces and routes.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use integration_tests::cluster::{Cluster, on};
use integration_tests::command::ip;
use integration_tests::controllers::{PATIENCE, await_that};
use serde_json::json;

use crate::installer_doctor::etcd_node::{EtcdNode, add, first_address};
use crate::installer_doctor::files::RESULTS;
use crate::installer_doctor::report::{Examined, assert_good, assert_reported};

/// A lock on a file, released on drop.
struct HeldLock(Child);

impl HeldLock {
    fn new(file: &Path) -> HeldLock {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut command = Command::new("flock");
        // With `--no-fork` the process itself keeps the lock.
        command
            .arg("--no-fork")
            .arg(file)
            .args(["sleep", "1000"])
            .stdin(Stdio::null());
        let held = HeldLock(command.spawn().unwrap());
        // `flock` becomes `sleep` once it has the lock.
        let name = format!("/proc/{}/comm", held.0.id());
        let has_lock = || Ok(fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
        await_that(PATIENCE, has_lock).unwrap();
        held
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[on(etcd)]
fn doctor_names_the_process_that_holds_a_lock(cluster: &mut Cluster<'_>) {
    let node = &EtcdNode::new(cluster, json!({}));
    let files = [
        ("IPAM lock", node.container.path("var/run/calico/ipam.lock")),
        (
            "journal lock",
            node.container.path("var/lib/calico/cni-journal/lock"),
        ),
    ];
    for (name, file) in files {
        let held = HeldLock::new(&file);
        let report = node.doctor();
        assert_eq!(
            (report.wrong(), report.exit),
            (vec![format!("warn {name}")], Some(0)),
            "{report:#?}"
        );
        let words = format!("stays locked by process {} (sleep 1000) -> ", held.0.id());
        assert!(report.words(name).contains(&words), "{report:#?}");
        drop(held);
        assert_good(node);
    }
}

#[on(etcd)]
fn doctor_reports_interfaces_and_routes_without_an_endpoint(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let node = &EtcdNode::new(cluster, json!({}));
    let result = add(host, "pod1");
    assert_good(node);
    assert!(
        node.doctor()
            .words("interfaces of pods")
            .starts_with("1 interfaces, each"),
        "{:#?}",
        node.doctor()
    );
    let interface = result["interfaces"][0]["name"].as_str().unwrap();
    let route = |verb: &str| {
        ip(&format!(
            "route {verb} 10.65.99.1/32 dev {interface} scope link"
        ))
        .unwrap()
    };
    let words = format!("delete the route: ip route delete 10.65.99.1 dev {interface}");
    assert_reported(
        node,
        &["warn routes to pods"],
        ("routes to pods", &words),
        || route("add"),
        || route("delete"),
    );
    let stored = node.etcd.dump().unwrap();
    let key = stored
        .keys()
        .find(|key| key.contains("/workloadendpoints/"))
        .unwrap();
    let words = format!("ip link delete {interface}");
    assert_reported(
        node,
        &["warn interfaces of pods"],
        ("interfaces of pods", &words),
        || node.etcd.delete(key).unwrap(),
        || {
            node.etcd
                .put(key, stored[key].to_string().as_bytes())
                .unwrap()
        },
    );
    // Another program's interface with a name like ours.
    ip("link add cali-theirs type veth peer name theirs").unwrap();
    assert_good(node);
}

#[on(etcd)]
fn doctor_reports_free_addresses_that_are_busy_in_the_kernel(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let node = &EtcdNode::new(cluster, json!({}));
    let result = add(host, "pod1");
    assert_good(node);
    ip("link add other0 type veth peer name other1").unwrap();
    ip("link set other0 up").unwrap();
    let pods: u32 = first_address(&result).parse::<Ipv4Addr>().unwrap().into();
    let free = Ipv4Addr::from(pods ^ 1);
    let route = |verb: &str| ip(&format!("route {verb} {free}/32 dev other0")).unwrap();
    let words = format!("{free} (route through other0) -> ");
    assert_reported(
        node,
        &["warn busy addresses"],
        ("busy addresses", &words),
        || route("add"),
        || route("delete"),
    );
    ip("route add 192.0.2.9/32 dev other0").unwrap();
    assert_good(node);
    let until = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
        + 50;
    let note = json!([{
        "address": free, "route": "through interface other0 (protocol Boot)", "until": until,
    }]);
    let file = node.container.path("var/run/calico/cni/busy_addresses");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let words = format!("{free} (route through interface other0 (protocol Boot))");
    assert_reported(
        node,
        &["warn busy addresses"],
        ("busy addresses", &words),
        || fs::write(&file, note.to_string()).unwrap(),
        || fs::remove_file(&file).unwrap(),
    );
}

#[on(etcd)]
fn doctor_reports_stale_results_in_the_libcni_cache(cluster: &mut Cluster<'_>) {
    let node = &EtcdNode::new(cluster, json!({}));
    let directory = node.container.path(RESULTS);
    assert_good(node);
    let result = json!({
        "interfaces": [
            { "name": "cali0123456789a" }, { "name": "eth0", "sandbox": "/run/netns/x" },
        ]
    });
    let file = directory.join("k8s-pod-network-abc-eth0");
    let kept = json!({ "kind": "cniCacheV1", "containerId": "abc", "result": result }).to_string();
    assert_reported(
        node,
        &["warn libcni cache"],
        ("libcni cache", "is missing: k8s-pod-network-abc-eth0"),
        || fs::write(&file, kept).unwrap(),
        || fs::remove_file(&file).unwrap(),
    );
    let away = directory.with_extension("away");
    assert_reported(
        node,
        &["skipped libcni cache"],
        ("libcni cache", "is not mounted in this container"),
        || fs::rename(&directory, &away).unwrap(),
        || fs::rename(&away, &directory).unwrap(),
    );
}
