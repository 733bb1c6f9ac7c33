//! A release in another namespace than `kube-system`.

use std::fs;

use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{Answer, ApiServer, Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{Objects, changes, template};
use serde_json::{Value, json};

use super::can_render;

const NAMESPACE: &str = "calico-system";
const DAEMON_SET: &str = "DaemonSet.apps calico-system/calico-cni";
const DEPLOYMENT: &str = "Deployment.apps calico-system/calico-kube-controllers";
const QUOTA: &str = "ResourceQuota calico-system/calico-cni-critical-pods";

fn rendered(values: &[&str]) -> Objects {
    let set = values.iter().flat_map(|value| ["--set", value]);
    template(
        &["--namespace", NAMESPACE]
            .into_iter()
            .chain(set)
            .collect::<Vec<_>>(),
    )
    .unwrap()
}

fn create_pod(api: &ApiServer, objects: &Objects, workload: &str) -> Answer {
    let template = &objects[workload]["spec"]["template"];
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "generateName": "pod-", "namespace": NAMESPACE },
        "spec": template["spec"],
    });
    api.admin()
        .create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod)
        .unwrap()
}

/// Creates the namespace with a level of Pod Security, and the accounts of the release.
fn prepare(api: &ApiServer, objects: &Objects, level: &str) {
    api.namespace(NAMESPACE).unwrap();
    let labels = json!({ "pod-security.kubernetes.io/enforce": level });
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": labels },
    });
    api.admin().apply_object(&namespace).unwrap();
    for (_, account) in objects
        .iter()
        .filter(|(name, _)| name.starts_with("ServiceAccount "))
    {
        api.admin().apply_object(account).unwrap();
    }
}

/// As on GKE, the critical classes need a quota that names them.
#[test]
fn quota_of_the_chart_admits_critical_pods_outside_of_kube_system() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let objects = rendered(&[]);
        let scope = json!({ "scopeName": "PriorityClass", "operator": "In",
            "values": ["system-node-critical", "system-cluster-critical"] });
        let quotas = json!({ "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
            "limitedResources": [{ "resource": "pods", "matchScopes": [scope] }] });
        let admission = json!({ "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "AdmissionConfiguration",
            "plugins": [{ "name": "ResourceQuota", "configuration": quotas }] });
        let file = host.dir("admission").join("configuration.json");
        fs::write(&file, admission.to_string()).unwrap();
        api.restart_with(&[&format!(
            "--admission-control-config-file={}",
            file.display()
        )])
        .unwrap();
        prepare(api, &objects, "privileged");
        for workload in [DAEMON_SET, DEPLOYMENT] {
            let refused = create_pod(api, &objects, workload);
            assert!(
                refused
                    .reason()
                    .contains("insufficient quota to match these scopes"),
                "{refused:?}"
            );
        }
        let quota = api.admin().apply_object(&objects[QUOTA]).unwrap();
        // No controller runs here that computes the status.
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/resourcequotas/calico-cni-critical-pods/status"
        );
        let status =
            json!({ "status": { "hard": quota["spec"]["hard"], "used": { "pods": "0" } } });
        api.admin().patch(&path, &status).unwrap().success();
        for workload in [DAEMON_SET, DEPLOYMENT] {
            await_that(PATIENCE, || {
                Ok(create_pod(api, &objects, workload).code == 201)
            })
            .unwrap();
        }
    });
}

#[test]
fn pods_on_nodes_need_the_pod_security_level_privileged() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        let objects = rendered(&[]);
        for (level, workload, code) in [
            ("baseline", DAEMON_SET, 403),
            ("restricted", DEPLOYMENT, 201),
            ("privileged", DAEMON_SET, 201),
        ] {
            prepare(api, &objects, level);
            await_that(PATIENCE, || {
                Ok(create_pod(api, &objects, workload).code == code)
            })
            .unwrap();
        }
    });
}

#[test]
fn openshift_value_binds_the_accounts_to_security_context_constraints() {
    if !can_render() {
        return;
    }
    assert!(
        !template(&[])
            .unwrap()
            .keys()
            .any(|name| name.starts_with("ResourceQuota"))
    );
    let (usual, bound) = (rendered(&[]), rendered(&["namespace.openshift=true"]));
    let bindings = ["calico-cni-scc", "calico-kube-controllers-scc"]
        .map(|name| format!("RoleBinding.rbac.authorization.k8s.io {NAMESPACE}/{name}"));
    assert_eq!(changes(&usual, &bound), bindings);
    let role = |objects: &Objects, binding: usize| -> Value {
        objects[&bindings[binding]]["roleRef"]["name"].clone()
    };
    assert_eq!(
        [role(&bound, 0), role(&bound, 1)],
        ["privileged", "nonroot-v2"].map(of_openshift)
    );
    let on_host = rendered(&[
        "namespace.openshift=true",
        "kubeControllers.hostNetwork=true",
    ]);
    assert_eq!(role(&on_host, 1), of_openshift("privileged"));
    let on_nodes_alone = rendered(&["namespace.openshift=true", "kubeControllers.enabled=false"]);
    assert!(
        on_nodes_alone.contains_key(&bindings[0]) && !on_nodes_alone.contains_key(&bindings[1])
    );
}

fn of_openshift(constraints: &str) -> Value {
    json!(format!("system:openshift:scc:{constraints}"))
}
