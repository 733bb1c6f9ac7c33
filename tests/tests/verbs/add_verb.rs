//! Effects of the configuration on ADD.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::command::present;
use integration_tests::content::{Content, NETWORK};
use integration_tests::kernel;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

const MTU_FILE: &str = "/var/lib/calico/mtu";

fn prepared(cluster: &Cluster<'_>, more: Value) -> Value {
    cluster.load(&Content::dual_stack());
    cluster.conf("node1", more)
}

fn endpoint(cluster: &Cluster<'_>) -> Value {
    let endpoints = cluster.endpoints();
    assert_eq!(endpoints.len(), 1, "{endpoints:?}");
    endpoints.into_values().next().unwrap()
}

/// Returns the host's end and the pod's end of a pod's interface.
fn links(cluster: &Cluster<'_>, pod: &Pod) -> [Value; 2] {
    let host = kernel::host().unwrap()["links"][format!("cali{}", &pod.container_id[..11])].clone();
    [
        host,
        kernel::pod(cluster.host, &pod.name).unwrap()["links"]["eth0"].clone(),
    ]
}

#[on(etcd, local)]
fn add_result_has_the_format_of_the_cni_version(cluster: &Cluster<'_>) {
    for (number, version) in [
        "", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
    ]
    .iter()
    .enumerate()
    {
        let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
        let conf = prepared(cluster, json!({ "cniVersion": version, "ipam": ipam }));
        let pod = cluster.pod(number);
        let result = cluster.add(&pod, &conf);
        assert_eq!(
            result["cniVersion"],
            json!(if version.is_empty() { "0.2.0" } else { version })
        );
        let networks = endpoint(cluster)["spec"]["ipNetworks"].clone();
        if version.is_empty() || *version < "0.3.0" {
            assert_eq!(
                json!([result["ip4"]["ip"], result["ip6"]["ip"]]),
                networks,
                "{version}"
            );
        } else {
            let addresses: Value = (0..2)
                .map(|n| result["ips"][n]["address"].clone())
                .collect();
            assert_eq!(addresses, networks, "{version}");
            let families = if *version < "1.0.0" {
                json!(["4", "6"])
            } else {
                json!([null, null])
            };
            let said: Value = (0..2)
                .map(|n| result["ips"][n]["version"].clone())
                .collect();
            assert_eq!(said, families, "{version}");
            assert_eq!(result["ips"][0]["interface"], 1, "{version}");
            assert_eq!(
                result["interfaces"][1]["sandbox"],
                json!(pod.netns),
                "{version}"
            );
        }
        cluster.delete(&pod, &conf);
    }
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn add_result_extends_the_prev_result(cluster: &Cluster<'_>) {
    for (number, version) in ["0.4.0", "1.0.0", "1.1.0"].iter().enumerate() {
        let mut before = json!({
            "cniVersion": version,
            "interfaces": [{ "name": "bridge0" }, { "name": "lan0", "sandbox": "/run/netns/x" }],
            "ips": [{ "address": "192.0.2.9/24", "gateway": "192.0.2.1", "interface": 1 }],
            "routes": [{ "dst": "198.51.100.0/24", "gw": "192.0.2.1" }],
            "dns": { "nameservers": ["192.0.2.53"] },
        });
        if *version == "0.4.0" {
            before["ips"][0]["version"] = json!("4");
        }
        let conf = prepared(
            cluster,
            json!({ "cniVersion": version, "prevResult": before }),
        );
        let pod = cluster.pod(number);
        let result = cluster.add(&pod, &conf);
        let names: Value = (0..4)
            .map(|n| result["interfaces"][n]["name"].clone())
            .collect();
        let host_link = format!("cali{}", &pod.container_id[..11]);
        assert_eq!(
            names,
            json!(["bridge0", "lan0", host_link, "eth0"]),
            "{version}"
        );
        assert_eq!(result["ips"][0], before["ips"][0], "{version}");
        assert_eq!(result["ips"][1]["interface"], 3, "{version}");
        assert_eq!(result["routes"][0], before["routes"][0], "{version}");
        assert_eq!(result["dns"], before["dns"], "{version}");
        assert_eq!(
            endpoint(cluster)["spec"]["ipNetworks"],
            json!([result["ips"][1]["address"]])
        );
        cluster.delete(&pod, &conf);
    }
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn repeated_add_changes_nothing_and_returns_the_same_result(cluster: &Cluster<'_>) {
    let conf = prepared(cluster, json!({}));
    let pod = cluster.pod(1);
    let first = cluster.add(&pod, &conf);
    let before = cluster.state();
    let second = cluster.add(&pod, &conf);
    assert_eq!(cluster.state(), before);
    for part in [
        "/ips/0/address",
        "/interfaces/0/name",
        "/interfaces/1/mac",
        "/interfaces/1/sandbox",
    ] {
        assert_eq!(second.pointer(part), first.pointer(part), "{part}");
    }
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

/// The state that podman leaves after a reboot: the endpoint exists, but interface and network
/// namespace are gone.
#[on(etcd, local)]
fn add_restores_a_lost_interface_with_the_same_addresses(cluster: &Cluster<'_>) {
    let mut conf = prepared(cluster, json!({}));
    let second = cluster.conf("node1", json!({ "name": "second-network" }));
    let pod = cluster.pod(1);
    let first = cluster.add(&pod, &conf);
    cluster.add(&pod, &second);
    let before = cluster.state();
    for network in [&conf, &second] {
        lose_namespace(cluster, &pod);
        let again = cluster.add(&pod, network);
        for part in [
            "/ips/0/address",
            "/interfaces/0/name",
            "/interfaces/1/mac",
            "/interfaces/1/sandbox",
        ] {
            assert_eq!(again.pointer(part), first.pointer(part), "{part}");
        }
        cluster.assert_unchanged(&before);
    }
    conf["prevResult"] = first;
    cluster.verb("CHECK", &pod, &conf).run().success();
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

fn lose_namespace(cluster: &Cluster<'_>, pod: &Pod) {
    cluster.host.delete_pod(&pod.name).unwrap();
    while fs::read_to_string("/proc/thread-self/net/dev")
        .unwrap()
        .contains("cali")
    {
        thread::sleep(Duration::from_millis(10));
    }
    cluster.host.add_pod(&pod.name).unwrap();
}

/// The endpoint still lists an address that IPAM has assigned to another pod.
#[on(etcd, local)]
fn add_does_not_restore_a_lost_interface_with_reassigned_addresses(cluster: &Cluster<'_>) {
    let conf = prepared(cluster, json!({}));
    let (pod, other) = (cluster.pod(1), cluster.pod(2));
    let address = cluster.add(&pod, &conf)["ips"][0]["address"]
        .as_str()
        .unwrap()
        .replace("/32", "");
    let key = format!(
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node1-cni-{}-eth0",
        pod.container_id
    );
    let endpoint = cluster.store.dump().unwrap()[&key].clone();
    cluster.delete(&pod, &conf);
    cluster
        .verb("ADD", &other, &conf)
        .env("CNI_ARGS", format!("IP={address}"))
        .run()
        .success();
    cluster.store.put(&key, &endpoint).unwrap();

    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert_eq!(
        (error.code, error.msg.contains(&address)),
        (11, true),
        "{error:?}"
    );
    cluster.delete(&pod, &conf);
    cluster.add(&pod, &conf);
    for pod in [&pod, &other] {
        cluster.delete(pod, &conf);
    }
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn add_of_a_second_network_adds_the_profile_only(cluster: &Cluster<'_>) {
    let conf = prepared(cluster, json!({}));
    let second = cluster.conf("node1", json!({ "name": "second-network" }));
    let pod = cluster.pod(1);
    let result = cluster.add(&pod, &conf);
    let (held, kernel) = (cluster.accounts().held, kernel::host().unwrap());
    let again = cluster.verb("ADD", &pod, &second).run().success();
    assert_eq!(again["ips"][0]["address"], result["ips"][0]["address"]);
    assert_eq!(
        (cluster.accounts().held, kernel::host().unwrap()),
        (held, kernel)
    );
    assert_eq!(
        endpoint(cluster)["spec"]["profiles"],
        json!([NETWORK, "second-network"])
    );
    let content = cluster.store.dump().unwrap();
    let profile = &content["/calico/resources/v3/projectcalico.org/profiles/second-network"];
    assert_eq!(
        profile["spec"]["labelsToApply"],
        json!({ "second-network": "" })
    );
}

#[on(etcd, local)]
fn mtu_comes_from_the_configuration_then_from_the_file(cluster: &Cluster<'_>) {
    fs::create_dir_all("/var/lib/calico").unwrap();
    for (number, (file, conf, mtu)) in [
        (None, 0, 1500),
        (Some("1450\n"), 0, 1450),
        (Some("1450"), 1400, 1400),
        (Some("1f"), 1400, 1400),
    ]
    .into_iter()
    .enumerate()
    {
        if let Some(file) = file {
            fs::write(MTU_FILE, file).unwrap();
        }
        let conf = prepared(
            cluster,
            json!({ "mtu": conf, "require_mtu_file": file.is_some() }),
        );
        let pod = cluster.pod(number);
        let result = cluster.add(&pod, &conf);
        let said = if mtu == 1500 { Value::Null } else { json!(mtu) };
        assert_eq!(result["interfaces"][1]["mtu"], said);
        assert!(
            links(cluster, &pod).iter().all(|link| link["mtu"] == mtu),
            "{:?}",
            links(cluster, &pod)
        );
        cluster.delete(&pod, &conf);
    }
    let pod = cluster.pod(9);
    for (file, conf) in [
        (Some("1f"), json!({})),
        (None, json!({ "mtu": 1400, "require_mtu_file": true })),
    ] {
        let _ = fs::remove_file(MTU_FILE);
        if let Some(file) = file {
            fs::write(MTU_FILE, file).unwrap();
        }
        let error = cluster
            .verb("ADD", &pod, &prepared(cluster, conf))
            .run()
            .error();
        assert_eq!(
            (error.code, error.msg.contains(MTU_FILE)),
            (5, true),
            "{error:?}"
        );
    }
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn node_name_comes_from_the_first_source_with_a_value(cluster: &Cluster<'_>) {
    let own = fs::read_to_string("/proc/sys/kernel/hostname")
        .unwrap()
        .trim()
        .to_lowercase();
    cluster.load(
        &Content::dual_stack()
            .node("from-file")
            .node("from-hostname")
            .node(&own),
    );
    let file = cluster.host.dir("node").join("nodename");
    let all = cluster.conf(
        "node1",
        json!({ "nodename_file": file, "hostname": "from-hostname" }),
    );
    fs::write(&file, "from-file\n").unwrap();
    let without = |keys: &[&str]| {
        let mut conf = all.clone();
        keys.iter()
            .for_each(|key| drop(conf.as_object_mut().unwrap().remove(*key)));
        conf
    };
    let add = |number: usize, conf: &Value, node: &str| {
        let pod = cluster.pod(number);
        cluster.add(&pod, conf);
        assert_eq!(endpoint(cluster)["spec"]["node"], json!(node));
        cluster.delete(&pod, conf);
    };
    add(1, &all, "node1");
    add(2, &without(&["nodename"]), "from-file");
    fs::write(&file, "").unwrap();
    add(3, &without(&["nodename"]), "from-hostname");
    add(4, &without(&["nodename", "hostname"]), &own);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn mesos_labels_become_labels_of_the_endpoint(cluster: &Cluster<'_>) {
    let labels = json!([
        { "key": "role", "value": "//my/val/" },
        { "key": "$zone", "value": "some_val-with.lots*of^weird#characters" },
        { "key": "projectcalico.org/namespace", "value": "prod" },
    ]);
    let args = json!({
        "org.apache.mesos": { "network_info": { "name": "x", "labels": { "labels": labels } } }
    });
    let conf = prepared(cluster, json!({ "args": args }));
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let metadata = endpoint(cluster)["metadata"].clone();
    assert_eq!(metadata["namespace"], "prod");
    let labels = &metadata["labels"];
    assert_eq!(
        (&labels["role"], &labels["projectcalico.org/namespace"]),
        (&json!("my.val"), &json!("prod"))
    );
    assert_eq!(labels["zone"], "some_val-with.lots-of-weird-characters");
    // A second ADD and DEL find the endpoint in the namespace `prod`.
    cluster.add(&pod, &conf);
    assert_eq!(cluster.accounts().held.len(), 1);
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

/// Starts a gate that responds 503 to the first `refusals` requests. Returns its URL and the
/// counter of its requests.
fn gate(refusals: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/ready", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    // The thread ends with the process, and the port is in the private host.
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let status = if counter.fetch_add(1, Ordering::SeqCst) < refusals {
                "503 No"
            } else {
                "204 Yes"
            };
            let _ = client
                .write_all(format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n").as_bytes());
        }
    });
    (url, asked)
}

#[on(etcd, local)]
fn add_waits_for_readiness_gates(cluster: &Cluster<'_>) {
    if !present("strace") {
        return skipped("strace is not installed (Debian: strace)");
    }
    let ((open, asked_open), (late, asked_late)) = (gate(0), gate(1));
    let pod = cluster.pod(1);
    let conf = prepared(cluster, json!({ "readiness_gates": [open, late] }));
    let trace = cluster.host.dir("strace").join("trace");
    let calls = "-e trace=epoll_wait,epoll_pwait -e signal=none";
    let wrapper = format!("strace -f -qq -o {} {calls}", trace.display());
    cluster
        .verb("ADD", &pod, &conf)
        .under(&wrapper)
        .run()
        .success();
    assert_eq!(
        (
            asked_open.load(Ordering::SeqCst),
            asked_late.load(Ordering::SeqCst)
        ),
        (1, 2)
    );
    // The timer waits in one or more parts.
    let waits = fs::read_to_string(&trace).unwrap();
    let part = regex::Regex::new(r"epoll_p?wait\(\d+, \[\], \d+, (\d+).*\) = 0\b").unwrap();
    let parts = part
        .captures_iter(&waits)
        .map(|part| part[1].parse::<u32>());
    let waited: u32 = parts.map(Result::unwrap).sum();
    assert_eq!((waited + 500) / 1000, 5, "{waited} ms: {waits}");
}

#[on(etcd, local)]
fn add_asks_readiness_gates_without_the_proxy_of_the_environment(cluster: &Cluster<'_>) {
    let (gate, asked) = gate(0);
    let conf = prepared(cluster, json!({ "readiness_gates": [gate] }));
    let call = cluster.verb("ADD", &cluster.pod(1), &conf);
    let proxied = ["HTTP_PROXY", "http_proxy", "ALL_PROXY"].into_iter();
    proxied
        .fold(call, |call, name| call.env(name, "http://127.0.0.1:1"))
        .run()
        .success();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// A pod must always be deletable.
#[on(etcd, local)]
fn del_does_not_check_readiness_gates(cluster: &Cluster<'_>) {
    let pod = cluster.pod(1);
    cluster.add(&pod, &prepared(cluster, json!({})));
    let (closed, asked) = gate(1000);
    let conf = prepared(cluster, json!({ "readiness_gates": [closed] }));
    cluster.delete(&pod, &conf);
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn container_forwards_packets_only_if_allow_ip_forwarding_is_set(cluster: &Cluster<'_>) {
    for (number, allowed) in [false, true].into_iter().enumerate() {
        let pod = cluster.pod(number);
        cluster.add(
            &pod,
            &prepared(
                cluster,
                json!({ "container_settings": { "allow_ip_forwarding": allowed } }),
            ),
        );
        let forwards =
            &kernel::pod(cluster.host, &pod.name).unwrap()["sysctls"]["eth0"]["ip_forward"];
        assert_eq!(*forwards, if allowed { "1" } else { "0" });
    }
}

#[on(etcd, local)]
fn both_ends_have_the_configured_number_of_queues(cluster: &Cluster<'_>) {
    for (number, (asked, queues)) in [(3, 3), (0, 1), (-2, 1)].into_iter().enumerate() {
        let pod = cluster.pod(number);
        cluster.add(&pod, &prepared(cluster, json!({ "num_queues": asked })));
        for link in links(cluster, &pod) {
            assert_eq!(
                (&link["numrx"], &link["numtx"]),
                (&json!(queues), &json!(queues)),
                "{asked}"
            );
        }
    }
}

#[on(etcd, local)]
fn netkit_device_type_creates_a_working_netkit_or_veth_pair(cluster: &Cluster<'_>) {
    let mut conf = prepared(cluster, json!({ "device_type": "netkit", "mtu": 1440 }));
    let pod = cluster.pod(1);
    conf["prevResult"] = cluster.add(&pod, &conf);
    let has_netkit = fs::read_to_string("/proc/kallsyms")
        .unwrap()
        .contains("netkit_link_ops");
    let kind = json!(if has_netkit { "netkit" } else { "veth" });
    for end in links(cluster, &pod) {
        assert_eq!((&end["kind"], &end["mtu"]), (&kind, &json!(1440)), "{end}");
    }
    cluster.verb("CHECK", &pod, &conf).run().success();
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn log_is_written_to_file_and_stderr_never_to_stdout(cluster: &Cluster<'_>) {
    let file = "/var/log/calico/cni/cni.log";
    let conf = prepared(
        cluster,
        json!({ "log_level": "debug", "log_file_path": file }),
    );
    let pod = cluster.pod(1);
    let outcome = cluster.verb("ADD", &pod, &conf).run();
    outcome.success();
    let log = fs::read_to_string(file).unwrap();
    for line in ["interface is up", "stages"] {
        assert!(
            log.contains(line) && outcome.stderr.contains(line),
            "{line:?}: {log}\nstderr: {}",
            outcome.stderr
        );
    }
    cluster.delete(&pod, &conf);
    assert!(
        fs::read_to_string(file).unwrap().len() > log.len(),
        "DEL appends"
    );

    // ADD succeeds even if its log cannot be written.
    let conf = prepared(
        cluster,
        json!({ "log_level": "debug", "log_file_path": "/proc/nowhere/cni.log" }),
    );
    cluster.add(&pod, &conf);
}

/// The agent compresses rotated files. A pod would wait for a call that compresses.
#[on(etcd, local)]
fn add_and_del_compress_nothing(cluster: &Cluster<'_>) {
    let log = Path::new("/var/log/calico/cni/cni.log");
    let settings = json!({
        "log_level": "debug", "log_file_path": log, "log_file_max_size": 1, "log_file_max_count": 3,
    });
    let conf = prepared(cluster, settings);
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    let full = vec![b'x'; 1 << 20];
    let pod = cluster.pod(1);
    for verb in ["ADD", "DEL", "ADD", "DEL"] {
        fs::write(log, &full).unwrap();
        cluster.verb(verb, &pod, &conf).run().success();
        // Old enough for the agent.
        let rotated = File::options()
            .write(true)
            .open("/var/log/calico/cni/cni.log.1")
            .unwrap();
        assert_eq!(
            rotated.metadata().unwrap().len(),
            full.len() as u64,
            "{verb} rotates the log"
        );
        rotated
            .set_modified(SystemTime::now() - Duration::from_secs(3600))
            .unwrap();
    }
    let entries = fs::read_dir(log.parent().unwrap()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["cni.log", "cni.log.1", "cni.log.2", "cni.log.3"]);
}
