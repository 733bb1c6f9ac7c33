//! Leftovers of ended processes and deleted pods, with real locks, interfaces and routes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use integration_tests::command::ip;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::etcd::ENDPOINT;
use integration_tests::namespaces::NETNS_DIR;
use integration_tests::plugin::Plugins;
use serde_json::{Value, json};

use crate::etcd::on_etcd;
use crate::scene::{Break, Examined, NODE, RESULTS, is_good, on_a_good_node};

/// A lock on a file, released on drop.
struct Held(Child);

impl Held {
    fn new(file: &Path) -> Held {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut command = Command::new("flock");
        // With `--no-fork` the process itself keeps the lock.
        command
            .arg("--no-fork")
            .arg(file)
            .args(["sleep", "1000"])
            .stdin(Stdio::null());
        let held = Held(command.spawn().unwrap());
        // `flock` becomes `sleep` once it has the lock.
        let name = format!("/proc/{}/comm", held.0.id());
        let has_lock = || Ok(fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
        await_that(PATIENCE, has_lock).unwrap();
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn doctor_names_the_process_that_holds_a_lock() {
    on_etcd(json!({}), |_, node| {
        let node = &*node;
        let files = [
            ("IPAM lock", node.container.path("var/run/calico/ipam.lock")),
            (
                "journal lock",
                node.container.path("var/lib/calico/cni-journal/lock"),
            ),
        ];
        for (name, file) in files {
            let held = Held::new(&file);
            let said = node.doctor();
            assert_eq!(
                (said.wrong(), said.exit),
                (vec![format!("warn {name}")], Some(0)),
                "{said:#?}"
            );
            let words = format!("stays locked by process {} (sleep 1000) -> ", held.0.id());
            assert!(said.words(name).contains(&words), "{said:#?}");
            drop(held);
            is_good(node);
        }
    });
}

fn conf() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
        "nodename": "node1",
        "nodename_file_optional": true, "ipam": { "type": "calico-ipam" },
        "datastore_type": "etcdv3",
        "etcd_endpoints": ENDPOINT,
    })
}

fn interface() -> String {
    let links = integration_tests::command::ip_json("link show").unwrap();
    let mut names = links
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|link| link["ifname"].as_str());
    names
        .find(|name| name.starts_with("cali"))
        .unwrap()
        .to_owned()
}

#[test]
fn doctor_reports_interfaces_and_routes_without_an_endpoint() {
    on_etcd(json!({}), |host, node| {
        let node = &*node;
        let netns = host.add_pod("pod1").unwrap();
        Plugins::locate()
            .unwrap()
            .verb("calico", "ADD", "pod1", &netns, &conf())
            .run()
            .unwrap()
            .success();
        is_good(node);
        assert!(
            node.doctor()
                .words("interfaces of pods")
                .starts_with("1 interfaces, each"),
            "{:#?}",
            node.doctor()
        );
        let interface = interface();
        let route = |verb: &str| {
            ip(&format!(
                "route {verb} 10.65.99.1/32 dev {interface} scope link"
            ))
            .unwrap()
        };
        let words = format!("delete the route: ip route delete 10.65.99.1 dev {interface}");
        Break {
            found: &["warn routes to pods"],
            words: ("routes to pods", &words),
        }
        .and_mend(node, || route("add"), || route("delete"));
        let stored = node.etcd.dump().unwrap();
        let key = stored
            .keys()
            .find(|key| key.contains("/workloadendpoints/"))
            .unwrap();
        let words = format!("ip link delete {interface}");
        Break {
            found: &["warn interfaces of pods"],
            words: ("interfaces of pods", &words),
        }
        .and_mend(
            node,
            || node.etcd.delete(key).unwrap(),
            || {
                node.etcd
                    .put(key, stored[key].to_string().as_bytes())
                    .unwrap()
            },
        );
        // Another program's interface with a name like ours.
        ip("link add cali-theirs type veth peer name theirs").unwrap();
        is_good(node);
    });
}

