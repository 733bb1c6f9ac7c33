//! Kubernetes pods, named in CNI_ARGS, on the embedded datastore, and calls by hand.

use std::fs;

use integration_tests::cluster::{Cluster, Pod, handle, on};
use integration_tests::command::run;
use integration_tests::content::{Content, NETWORK};
use integration_tests::kernel;
use integration_tests::plugin::{Call, Plugins};
use serde_json::{Value, json};

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=nginx;K8S_POD_UID=u-1";
/// `cali` and the beginning of the SHA-1 of `default.nginx`, as in upstream.
const HOST_LINK: &str = "calic440f455693";
const ENDPOINT: &str = "default/node1-k8s-nginx-eth0";

fn prepared(cluster: &Cluster<'_>) -> Value {
    cluster.load(&Content::dual_stack());
    cluster.conf("node1", json!({}))
}

fn verb(cluster: &Cluster<'_>, verb: &str, sandbox: &Pod, conf: &Value, args: &str) -> Call {
    cluster.verb(verb, sandbox, conf).env("CNI_ARGS", args)
}

fn add(cluster: &Cluster<'_>, sandbox: &Pod, conf: &Value) -> Value {
    verb(cluster, "ADD", sandbox, conf, ARGS).run().success()
}

fn delete(cluster: &Cluster<'_>, sandbox: &Pod, conf: &Value) {
    verb(cluster, "DEL", sandbox, conf, ARGS).run().success();
}

fn holders(cluster: &Cluster<'_>) -> Vec<String> {
    cluster.accounts().held.into_values().collect()
}

#[on(etcd, local)]
fn endpoint_and_interface_are_named_after_the_pod(cluster: &Cluster<'_>) {
    let mut conf = prepared(cluster);
    let pod = cluster.pod(1);
    conf["prevResult"] = add(cluster, &pod, &conf);
    assert_eq!(conf["prevResult"]["interfaces"][0]["name"], HOST_LINK);
    let endpoints = cluster.endpoints();
    let endpoint = &endpoints[ENDPOINT];
    assert_eq!(
        (endpoints.len(), &endpoint["metadata"]["namespace"]),
        (1, &json!("default"))
    );
    let spec = &endpoint["spec"];
    for (field, value) in [
        ("orchestrator", json!("k8s")),
        ("pod", json!("nginx")),
        ("node", json!("node1")),
        ("endpoint", json!("eth0")),
        ("containerID", json!(pod.container_id)),
        ("interfaceName", json!(HOST_LINK)),
        ("profiles", json!([NETWORK])),
    ] {
        assert_eq!(spec[field], value, "{field}");
    }
    // `calico-ipam show` and upstream's tools print the pod in the allocation.
    let content = cluster.store.dump().unwrap();
    let block = content
        .iter()
        .find(|(key, _)| key.contains("/ipv4/block/") && key.contains("assignment"))
        .unwrap()
        .1;
    let noted = &block["attributes"][0]["secondary"];
    assert_eq!(
        (&noted["pod"], &noted["namespace"]),
        (&json!("nginx"), &json!("default")),
        "{noted}"
    );
    verb(cluster, "CHECK", &pod, &conf, ARGS).run().success();
    delete(cluster, &pod, &conf);
    cluster.assert_nothing_left();

    let outcome = verb(cluster, "ADD", &pod, &conf, ARGS)
        .env("FELIX_INTERFACEPREFIX", "eni,veth")
        .run();
    assert_eq!(
        outcome.success()["interfaces"][2]["name"],
        HOST_LINK.replacen("cali", "eni", 1)
    );
    verb(cluster, "DEL", &pod, &conf, ARGS)
        .env("FELIX_INTERFACEPREFIX", "eni,veth")
        .run()
        .success();
    assert!(holders(cluster).is_empty());
}

