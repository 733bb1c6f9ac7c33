//! Two concurrent calls for one pod: the older call removes nothing that belongs to the newer one.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::cluster::{Cluster, on};
use integration_tests::command::ip;
use integration_tests::content::Content;
use integration_tests::kernel;
use integration_tests::plugin::{CniError, DEADLINE, wait};
use integration_tests::proxy::{Fault, Point, Proxy};
use os::lock::HostLock;
use serde_json::json;

use crate::host_interfaces::{Sandbox, alias_of};

/// Runs the ADD of a pod's second sandbox while the first sandbox's ADD is held at `point`, where
/// `at_point` inspects the host. Returns the error of the first ADD and the container ID of the
/// second sandbox.
fn overtake(
    cluster: &Cluster<'_>,
    numbers: [usize; 2],
    point: Point,
    netns_override: &str,
    at_point: impl FnOnce(&Sandbox),
) -> (CniError, String) {
    let proxy = Proxy::start("127.0.0.1:2379").unwrap();
    let direct = cluster.conf("node1", json!({}));
    let held = cluster.conf("node1", json!({ "etcd_endpoints": proxy.endpoint() }));
    let [first, second] = numbers.map(|number| Sandbox::new(cluster, number, "team-a", "web-0"));

    proxy.arm(Some((point, Fault::Hold)));
    let started = Instant::now();
    let add = first
        .call(cluster, "ADD", &held)
        .env("CNI_NETNS_OVERRIDE", netns_override)
        .spawn()
        .unwrap();
    proxy.await_held().unwrap();
    at_point(&first);
    let result = second.call(cluster, "ADD", &direct).run().success();
    proxy.resume();
    let error = wait(add, started, DEADLINE).unwrap().error();

    assert_eq!(alias_of(&second.host_ifname()), Some(second.alias()));
    let mut check = direct.clone();
    check["prevResult"] = result;
    second.call(cluster, "CHECK", &check).run().success();
    for sandbox in [&first, &second] {
        sandbox.call(cluster, "DEL", &direct).run().success();
    }
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    assert_eq!(cluster.accounts().held.len(), 0);
    (error, second.pod.container_id)
}

/// Shows SEC-40.
#[on(etcd)]
fn add_overtaken_at_the_endpoint_write_keeps_the_later_interface(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let point = Point::First("POST", "/workloadendpoints/");
    overtake(cluster, [1, 2], point, "0", |first| {
        assert_eq!(alias_of(&first.host_ifname()), Some(first.alias()));
    });
}

/// Shows SEC-41.
#[on(etcd)]
fn add_overtaken_at_the_first_request_fails_and_keeps_the_later_interface(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    // A runtime may set CNI_NETNS_OVERRIDE.
    for (netns_override, numbers) in [("0", [1, 2]), ("1", [3, 4])] {
        let point = Point::First("POST", "");
        let (error, second) = overtake(cluster, numbers, point, netns_override, |_| {});
        assert!(
            error.msg.contains("was created by a later ADD of this pod"),
            "{error:?}"
        );
        assert!(error.msg.contains(&second), "{error:?}");
    }
}

