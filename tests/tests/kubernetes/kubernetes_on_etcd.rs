//! Kubernetes pods with Calico's data in etcd or in the embedded datastore.

use std::fs;

use integration_tests::cluster::{Cluster, NAMESPACE, Pod, handle, pod_path};
use integration_tests::content::{Content, container_id};
use integration_tests::etcd::Etcd;
use integration_tests::kernel;
use integration_tests::kubernetes::{
    ApiServer, Identity, Kubernetes, ServiceAccount, on_shared_kubernetes, waves,
};
use integration_tests::plugin::{CniError, Plugins};
use integration_tests::proxy::{Fault, Point, Proxy};
use integration_tests::store::Store;
use integration_tests::{Place, on};
use serde_json::{Value, json};

const POD: &str = "web-1";
const ENDPOINT: &str = "suite/node1-k8s-web--1-eth0";

/// Runs a test with a cluster in etcd or in the embedded datastore, and with an API server.
fn on(place: Place, test: fn(&Cluster<'_>, &ApiServer)) {
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        host.add_uplink().unwrap();
        let plugins = Plugins::locate().unwrap();
        let store = match place {
            Place::Etcd => Store::Etcd(Etcd::of_control_plane(host)),
            Place::Local => Store::local(host, &plugins),
            other => panic!("this suite has no tests on {other:?}"),
        };
        let cluster = Cluster {
            host,
            plugins,
            store,
        };
        cluster.load(&Content::dual_stack().pool("pool9", "10.66.0.0/16", 26));
        api.service_account(NAMESPACE, "robot").unwrap();
        test(&cluster, api);
    });
}

/// Creates the Pod and its sandbox.
fn create_pod(cluster: &Cluster<'_>, api: &ApiServer, annotations: Value) -> Pod {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": POD, "generateName": "web-", "namespace": NAMESPACE,
            "labels": { "app": "web" }, "annotations": annotations,
        },
        "spec": {
            "nodeName": "node1", "serviceAccountName": "robot",
            "containers": [{ "name": "c", "image": "none", "ports": [
                { "name": "http", "containerPort": 80 }, { "containerPort": 81 }] }],
        },
    });
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    api.admin().create(&pods, &pod).unwrap().success();
    sandbox(cluster)
}

fn sandbox(cluster: &Cluster<'_>) -> Pod {
    Pod {
        name: "sandbox".into(),
        netns: cluster.host.ensure_pod("sandbox").unwrap(),
        container_id: container_id(1),
        object: Some(POD.into()),
    }
}

fn conf(cluster: &Cluster<'_>, policy: Value, kubernetes: Value) -> Value {
    cluster.conf(
        "node1",
        json!({ "policy": policy, "kubernetes": kubernetes }),
    )
}

/// Starts a proxy in front of the API server. Returns the proxy, and an account and a configuration
/// with which the plugins reach the server through the proxy.
fn behind_proxy(cluster: &Cluster<'_>, api: &ApiServer) -> (Proxy, ServiceAccount, Value) {
    let proxy = api.proxy().unwrap();
    let account = api.service_account(NAMESPACE, "reader").unwrap();
    api.bind(&account, "cluster-admin").unwrap();
    let kubeconfig = api
        .kubeconfig_to(&proxy.endpoint(), "held", &account.identity)
        .unwrap();
    let kubernetes = json!({ "kubeconfig": kubeconfig });
    let conf = conf(cluster, json!({ "type": "k8s" }), kubernetes);
    (proxy, account, conf)
}

fn conf_of_admin(cluster: &Cluster<'_>, api: &ApiServer) -> Value {
    let kubernetes = json!({ "kubeconfig": api.admin_kubeconfig() });
    conf(cluster, json!({ "type": "k8s" }), kubernetes)
}

#[track_caller]
fn refused(cluster: &Cluster<'_>, pod: &Pod, conf: &Value) -> CniError {
    let before = cluster.state();
    let error = cluster.verb("ADD", pod, conf).run().error();
    cluster.assert_unchanged(&before);
    error
}