#[test]
fn doctor_reports_free_addresses_that_are_busy_in_the_kernel() {
    on_etcd(json!({}), |host, node| {
        let node = &*node;
        let netns = host.add_pod("pod1").unwrap();
        let result = Plugins::locate()
            .unwrap()
            .verb("calico", "ADD", "pod1", &netns, &conf())
            .run()
            .unwrap()
            .success();
        is_good(node);
        ip("link add other0 type veth peer name other1").unwrap();
        ip("link set other0 up").unwrap();
        let pods = result["ips"][0]["address"]
            .as_str()
            .unwrap()
            .split('/')
            .next()
            .unwrap();
        let pods: u32 = pods.parse::<std::net::Ipv4Addr>().unwrap().into();
        let free = std::net::Ipv4Addr::from(pods ^ 1);
        let route = |verb: &str| ip(&format!("route {verb} {free}/32 dev other0")).unwrap();
        let words = format!("{free} (route through other0) -> ");
        Break {
            found: &["warn busy addresses"],
            words: ("busy addresses", &words),
        }
        .and_mend(node, || route("add"), || route("delete"));
        ip("route add 192.0.2.9/32 dev other0").unwrap();
        is_good(node);
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
        Break {
            found: &["warn busy addresses"],
            words: ("busy addresses", &words),
        }
        .and_mend(
            node,
            || fs::write(&file, note.to_string()).unwrap(),
            || fs::remove_file(&file).unwrap(),
        );
    });
}

#[test]
fn doctor_reports_stale_results_in_the_libcni_cache() {
    on_etcd(json!({}), |_, node| {
        let node = &*node;
        let directory = node.container.path(RESULTS);
        is_good(node);
        let result = json!({
            "interfaces": [
                { "name": "cali0123456789a" }, { "name": "eth0", "sandbox": "/run/netns/x" },
            ]
        });
        let file = directory.join("k8s-pod-network-abc-eth0");
        let kept =
            json!({ "kind": "cniCacheV1", "containerId": "abc", "result": result }).to_string();
        Break {
            found: &["warn libcni cache"],
            words: ("libcni cache", "is missing: k8s-pod-network-abc-eth0"),
        }
        .and_mend(
            node,
            || fs::write(&file, kept).unwrap(),
            || fs::remove_file(&file).unwrap(),
        );
        let away = directory.with_extension("away");
        Break {
            found: &["skipped libcni cache"],
            words: ("libcni cache", "is not mounted in this container"),
        }
        .and_mend(
            node,
            || fs::rename(&directory, &away).unwrap(),
            || fs::rename(&away, &directory).unwrap(),
        );
    });
}

/// On Kubernetes the endpoint is the pod. The plugins' account may get pods but not list them.
#[test]
fn doctor_reports_an_interface_of_a_deleted_pod() {
    on_a_good_node(|scene| {
        let api = &scene.kubernetes.api;
        api.namespace("shop").unwrap();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "shop" },
            "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "none" }] },
        });
        let create = || {
            drop(
                api.admin()
                    .create("/api/v1/namespaces/shop/pods", &pod)
                    .unwrap()
                    .success()
                    .unwrap(),
            )
        };
        create();
        ip("netns add sandbox").unwrap();
        let netns = Path::new(NETNS_DIR).join("sandbox");
        let conf = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico",
            "log_level": "error",
            "datastore_type": "kubernetes", "calico_api_group": "crd.projectcalico.org/v1",
            "kubernetes": { "kubeconfig": scene.pod.kubeconfig() }, "nodename": NODE,
            "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
        });
        let call = Plugins::locate()
            .unwrap()
            .verb("calico", "ADD", "sandbox", &netns, &conf);
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
        call.env("CNI_ARGS", args).run().unwrap().success();
        is_good(scene);
        assert!(
            scene
                .doctor()
                .words("interfaces of pods")
                .starts_with("1 interfaces, each"),
            "{:#?}",
            scene.doctor()
        );
        let words = format!("ip link delete {}", interface());
        Break {
            found: &["warn interfaces of pods"],
            words: ("interfaces of pods", &words),
        }
        .and_mend(
            scene,
            || {
                drop(
                    api.admin()
                        .delete("/api/v1/namespaces/shop/pods/web")
                        .unwrap()
                        .success()
                        .unwrap(),
                )
            },
            create,
        );
    });
}