/// The kubelet may start a new sandbox before it has stopped the old one.
#[on(etcd, local)]
fn new_sandbox_adopts_the_endpoint_which_survives_a_late_del(cluster: &Cluster<'_>) {
    let mut conf = prepared(cluster);
    let (old, new) = (cluster.pod(1), cluster.pod(2));
    add(cluster, &old, &conf);
    let uid = cluster.endpoints()[ENDPOINT]["metadata"]["uid"].clone();
    let result = add(cluster, &new, &conf);

    let endpoints = cluster.endpoints();
    let endpoint = &endpoints[ENDPOINT];
    assert_eq!((endpoints.len(), &endpoint["metadata"]["uid"]), (1, &uid));
    assert_eq!(endpoint["spec"]["containerID"], json!(new.container_id));
    assert_eq!(
        endpoint["spec"]["ipNetworks"],
        json!([result["ips"][0]["address"]])
    );
    assert_eq!(
        holders(cluster).len(),
        2,
        "the old sandbox keeps its address until its DEL"
    );
    let before = (
        kernel::host().unwrap(),
        kernel::pod(cluster.host, &new.name).unwrap(),
    );

    delete(cluster, &old, &conf);
    assert_eq!(
        (
            kernel::host().unwrap(),
            kernel::pod(cluster.host, &new.name).unwrap()
        ),
        before
    );
    assert_eq!(cluster.endpoints(), endpoints);
    assert_eq!(holders(cluster), [handle(&new)]);
    cluster.assert_in_order();
    conf["prevResult"] = result;
    verb(cluster, "CHECK", &new, &conf, ARGS).run().success();
    delete(cluster, &new, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn late_del_without_netns_keeps_the_new_sandboxs_interface(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    // The kernel may still be deleting the old sandbox's interface when the new one needs its name.
    for round in 0..5 {
        let (old, new) = (cluster.pod(2 * round), cluster.pod(2 * round + 1));
        add(cluster, &old, &conf);
        cluster.host.delete_pod(&old.name).unwrap();
        add(cluster, &new, &conf);
        let before = kernel::host().unwrap();
        verb(cluster, "DEL", &old, &conf, ARGS)
            .env("CNI_NETNS", "")
            .run()
            .success();
        assert_eq!(kernel::host().unwrap(), before);
        assert_eq!(holders(cluster), [handle(&new)]);
        verb(cluster, "DEL", &new, &conf, ARGS)
            .env("CNI_NETNS", "")
            .run()
            .success();
        cluster.assert_nothing_left();
    }
}

#[on(etcd, local)]
fn pods_of_the_same_name_in_two_namespaces_are_distinct(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pods: Vec<_> = (1..=3).map(|number| cluster.pod(number)).collect();
    let args =
        |namespace: &str, name: &str| format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
    let args = [
        args("default", "nginx"),
        args("default", "nginx-1"),
        args("prod", "nginx"),
    ];
    for (pod, args) in pods.iter().zip(&args) {
        verb(cluster, "ADD", pod, &conf, args).run().success();
    }
    assert_eq!((cluster.endpoints().len(), holders(cluster).len()), (3, 3));
    assert_eq!(
        kernel::host().unwrap()["links"].as_object().unwrap().len(),
        3
    );
    verb(cluster, "DEL", &pods[0], &conf, &args[0])
        .run()
        .success();
    assert_eq!(holders(cluster).len(), 2);
    assert_eq!(
        kernel::host().unwrap()["links"].as_object().unwrap().len(),
        2
    );
    for (pod, args) in pods.iter().zip(&args).skip(1) {
        verb(cluster, "DEL", pod, &conf, args).run().success();
    }
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn kubernetes_policy_without_a_kubeconfig_is_refused(cluster: &Cluster<'_>) {
    let mut conf = prepared(cluster);
    conf["policy"] = json!({ "type": "k8s" });
    let pod = cluster.pod(1);
    let before = cluster.state();
    let error = verb(cluster, "ADD", &pod, &conf, ARGS).run().error();
    assert!(
        error.msg.contains("Kubernetes API for pod default/nginx"),
        "{error:?}"
    );
    assert!(error.msg.contains("set kubernetes.kubeconfig"), "{error:?}");
    assert_eq!(cluster.state(), before);
}

#[on(etcd, local)]
fn add_waits_for_policy_no_longer_than_the_timeout(cluster: &Cluster<'_>) {
    let mut conf = prepared(cluster);
    let directory = cluster.host.dir("endpoint-status");
    conf["policy_setup_timeout_seconds"] = json!(1);
    conf["endpoint_status_dir"] = json!(directory);
    let pod = cluster.pod(1);
    for (level, words) in [
        ("error", None),
        ("info", Some("by which Felix reports the policy of the pod")),
    ] {
        conf["log_level"] = json!(level);
        let outcome = verb(cluster, "ADD", &pod, &conf, ARGS).run();
        outcome.success();
        match words {
            None => assert!(
                outcome.stderr.is_empty(),
                "log_level is error: {}",
                outcome.stderr
            ),
            Some(words) => assert!(
                outcome.stderr.contains(words),
                "it does not wait: {}",
                outcome.stderr
            ),
        }
        delete(cluster, &pod, &conf);
    }
    fs::write(directory.join("k8s default%2Fnginx eth0"), "").unwrap();
    // This is longer than the deadline of the call.
    conf["policy_setup_timeout_seconds"] = json!(3600);
    verb(cluster, "ADD", &pod, &conf, ARGS).run().success();
}

/// The example of the users' documentation.
const CONFLIST: &str = r#"{
  "name": "k8s-pod-network", "cniVersion": "0.3.1",
  "plugins": [
    { "type": "calico", "datastore_type": "kubernetes", "mtu": 1440, "nodename_file_optional": false,
      "log_level": "Info", "log_file_path": "/var/log/calico/cni/cni.log",
      "ipam": { "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "false" },
      "container_settings": { "allow_ip_forwarding": false }, "policy": { "type": "k8s" },
      "kubernetes": { "kubeconfig": "/etc/cni/net.d/calico-kubeconfig" } },
    { "type": "portmap", "snat": true, "capabilities": { "portMappings": true } },
    { "type": "bandwidth", "capabilities": { "bandwidth": true } }
  ]
}"#;

/// Prepares `jq <filter> <conflist> | CNI_… calico`, with the variables of the documentation.
fn by_hand(plugins: &Plugins, filter: &str, conflist: &str) -> Call {
    fs::create_dir_all("/etc/cni/net.d").unwrap();
    fs::write("/etc/cni/net.d/10-calico.conflist", conflist).unwrap();
    let stdin = run("jq", &[filter, "/etc/cni/net.d/10-calico.conflist"]).unwrap();
    plugins
        .call("calico")
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", "test-container-123")
        .env("CNI_NETNS", "/var/run/netns/pod1")
        .env("CNI_IFNAME", "eth0")
        .stdin(stdin)
}

const ONE_PLUGIN: &str = ".plugins[0]";
const WITH_NAME: &str = ".plugins[0] + {name, cniVersion}";

#[on(local)]
fn documented_manual_calls_name_missing_inputs_and_the_remedy(cluster: &Cluster<'_>) {
    cluster.pod(1);
    fs::create_dir_all("/var/lib/calico").unwrap();
    fs::write("/var/lib/calico/nodename", "node1").unwrap();
    for (filter, words) in [
        (
            ONE_PLUGIN,
            [
                "missing network name",
                "jq '.plugins[0] + {name, cniVersion}'",
            ],
        ),
        (
            ".",
            [
                "configuration list",
                "jq '.plugins[0] + {name, cniVersion}'",
            ],
        ),
        (WITH_NAME, ["K8S_POD_NAME", "CNI_ARGS"]),
    ] {
        let error = by_hand(&cluster.plugins, filter, CONFLIST).run().error();
        let said = format!("{} {}", error.msg, error.details);
        words
            .iter()
            .for_each(|word| assert!(said.contains(word), "{filter}: {word:?} is not in {said}"));
    }
    // This machine lacks the kubeconfig of the documentation.
    let call = by_hand(&cluster.plugins, WITH_NAME, CONFLIST).env("CNI_ARGS", ARGS);
    let error = call.run().error();
    assert!(
        error
            .msg
            .contains("kubeconfig /etc/cni/net.d/calico-kubeconfig"),
        "{error:?}"
    );
    assert!(error.msg.contains("No such file"), "{error:?}");
}

#[on(local)]
fn documented_manual_calls_work_on_the_embedded_datastore(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    cluster.pod(1);
    let mut list: Value = serde_json::from_str(CONFLIST).unwrap();
    let plugin = list["plugins"][0].as_object_mut().unwrap();
    ["kubernetes", "policy"]
        .iter()
        .for_each(|key| drop(plugin.remove(*key)));
    plugin.extend(cluster.store.conf());
    plugin.insert("nodename".into(), json!("node1"));
    let call = by_hand(&cluster.plugins, WITH_NAME, &list.to_string());
    let result = call.run().success();
    assert_eq!(
        (&result["cniVersion"], &result["interfaces"][0]["name"]),
        (&json!("0.3.1"), &json!("calitest-contai"))
    );
    assert_eq!(
        kernel::pod(cluster.host, "pod1").unwrap()["links"]["eth0"]["mtu"],
        1440
    );
    let log = fs::read_to_string("/var/log/calico/cni/cni.log").unwrap();
    assert!(log.contains("INFO"), "{log}");
    call.env("CNI_COMMAND", "DEL").run().success();
    cluster.assert_nothing_left();
}
