//! Tests of the control plane that the Kubernetes suites use.

use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Mutex;

use integration_tests::kubernetes::{
    Access, Identity, on_kubernetes, on_shared_kubernetes, program, rounds,
};
use integration_tests::skip::skipped;
use serde_json::json;

const MANIFEST: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: anchors.lab.example }
spec:
  group: lab.example
  scope: Cluster
  names: { kind: Anchor, plural: anchors, singular: anchor }
  versions:
  - name: v1
    served: true
    storage: true
    schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } }
---
apiVersion: lab.example/v1
kind: Anchor
metadata: { name: first }
spec: { chain: 3 }
---
"#;

#[test]
fn objects_are_created_patched_and_deleted() {
    on_shared_kubernetes(|_, kubernetes| {
        let api = &kubernetes.api;
        api.namespace("golden").unwrap();
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } });
        api.admin()
            .create("/api/v1/nodes", &node)
            .unwrap()
            .success();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "pod1", "namespace": "golden" },
            "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
        });
        let kept = api.admin().apply_object(&pod).unwrap();
        assert_eq!(kept["spec"]["serviceAccountName"], "default");
        let path = "/api/v1/namespaces/golden/pods/pod1";
        let status = json!({ "status": { "phase": "Running" } });
        let kept = api
            .admin()
            .patch(&format!("{path}/status"), &status)
            .unwrap()
            .success();
        assert_eq!(kept["status"]["phase"], "Running");
        api.admin().delete(path).unwrap().success();
        let gone = api.admin().get(path).unwrap();
        assert_eq!(
            (gone.code, gone.reason().as_str()),
            (404, "pods \"pod1\" not found")
        );
        assert!(gone.checked().is_err());
    });
}

#[test]
fn manifest_with_a_definition_and_its_object_is_applied() {
    on_shared_kubernetes(|_, kubernetes| {
        let admin = kubernetes.api.admin();
        for _ in 0..2 {
            admin.apply(MANIFEST).unwrap();
            let anchors = admin.get("/apis/lab.example/v1/anchors").unwrap().success();
            assert_eq!(anchors["items"].as_array().unwrap().len(), 1);
            assert_eq!(anchors["items"][0]["spec"], json!({ "chain": 3 }));
        }
        let unknown = admin
            .apply("{ apiVersion: lab.example/v1, kind: Chain, metadata: { name: x } }")
            .unwrap_err();
        assert_eq!(unknown.to_string(), "lab.example/v1 has no Chain");
    });
}

#[test]
fn rbac_refuses_a_service_account_without_a_role_binding() {
    on_shared_kubernetes(|_, kubernetes| {
        let api = &kubernetes.api;
        let plugin = api.service_account("kube-system", "plugin").unwrap();
        api.admin().node("node1").unwrap();

        let refused = plugin.client.get("/api/v1/nodes/node1").unwrap();
        assert_eq!(refused.code, 403);
        assert!(
            refused.reason().contains(&plugin.user),
            "{}",
            refused.reason()
        );

        let rules = json!([{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] }]);
        api.cluster_role("reads-nodes", &rules).unwrap();
        api.bind(&plugin, "reads-nodes").unwrap();
        assert_eq!(plugin.client.get("/api/v1/nodes/node1").unwrap().code, 200);
        assert_eq!(plugin.client.get("/api/v1/nodes").unwrap().code, 403);
        let may = |verb, resource| {
            api.allows(
                &plugin.user,
                Access {
                    verb,
                    group: "",
                    resource,
                },
            )
            .unwrap()
        };
        assert!(may("get", "nodes"));
        assert!(!may("get", "nodes/status") && !may("patch", "nodes") && !may("get", "pods"));
    });
}

