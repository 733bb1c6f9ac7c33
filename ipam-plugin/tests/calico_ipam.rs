//! `calico-ipam` as a runtime or a plugin runs it, on the embedded datastore.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use datastore::Local;
use datastore::config::LocalConfig;
use libcalico::api::{IpPool, IpPoolSpec, Node, ObjectKey};
use libcalico::store::Store;
use serde_json::{Value, json};

struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let cluster = Cluster {
            dir: tempfile::tempdir().unwrap(),
        };
        let store = cluster.store();
        runtime().block_on(async {
            let pool = IpPool::new(
                "pool4",
                IpPoolSpec {
                    cidr: "10.65.0.0/16".into(),
                    ..IpPoolSpec::default()
                },
            );
            store.create(&pool.key(), &pool).await.unwrap();
        });
        cluster
    }

    fn store(&self) -> Local {
        let path = self.file("calico.db").into();
        Local::new(&LocalConfig {
            path,
            deadline: std::time::Duration::from_secs(9),
        })
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn conf(&self, version: &str) -> Value {
        json!({
            "cniVersion": version, "name": "net", "type": "calico", "nodename": "node1",
            "log_level": "error",
            "datastore_type": "local", "datastore_path": self.file("calico.db"),
            "ipam_lock_file": self.file("ipam.lock"), "ipam": {"type": "calico-ipam"},
        })
    }

    fn call(&self, command: &str, conf: &Value, changes: &[(&str, &str)]) -> Output {
        let mut child = calico_ipam()
            .env("CNI_COMMAND", command)
            .envs([
                ("CNI_CONTAINERID", "c0ffee"),
                ("CNI_NETNS", "/no/such"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/x"),
            ])
            .envs(changes.iter().copied())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(conf.to_string().as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

fn calico_ipam() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_calico-ipam"));
    command
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn stdout(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| Value::String(text(&output.stdout)))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn add_check_and_del_of_a_container_succeed() {
    let cluster = Cluster::new();
    let mut conf = cluster.conf("1.0.0");
    let added = cluster.call("ADD", &conf, &[]);
    let result = json!({
        "cniVersion": "1.0.0", "ips": [{"address": "10.65.166.128/26"}],
        "routes": [{"dst": "10.65.166.128/26"}],
    });
    assert_eq!(
        (added.status.code(), stdout(&added)),
        (Some(0), result.clone())
    );
    assert!(Path::new(&cluster.file("ipam.lock")).exists());

    let check = cluster.call("CHECK", &conf, &[]);
    assert_eq!(stdout(&check)["msg"], "required prevResult missing");
    conf["prevResult"] = result;
    let check = cluster.call("CHECK", &conf, &[]);
    assert_eq!(
        (check.status.code(), text(&check.stdout)),
        (Some(0), String::new())
    );

    for _ in 0..2 {
        let deleted = cluster.call("DEL", &conf, &[]);
        assert_eq!(
            (deleted.status.code(), text(&deleted.stdout)),
            (Some(0), String::new())
        );
    }
    let check = cluster.call("CHECK", &conf, &[]);
    assert_eq!(check.status.code(), Some(1));
    let details = stdout(&check)["details"].as_str().unwrap().to_owned();
    assert_eq!(
        details,
        "handle net.c0ffee does not exist; 10.65.166.128 is free in block 10.65.166.128/26"
    );
}

/// Neither kubelet nor calico-node creates a Node on the embedded datastore.
#[test]
fn first_add_on_a_local_datastore_creates_the_node_and_status_does_not() {
    let cluster = Cluster::new();
    let nodes = || {
        let nodes = runtime()
            .block_on(cluster.store().list::<Node>(&Default::default()))
            .unwrap();
        nodes.into_iter().map(|entry| entry.key).collect::<Vec<_>>()
    };
    let conf = cluster.conf("1.1.0");
    assert_eq!(cluster.call("STATUS", &conf, &[]).status.code(), Some(0));
    assert_eq!(nodes(), []);
    for container in ["c1", "c2"] {
        let added = cluster.call("ADD", &conf, &[("CNI_CONTAINERID", container)]);
        assert_eq!(added.status.code(), Some(0), "{}", stdout(&added));
        assert_eq!(nodes(), [ObjectKey::global("node1")]);
    }
    let mut nameless = conf.clone();
    nameless["nodename"] = json!("no name");
    assert_eq!(cluster.call("ADD", &nameless, &[]).status.code(), Some(1));
    assert_eq!(nodes(), [ObjectKey::global("node1")]);
}

#[test]
fn log_lines_of_a_delegated_call_name_container_pod_and_endpoint() {
    let cluster = Cluster::new();
    let mut conf = cluster.conf("1.0.0");
    (conf["type"], conf["log_level"]) = (json!("bridge"), json!("debug"));
    conf["log_file_path"] = json!(cluster.file("cni.log"));
    let pod = [("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web")];
    let mut refused = conf.clone();
    refused["ipam"]["ipv4_pools"] = json!(["10.99.0.0/16"]);
    let mut unreadable = conf.clone();
    unreadable["mtu"] = json!([]);
    for (verb, conf, exit, word) in [
        ("ADD", &refused, 1, "ADD failed"),
        ("ADD", &conf, 0, "assigned addresses addresses=\"10.65."),
        (
            "DEL",
            &conf,
            0,
            "ended the release of the container's addresses addresses=\"10.65.",
        ),
        (
            "ADD",
            &unreadable,
            1,
            "the call is refused command=\"ADD\" error=",
        ),
    ] {
        _ = std::fs::remove_file(cluster.file("cni.log"));
        assert_eq!(cluster.call(verb, conf, &pod).status.code(), Some(exit));
        let log = std::fs::read_to_string(cluster.file("cni.log")).unwrap();
        assert_eq!(
            log.lines().filter(|line| line.contains(word)).count(),
            1,
            "{verb}: {log}"
        );
        for line in log.lines() {
            let [container, endpoint] = [
                " ContainerID=\"c0ffee\" Namespace=\"default\" Pod=\"web\"",
                " WorkloadEndpoint=\"node1-k8s-web-eth0\"",
            ];
            assert!(
                line.contains(container) && line.ends_with(endpoint),
                "{line}"
            );
        }
    }
}

#[test]
fn add_result_is_printed_in_every_cni_version() {
    let cluster = Cluster::new();
    for (version, address) in [
        ("0.2.0", "/ip4/ip"),
        ("0.3.1", "/ips/0/address"),
        ("1.1.0", "/ips/0/address"),
    ] {
        let added = cluster.call(
            "ADD",
            &cluster.conf(version),
            &[("CNI_CONTAINERID", &version.replace('.', "-"))],
        );
        let result = stdout(&added);
        assert_eq!(result["cniVersion"], version);
        assert!(
            result
                .pointer(address)
                .unwrap()
                .as_str()
                .unwrap()
                .ends_with("/26"),
            "{result}"
        );
    }
}

#[test]
fn status_succeeds_and_gc_releases_invalid_attachments() {
    let cluster = Cluster::new();
    let mut conf = cluster.conf("1.1.0");
    assert_eq!(cluster.call("STATUS", &conf, &[]).status.code(), Some(0));
    for container in ["gone", "alive"] {
        assert_eq!(
            cluster
                .call("ADD", &conf, &[("CNI_CONTAINERID", container)])
                .status
                .code(),
            Some(0)
        );
    }
    conf["cni.dev/valid-attachments"] = json!([{"containerID": "alive", "ifname": "eth0"}]);
    assert_eq!(cluster.call("GC", &conf, &[]).status.code(), Some(0));
    conf["prevResult"] = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.65.166.128/26"}]});
    assert_eq!(
        cluster
            .call("CHECK", &conf, &[("CNI_CONTAINERID", "gone")])
            .status
            .code(),
        Some(1)
    );
    conf["prevResult"] = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.65.166.129/26"}]});
    assert_eq!(
        cluster
            .call("CHECK", &conf, &[("CNI_CONTAINERID", "alive")])
            .status
            .code(),
        Some(0)
    );
    conf["ipam"]["ipv4_pools"] = json!(["10.99.0.0/16"]);
    assert_eq!(stdout(&cluster.call("STATUS", &conf, &[]))["code"], 50);
}

#[test]
fn invalid_calls_are_rejected_before_any_allocation() {
    let cluster = Cluster::new();
    let conf = cluster.conf("1.0.0");
    let own = format!("/proc/{}/ns/net", std::process::id());
    let refused = [
        (
            ("CNI_NETNS", own.as_str()),
            8,
            "plugin's netns and netns from CNI_NETNS should not be the same",
        ),
        (
            ("CNI_IFNAME", "eth-"),
            4,
            "error constructing WorkloadEndpoint name: ",
        ),
        (
            ("CNI_ARGS", "IP=not-an-ip"),
            4,
            "ARGS: error parsing value of pair \"IP=not-an-ip\"",
        ),
        (
            ("CNI_ARGS", "IP=192.0.2.1"),
            999,
            "The provided IP address is not in a configured pool\n",
        ),
    ];
    for (change, code, msg) in refused {
        let output = cluster.call("ADD", &conf, &[change]);
        assert_eq!(output.status.code(), Some(1), "{change:?}");
        let error = stdout(&output);
        assert_eq!(error["code"], code, "{error}");
        assert!(error["msg"].as_str().unwrap().starts_with(msg), "{error}");
    }
    let added = cluster.call(
        "ADD",
        &conf,
        &[("CNI_NETNS", own.as_str()), ("CNI_NETNS_OVERRIDE", "1")],
    );
    assert_eq!(
        stdout(&added)["ips"][0]["address"],
        "10.65.166.128/26",
        "none of the others took an address"
    );
}

#[test]
fn flags_version_and_upgrade_are_handled_by_the_binary() {
    let run = |arguments: &[&str], env: &[(&str, &str)]| {
        calico_ipam()
            .args(arguments)
            .envs(env.iter().copied())
            .output()
            .unwrap()
    };
    for flag in ["-v", "--v", "-v=true"] {
        let output = run(&[flag], &[("CNI_COMMAND", "ADD")]);
        assert_eq!(
            text(&output.stdout),
            format!("{}\n", node_process::process::build_version())
        );
    }
    assert_eq!(
        run(&["-nonsense"], &[("CNI_COMMAND", "ADD")]).status.code(),
        Some(2)
    );
    let version = run(&[], &[("CNI_COMMAND", "VERSION")]);
    assert_eq!(stdout(&version)["supportedVersions"][6], "1.1.0");
    let upgrade = run(&["-upgrade"], &[]);
    assert_eq!(
        stdout(&upgrade)["msg"],
        "required env variables [KUBERNETES_NODE_NAME] missing"
    );
    if !Path::new("/var/lib/cni/networks/k8s-pod-network").exists() {
        assert_eq!(
            run(&["-upgrade"], &[("KUBERNETES_NODE_NAME", "node1")])
                .status
                .code(),
            Some(0)
        );
    }
}
