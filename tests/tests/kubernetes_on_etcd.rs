//! Kubernetes pods with Calico's data in etcd or in the embedded datastore.

use std::fs;

use integration_tests::cluster::{Cluster, NAMESPACE, Pod, handle};
use integration_tests::content::{Content, container_id};
use integration_tests::kernel;
use integration_tests::kubernetes::{ApiServer, Identity, Kubernetes, waves, with_kubernetes};
use integration_tests::plugin::{CniError, Plugins};
use integration_tests::proxy::{Fault, Point};
use integration_tests::store::Store;
use serde_json::{Value, json};

macro_rules! on_each_datastore {
    ($($test:ident),* $(,)?) => {
        mod etcd {
            $(#[test] fn $test() { super::with(true, super::$test) })*
        }
        mod local {
            $(#[test] fn $test() { super::with(false, super::$test) })*
        }
    };
}

const POD: &str = "web-1";
const ENDPOINT: &str = "suite/node1-k8s-web--1-eth0";

struct Lab<'a> {
    cluster: Cluster<'a>,
    api: ApiServer,
}

fn with(on_etcd: bool, test: fn(&mut Lab<'_>)) {
    with_kubernetes(|host, Kubernetes { api, etcd, .. }| {
        host.add_uplink().unwrap();
        let plugins = Plugins::locate().unwrap();
        let store = if on_etcd {
            Store::Etcd(etcd)
        } else {
            Store::local(host, &plugins)
        };
        let cluster = Cluster {
            host,
            plugins,
            store,
        };
        cluster.load(&Content::dual_stack().pool("pool9", "10.66.0.0/16", 26));
        api.service_account(NAMESPACE, "robot").unwrap();
        test(&mut Lab { cluster, api });
    });
}

impl Lab<'_> {
    fn pod(&self, annotations: Value) -> Pod {
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
        self.api
            .admin()
            .create(&pods, &pod)
            .unwrap()
            .success()
            .unwrap();
        self.sandbox()
    }

    fn sandbox(&self) -> Pod {
        let netns = self.cluster.host.ensure_pod("sandbox").unwrap();
        Pod {
            name: "sandbox".into(),
            netns,
            container_id: container_id(1),
            object: Some(POD.into()),
        }
    }

    fn delete_pod(&self) {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{POD}");
        self.api.admin().delete(&path).unwrap().success().unwrap();
    }

    fn conf(&self, policy: Value, kubernetes: Value) -> Value {
        self.cluster.conf(
            "node1",
            json!({ "policy": policy, "kubernetes": kubernetes }),
        )
    }

    fn with_kubeconfig(&self) -> Value {
        self.conf(
            json!({ "type": "k8s" }),
            json!({ "kubeconfig": self.api.admin_kubeconfig() }),
        )
    }

    #[track_caller]
    fn refused(&self, pod: &Pod, conf: &Value) -> CniError {
        let before = self.cluster.state();
        let error = self.cluster.verb("ADD", pod, conf).run().unwrap().error();
        self.cluster.assert_unchanged(&before);
        error
    }
}

#[on(etcd, local)]
fn endpoint_of_a_pod_is_built_from_the_api_and_stored_in_the_datastore(lab: &mut Lab<'_>) {
    let namespace = json!({
        "metadata": { "annotations": { "cni.projectcalico.org/ipv4pools": "[\"pool9\"]" } }
    });
    lab.api
        .admin()
        .patch(&format!("/api/v1/namespaces/{NAMESPACE}"), &namespace)
        .unwrap()
        .success()
        .unwrap();
    let (pod, mut conf) = (lab.pod(json!({})), lab.with_kubeconfig());
    let result = lab.cluster.add(&pod, &conf);
    let address = result["ips"][0]["address"].clone();
    assert!(address.as_str().unwrap().starts_with("10.66."), "{result}");

    let endpoints = lab.cluster.endpoints();
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
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{POD}");
    let kept = lab.api.admin().get(&path).unwrap().success().unwrap();
    assert_eq!(kept["metadata"]["annotations"], Value::Null);
    assert_eq!(
        lab.cluster
            .accounts()
            .held
            .into_values()
            .collect::<Vec<_>>(),
        [handle(&pod)]
    );

    conf["prevResult"] = result;
    lab.cluster
        .verb("CHECK", &pod, &conf)
        .run()
        .unwrap()
        .success();
    lab.delete_pod();
    if matches!(lab.cluster.store, Store::Local(_)) {
        lab.api.stop();
    }
    lab.cluster.delete(&pod, &conf);
    lab.cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn every_configuration_key_for_the_api_server_works(lab: &mut Lab<'_>) {
    let pod = lab.pod(json!({}));
    let directory = lab.cluster.host.dir("client");
    fs::create_dir_all(&directory).unwrap();
    let file = |name: &str, text: &str| {
        fs::write(directory.join(name), text).unwrap();
        json!(directory.join(name))
    };
    let Identity::Certificate { certificate, key } = lab.api.admin_identity().clone() else {
        panic!()
    };
    let account = lab.api.service_account(NAMESPACE, "reader").unwrap();
    let rules =
        json!([{ "apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["get"] }]);
    lab.api.cluster_role("reader", &rules).unwrap();
    lab.api.bind(&account, "reader").unwrap();
    let token = lab.api.token(NAMESPACE, "reader").unwrap();
    let authority = json!(lab.api.authority());
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
        let conf = lab.conf(policy, kubernetes);
        lab.cluster.add(&pod, &conf);
        assert_eq!(
            lab.cluster.endpoints()[ENDPOINT]["metadata"]["labels"]["app"],
            "web"
        );
        lab.cluster.delete(&pod, &conf);
    }
    lab.cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn add_reads_pod_and_namespace_in_one_round_and_del_sends_none(lab: &mut Lab<'_>) {
    let proxy = lab.api.proxy().unwrap();
    let account = lab.api.service_account(NAMESPACE, "reader").unwrap();
    lab.api.bind(&account, "cluster-admin").unwrap();
    let kubeconfig = lab
        .api
        .kubeconfig_to(&proxy.endpoint(), "held", &account.identity)
        .unwrap();
    let conf = lab.conf(
        json!({ "type": "k8s" }),
        json!({ "kubeconfig": kubeconfig }),
    );
    let pod = lab.pod(json!({}));
    let held = std::time::Duration::from_millis(500);
    proxy.arm(Some((Point::EveryRequest, Fault::Delay(held))));
    let audit = lab.api.audit().unwrap();
    lab.cluster.add(&pod, &conf);
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
    let audit = lab.api.audit().unwrap();
    lab.cluster.delete(&pod, &conf);
    assert_eq!(audit.of(&account.user).unwrap(), []);
    lab.cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn add_without_pod_data_from_the_api_fails_without_a_leak(lab: &mut Lab<'_>) {
    let (sandbox, conf) = (lab.sandbox(), lab.with_kubeconfig());
    let error = lab.refused(&sandbox, &conf);
    assert_eq!(
        (error.code, error.msg.as_str()),
        (11, "pods \"web-1\" not found")
    );
    assert!(error.details.contains(NAMESPACE), "{error:?}");

    let pod = lab.pod(json!({ "cni.projectcalico.org/ipv4pools": "pool9" }));
    let error = lab.refused(&pod, &conf);
    assert_eq!(error.code, 6, "{error:?}");
    assert!(error.details.contains("ipv4pools"), "{error:?}");

    let stranger = lab.api.service_account(NAMESPACE, "stranger").unwrap();
    let error = lab.refused(
        &pod,
        &lab.conf(
            json!({ "type": "k8s" }),
            json!({ "kubeconfig": stranger.kubeconfig }),
        ),
    );
    assert!(
        error.msg.contains("Kubernetes API for pod suite/web-1"),
        "{error:?}"
    );
    assert!(error.msg.contains("stranger"), "{error:?}");

    let error = lab.refused(&pod, &lab.conf(json!({ "type": "k8s" }), json!({})));
    assert!(error.msg.contains("kubernetes.kubeconfig"), "{error:?}");
    let missing = json!({ "kubeconfig": "/nowhere/kubeconfig" });
    let error = lab.refused(&pod, &lab.conf(json!({ "type": "k8s" }), missing));
    assert!(error.msg.contains("/nowhere/kubeconfig"), "{error:?}");

    lab.api.stop();
    if matches!(lab.cluster.store, Store::Local(_)) {
        let error = lab.refused(&pod, &conf);
        assert_eq!(error.code, 11, "{error:?}");
        assert!(error.msg.contains("https://127.0.0.1:6443"), "{error:?}");
    }
    lab.cluster.delete(&pod, &conf);
    lab.cluster.assert_nothing_left();
}

/// As in upstream, without the policy type `k8s` the pod has no effect, and the namespace selectors
/// of pools have one (CNI-115, IPAM-36).
#[on(etcd, local)]
fn only_namespace_labels_have_effect_without_kubernetes_policy(lab: &mut Lab<'_>) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    let labels = json!({ "metadata": { "labels": { "team": "red" } } });
    lab.api
        .admin()
        .patch(&path, &labels)
        .unwrap()
        .success()
        .unwrap();
    lab.cluster
        .load(&Content::dual_stack().of_namespaces("pool4", "team == 'red'"));
    let pod = lab.pod(json!({ "cni.projectcalico.org/ipv4pools": "[\"pool9\"]" }));
    let conf = lab.conf(
        json!({ "type": "calico" }),
        json!({ "kubeconfig": lab.api.admin_kubeconfig() }),
    );
    let audit = lab.api.audit().unwrap();
    let result = lab.cluster.add(&pod, &conf);
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
    let endpoints = lab.cluster.endpoints();
    assert_eq!(
        endpoints[ENDPOINT]["spec"]["profiles"],
        json!(["k8s-pod-network"])
    );
    assert_eq!(endpoints[ENDPOINT]["metadata"]["labels"].get("app"), None);
    lab.cluster.delete(&pod, &conf);
    lab.cluster.assert_nothing_left();
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
}

/// The endpoint in the datastore names the earlier sandbox. Its address is not the first one of the
/// list.
#[on(etcd, local)]
fn listed_address_passes_to_the_next_sandbox(lab: &mut Lab<'_>) {
    let address = |result: &Value| result["ips"][0]["address"].clone();
    let conf = lab.with_kubeconfig();
    let first = lab.pod(json!({ "cni.projectcalico.org/ipAddrsAnyOf": "[\"10.65.9.9\"]" }));
    assert_eq!(address(&lab.cluster.add(&first, &conf)), "10.65.9.9/32");
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{POD}");
    let list = json!({ "cni.projectcalico.org/ipAddrsAnyOf": "[\"10.65.3.3\", \"10.65.9.8/31\"]" });
    lab.api
        .admin()
        .patch(&path, &json!({ "metadata": { "annotations": list } }))
        .unwrap()
        .success()
        .unwrap();
    let second = lab.cluster.sandbox(&first, 2);
    assert_eq!(address(&lab.cluster.add(&second, &conf)), "10.65.9.9/32");
    lab.cluster.delete(&first, &conf);
    assert_eq!(
        lab.cluster
            .accounts()
            .held
            .into_values()
            .collect::<Vec<_>>(),
        [handle(&second)]
    );
    lab.cluster.delete(&second, &conf);
    lab.cluster.assert_nothing_left();
}