#[on(etcd, local)]
fn endpoint_of_a_pod_is_built_from_the_api_and_stored_in_the_datastore(
    cluster: &Cluster<'_>,
    api: &ApiServer,
) {
    let namespace = json!({
        "metadata": { "annotations": { "cni.projectcalico.org/ipv4pools": "[\"pool9\"]" } }
    });
    api.admin()
        .patch(&format!("/api/v1/namespaces/{NAMESPACE}"), &namespace)
        .unwrap()
        .success();
    let pod = create_pod(cluster, api, json!({}));
    let (proxy, _, mut conf) = behind_proxy(cluster, api);
    let result = cluster.add(&pod, &conf);
    let address = result["ips"][0]["address"].clone();
    assert!(address.as_str().unwrap().starts_with("10.66."), "{result}");

    let endpoints = cluster.endpoints();
    let endpoint = &endpoints[ENDPOINT];
    assert_eq!(
        endpoint["metadata"]["labels"],
        json!({
            "app": "web", "projectcalico.org/namespace": NAMESPACE,
            "projectcalico.org/orchestrator": "k8s",
            "projectcalico.org/serviceaccount": "robot",
        })
    );
    assert_eq!(endpoint["metadata"]["generateName"], "web-");
    let spec = &endpoint["spec"];
    assert_eq!(
        spec["profiles"],
        json!([format!("kns.{NAMESPACE}"), format!("ksa.{NAMESPACE}.robot")])
    );
    let port =
        json!({ "name": "http", "protocol": "TCP", "port": 80, "hostPort": 0, "hostIP": "" });
    assert_eq!(
        (&spec["ports"], &spec["serviceAccountName"]),
        (&json!([port]), &json!("robot"))
    );
    assert_eq!(
        (&spec["ipNetworks"], &spec["mac"]),
        (&json!([address]), &result["interfaces"][1]["mac"])
    );
    let path = pod_path(POD);
    let kept = api.admin().get(&path).unwrap().success();
    assert_eq!(kept["metadata"]["annotations"], Value::Null);
    assert_eq!(
        cluster.accounts().held.into_values().collect::<Vec<_>>(),
        [handle(&pod)]
    );

    conf["prevResult"] = result;
    cluster.verb("CHECK", &pod, &conf).run().success();
    api.admin().delete(&path).unwrap().success();
    if matches!(cluster.store, Store::Local(_)) {
        proxy.go_away();
    }
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn every_configuration_key_for_the_api_server_works(cluster: &Cluster<'_>, api: &ApiServer) {
    let pod = create_pod(cluster, api, json!({}));
    let directory = cluster.host.dir("client");
    fs::create_dir_all(&directory).unwrap();
    let file = |name: &str, text: &str| {
        fs::write(directory.join(name), text).unwrap();
        json!(directory.join(name))
    };
    let Identity::Certificate { certificate, key } = api.admin_identity().clone() else {
        panic!()
    };
    let account = api.service_account(NAMESPACE, "reader").unwrap();
    let rules =
        json!([{ "apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["get"] }]);
    api.cluster_role("reader", &rules).unwrap();
    api.bind(&account, "reader").unwrap();
    let token = api.token(NAMESPACE, "reader").unwrap();
    let authority = json!(api.authority());
    let root = "https://127.0.0.1:6443";
    let mut wrong_root =
        json!({ "type": "k8s", "k8s_api_root": "https://127.0.0.1:1", "k8s_auth_token": token });
    wrong_root["k8s_certificate_authority"] = authority.clone();
    for (policy, kubernetes) in [
        (
            json!({ "type": "k8s" }),
            json!({ "kubeconfig": account.kubeconfig }),
        ),
        (
            json!({
                "type": "k8s", "k8s_api_root": format!("{root}/api/v1/"),
                "k8s_certificate_authority": authority,
                "k8s_client_certificate": file("client.pem", &certificate),
                "k8s_client_key": file("client.key", &key),
            }),
            json!({}),
        ),
        (
            json!({
                "type": "k8s", "k8s_api_root": root, "k8s_auth_token": token,
                "k8s_certificate_authority": authority,
            }),
            json!({}),
        ),
        // The URL of `kubernetes` takes precedence.
        (wrong_root, json!({ "k8s_api_root": root })),
    ] {
        let conf = conf(cluster, policy, kubernetes);
        cluster.add(&pod, &conf);
        assert_eq!(
            cluster.endpoints()[ENDPOINT]["metadata"]["labels"]["app"],
            "web"
        );
        cluster.delete(&pod, &conf);
    }
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn add_reads_pod_and_namespace_in_one_round_and_del_sends_none(
    cluster: &Cluster<'_>,
    api: &ApiServer,
) {
    let (proxy, account, conf) = behind_proxy(cluster, api);
    let pod = create_pod(cluster, api, json!({}));
    let held = std::time::Duration::from_millis(500);
    proxy.arm(Some((Point::EveryRequest, Fault::Delay(held))));
    let audit = api.audit().unwrap();
    cluster.add(&pod, &conf);
    let requests = audit.of(&account.user).unwrap();
    let mut asked: Vec<_> = requests.iter().map(ToString::to_string).collect();
    asked.sort();
    // The audit log reports a Namespace as being in the namespace of its own name.
    assert_eq!(
        asked,
        [
            "get namespaces suite/suite: 200",
            "get pods suite/web-1: 200"
        ]
    );
    assert_eq!(waves(&requests, held * 9 / 10), 1, "{requests:?}");
    let audit = api.audit().unwrap();
    cluster.delete(&pod, &conf);
    assert_eq!(audit.of(&account.user).unwrap(), []);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn add_without_pod_data_from_the_api_fails_without_a_leak(cluster: &Cluster<'_>, api: &ApiServer) {
    let (proxy, _, of_account) = behind_proxy(cluster, api);
    let error = refused(cluster, &sandbox(cluster), &of_account);
    assert_eq!(
        (error.code, error.msg.as_str()),
        (11, "pods \"web-1\" not found")
    );
    assert!(error.details.contains(NAMESPACE), "{error:?}");

    let pod = create_pod(
        cluster,
        api,
        json!({ "cni.projectcalico.org/ipv4pools": "pool9" }),
    );
    let error = refused(cluster, &pod, &of_account);
    assert_eq!(error.code, 6, "{error:?}");
    assert!(error.details.contains("ipv4pools"), "{error:?}");

    let stranger = api.service_account(NAMESPACE, "stranger").unwrap();
    let error = refused(
        cluster,
        &pod,
        &conf(
            cluster,
            json!({ "type": "k8s" }),
            json!({ "kubeconfig": stranger.kubeconfig }),
        ),
    );
    assert!(
        error.msg.contains("Kubernetes API for pod suite/web-1"),
        "{error:?}"
    );
    assert!(error.msg.contains("stranger"), "{error:?}");

    let error = refused(
        cluster,
        &pod,
        &conf(cluster, json!({ "type": "k8s" }), json!({})),
    );
    assert!(error.msg.contains("kubernetes.kubeconfig"), "{error:?}");
    let missing = json!({ "kubeconfig": "/nowhere/kubeconfig" });
    let error = refused(
        cluster,
        &pod,
        &conf(cluster, json!({ "type": "k8s" }), missing),
    );
    assert!(error.msg.contains("/nowhere/kubeconfig"), "{error:?}");

    proxy.go_away();
    if matches!(cluster.store, Store::Local(_)) {
        let error = refused(cluster, &pod, &of_account);
        assert_eq!(error.code, 11, "{error:?}");
        assert!(error.msg.contains(&proxy.endpoint()), "{error:?}");
    }
    cluster.delete(&pod, &of_account);
    cluster.assert_nothing_left();
}

/// As in upstream, without the policy type `k8s` the pod has no effect, and the namespace selectors
/// of pools have one (CNI-115, IPAM-36).
#[on(etcd, local)]
fn only_namespace_labels_have_effect_without_kubernetes_policy(
    cluster: &Cluster<'_>,
    api: &ApiServer,
) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    let labels = json!({ "metadata": { "labels": { "team": "red" } } });
    api.admin().patch(&path, &labels).unwrap().success();
    cluster.load(&Content::dual_stack().of_namespaces("pool4", "team == 'red'"));
    let pod = create_pod(
        cluster,
        api,
        json!({ "cni.projectcalico.org/ipv4pools": "[\"pool9\"]" }),
    );
    let conf = conf(
        cluster,
        json!({ "type": "calico" }),
        json!({ "kubeconfig": api.admin_kubeconfig() }),
    );
    let audit = api.audit().unwrap();
    let result = cluster.add(&pod, &conf);
    let asked: Vec<_> = audit
        .of("admin")
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(asked, ["get namespaces suite/suite: 200"]);
    assert!(
        result["ips"][0]["address"]
            .as_str()
            .unwrap()
            .starts_with("10.65."),
        "{result}"
    );
    let endpoints = cluster.endpoints();
    assert_eq!(
        endpoints[ENDPOINT]["spec"]["profiles"],
        json!(["k8s-pod-network"])
    );
    assert_eq!(endpoints[ENDPOINT]["metadata"]["labels"].get("app"), None);
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
}

/// The endpoint in the datastore names the earlier sandbox. Its address is not the first one of the
/// list.
#[on(etcd, local)]
fn listed_address_passes_to_the_next_sandbox(cluster: &Cluster<'_>, api: &ApiServer) {
    let address = |result: &Value| result["ips"][0]["address"].clone();
    let conf = conf_of_admin(cluster, api);
    let first = create_pod(
        cluster,
        api,
        json!({ "cni.projectcalico.org/ipAddrsAnyOf": "[\"10.65.9.9\"]" }),
    );
    assert_eq!(address(&cluster.add(&first, &conf)), "10.65.9.9/32");
    let path = pod_path(POD);
    let list = json!({ "cni.projectcalico.org/ipAddrsAnyOf": "[\"10.65.3.3\", \"10.65.9.8/31\"]" });
    api.admin()
        .patch(&path, &json!({ "metadata": { "annotations": list } }))
        .unwrap()
        .success();
    let second = cluster.sandbox(&first, 2);
    assert_eq!(address(&cluster.add(&second, &conf)), "10.65.9.9/32");
    cluster.delete(&first, &conf);
    assert_eq!(
        cluster.accounts().held.into_values().collect::<Vec<_>>(),
        [handle(&second)]
    );
    cluster.delete(&second, &conf);
    cluster.assert_nothing_left();
}