#[test]
fn audit_log_has_each_request_once_and_in_order() {
    on_shared_kubernetes(|_, kubernetes| {
        let api = &kubernetes.api;
        let plugin = api.service_account("kube-system", "plugin").unwrap();
        let rules =
            json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create"] }]);
        api.cluster_role("configures", &rules).unwrap();
        api.bind(&plugin, "configures").unwrap();
        let maps = "/api/v1/namespaces/kube-system/configmaps";
        let map =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" } });

        let audit = api.audit().unwrap();
        assert_eq!(audit.lines().unwrap(), [""; 0]);
        for _ in 0..2 {
            plugin.client.create(maps, &map).unwrap();
        }
        plugin.client.get(&format!("{maps}/settings")).unwrap();
        plugin.client.get(&format!("{maps}/absent")).unwrap();
        plugin.client.delete(&format!("{maps}/settings")).unwrap();
        api.admin().get(&format!("{maps}?limit=1")).unwrap();
        plugin.client.get("/version").unwrap();
        let nobody = Identity::Token("no token".to_owned());
        api.client(&nobody).unwrap().get(maps).unwrap();

        let expected = [
            "create configmaps kube-system/: 201",
            "create configmaps kube-system/: 409",
            "get configmaps kube-system/settings: 200",
            "get configmaps kube-system/absent: 404",
            "delete configmaps kube-system/settings: 403",
            "list configmaps kube-system/: 200",
            "get /version: 200",
            "list configmaps kube-system/: 401",
        ];
        assert_eq!(audit.lines().unwrap(), expected);
        let own = audit.of(&plugin.user).unwrap();
        assert_eq!((own.len(), rounds(&own)), (6, 6));
        assert_eq!(audit.of("admin").unwrap()[0].uri, format!("{maps}?limit=1"));

        let later = api.audit().unwrap();
        plugin.client.get("/version").unwrap();
        assert_eq!(later.lines().unwrap(), ["get /version: 200"]);
        assert_eq!(audit.lines().unwrap().len(), expected.len() + 1);
    });
}

#[test]
fn objects_and_tokens_survive_a_restart_of_the_server() {
    on_kubernetes(|_, mut kubernetes| {
        let api = &mut kubernetes.api;
        let plugin = api.service_account("kube-system", "plugin").unwrap();
        let path = "/api/v1/namespaces/kube-system/serviceaccounts/plugin";
        let before = api.admin().get(path).unwrap().success();
        let version = || plugin.client.get("/version").map(|answer| answer.code);
        let audit = api.audit().unwrap();
        api.stop();
        assert!(api.pid().is_none());
        assert!(version().is_err());
        api.restart().unwrap();
        assert_eq!(version().unwrap(), 200);
        assert_eq!(api.admin().get(path).unwrap().success(), before);
        assert_eq!(audit.of(&plugin.user).unwrap().len(), 1);
        // The objects are in etcd, beside any Calico data.
        assert!(
            kubernetes
                .etcd
                .dump_raw()
                .unwrap()
                .contains_key("/registry/serviceaccounts/kube-system/plugin")
        );
        assert!(kubernetes.etcd.dump().unwrap().is_empty());
    });
}

#[test]
fn two_api_servers_on_separate_hosts_are_isolated() {
    on_shared_kubernetes(|_, first| {
        on_shared_kubernetes(|_, second| {
            second.api.namespace("mine").unwrap();
            // A client that trusts the first server's authority cannot connect to the second
            // server.
            let admin = first.api.user("someone", "system:masters").unwrap();
            first
                .api
                .client(&admin)
                .unwrap()
                .get("/version")
                .unwrap_err();
        });
        assert_eq!(
            first
                .api
                .admin()
                .get("/api/v1/namespaces/mine")
                .unwrap()
                .code,
            404
        );
    });
}

#[test]
fn servers_end_with_their_private_host() {
    let running = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
    let pids = Mutex::new(Vec::new());
    let failed = catch_unwind(|| {
        on_kubernetes(|_, kubernetes| {
            let both = [
                kubernetes.api.pid().unwrap(),
                kubernetes.etcd.pid().unwrap(),
            ];
            assert!(both.iter().all(running));
            pids.lock().unwrap().extend(both);
            panic!("a test that fails half-way");
        });
    });
    // Without the server's program the test was skipped.
    assert_eq!(failed.is_err(), !pids.lock().unwrap().is_empty());
    assert!(!pids.lock().unwrap().iter().any(running));
}

#[test]
fn kubectl_reads_from_the_server() {
    if let Err(missing) = program("kubectl") {
        return skipped(&missing.to_string());
    }
    on_shared_kubernetes(|_, kubernetes| {
        let versions = kubernetes
            .api
            .kubectl(&["version", "--output=json"])
            .unwrap();
        let versions: serde_json::Value = serde_json::from_str(&versions).unwrap();
        assert_eq!(
            versions["clientVersion"]["gitVersion"],
            versions["serverVersion"]["gitVersion"]
        );
        let namespaces = kubernetes
            .api
            .kubectl(&["get", "namespaces", "--output=name"])
            .unwrap();
        assert!(namespaces.contains("namespace/default"), "{namespaces}");
    });
}