/// The sandboxes of a VMI's pods have the same address. Shows SEC-42.
#[on(etcd)]
fn late_del_keeps_the_next_sandboxs_interface_with_the_same_address(cluster: &Cluster<'_>) {
    let proxy = Proxy::start("127.0.0.1:2379").unwrap();
    cluster.load(&Content::dual_stack());
    let direct = cluster.conf("node1", json!({}));
    let held = cluster.conf("node1", json!({ "etcd_endpoints": proxy.endpoint() }));
    let old = Sandbox::new(cluster, 1, "team-a", "web-0");
    let new = Sandbox::new(cluster, 2, "team-a", "web-0");
    let result = old.call(cluster, "ADD", &direct).run().success();

    proxy.arm(Some((
        Point::First("POST", "/workloadendpoints/"),
        Fault::Hold,
    )));
    let started = Instant::now();
    let add = new.call(cluster, "ADD", &held).spawn().unwrap();
    proxy.await_held().unwrap();
    let address = result["ips"][0]["address"].as_str().unwrap();
    ip(&format!(
        "route replace {address} dev {}",
        new.host_ifname()
    ))
    .unwrap();
    old.call(cluster, "DEL", &direct)
        .env("CNI_NETNS", "")
        .run()
        .success();
    assert_eq!(alias_of(&new.host_ifname()), Some(new.alias()));
    assert!(kernel::pod(cluster.host, &new.pod.name).unwrap()["links"]["eth0"].is_object());
    proxy.resume();
    wait(add, started, DEADLINE).unwrap();
    new.call(cluster, "DEL", &direct).run().success();
    cluster.assert_nothing_left();
}

/// On an API server, a tenant may write any address into the endpoint of a pod. Shows SEC-54.
#[on(etcd)]
fn del_keeps_an_interface_if_only_the_endpoint_lists_its_address(cluster: &Cluster<'_>) {
    const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints";
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let [victim, namesake] =
        [(1, "p723961"), (2, "p6680456")].map(|(n, name)| Sandbox::new(cluster, n, "team-a", name));
    victim.call(cluster, "ADD", &conf).run().success();
    let ifname = victim.host_ifname();
    ip(&format!("link set dev {ifname} alias upstream")).unwrap();
    let mut endpoint = cluster.endpoints()["team-a/node1-k8s-p723961-eth0"].clone();
    let name = "node1-k8s-p6680456-eth0";
    endpoint["metadata"]["name"] = json!(name);
    endpoint["spec"]["pod"] = json!("p6680456");
    endpoint["spec"]["containerID"] = json!(namesake.pod.container_id);
    cluster
        .store
        .put(&format!("{ENDPOINTS}/team-a/{name}"), &endpoint)
        .unwrap();

    let late = |sandbox: &Sandbox| {
        sandbox
            .call(cluster, "DEL", &conf)
            .env("CNI_NETNS", "")
            .run()
            .success()
    };
    late(&namesake);
    assert_eq!(alias_of(&ifname).as_deref(), Some("upstream"));
    // An allocation in IPAM proves that the interface belongs to the sandbox.
    late(&victim);
    cluster.assert_nothing_left();
}

/// Lock that an ADD holds from the creation of its pair until the alias is set.
const LOCK: &str = "/var/run/calico/interfaces.lock";

fn await_waiter() {
    let deadline = Instant::now() + DEADLINE;
    while !HostLock::is_waited_for(Path::new(LOCK)) {
        assert!(Instant::now() < deadline, "no call waits for the lock");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The test plays the part of another ADD.
#[on(local)]
fn add_does_not_replace_an_interface_that_another_add_is_creating(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let [made, waiting] =
        [(1, "p723961"), (2, "p6680456")].map(|(n, name)| Sandbox::new(cluster, n, "team-a", name));
    let ifname = made.host_ifname();
    fs::create_dir_all("/var/run/calico").unwrap();
    let lock = File::create(LOCK).unwrap();
    lock.lock_shared().unwrap();
    ip(&format!(
        "link add {ifname} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {}",
        made.pod.name
    ))
    .unwrap();

    let started = Instant::now();
    let add = waiting.call(cluster, "ADD", &conf).spawn().unwrap();
    await_waiter();
    ip(&format!("link set {ifname} alias {}", made.alias())).unwrap();
    ip(&format!("link set {ifname} up")).unwrap();
    lock.unlock().unwrap();
    let error = wait(add, started, DEADLINE).unwrap().error();
    assert!(error.msg.contains(&ifname), "{error:?}");
    assert_eq!(alias_of(&ifname), Some(made.alias()));
    assert_eq!(cluster.accounts().held.len(), 0);
}
