//! `kubectl drain` of the only node for pods, with both replicas of kube-controllers.

use std::fs;
use std::path::Path;

use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{ApiServer, Client, on_shared_kubernetes, program};
use integration_tests::manifests::{deploy, parse};
use integration_tests::server_process::ServerProcess;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

use super::{BUDGET, DEPLOYMENT};

const PODS: &str = "/api/v1/namespaces/kube-system/pods";

/// Starts the controllers of Kubernetes that create the replicas and compute the budget.
fn start_controllers(api: &ApiServer, directory: &Path) -> ServerProcess {
    let kubeconfig = format!("--kubeconfig={}", api.admin_kubeconfig().display());
    let controllers =
        "--controllers=deployment-controller,replicaset-controller,disruption-controller";
    let args = [
        kubeconfig.as_str(),
        "--leader-elect=false",
        "--secure-port=0",
        controllers,
    ]
    .map(str::to_owned);
    let mut process = ServerProcess::default();
    process
        .start(
            &program("kube-controller-manager").unwrap(),
            &args,
            &directory.join("log"),
        )
        .unwrap();
    process
}

/// Returns the pods in the namespace.
fn pods(admin: &Client) -> anyhow::Result<Vec<Value>> {
    let list = admin.get(PODS)?.checked()?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn is_on_a_node(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_string()
}

/// Does the work of a scheduler and of a kubelet: each new pod runs on `node1`.
fn start_pods(admin: &Client, ready: bool) {
    let new = || {
        anyhow::Ok(
            pods(admin)?
                .into_iter()
                .filter(|pod| !is_on_a_node(pod))
                .collect::<Vec<_>>(),
        )
    };
    await_that(PATIENCE, || Ok(new()?.len() == 2)).unwrap();
    for pod in new().unwrap() {
        let path = format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap());
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod["metadata"]["name"] },
            "target": { "kind": "Node", "name": "node1" },
        });
        admin
            .create(&format!("{path}/binding"), &binding)
            .unwrap()
            .success();
        let condition = json!({ "type": "Ready", "status": if ready { "True" } else { "False" } });
        let status = json!({ "status": { "phase": "Running", "conditions": [condition] } });
        admin
            .patch(&format!("{path}/status"), &status)
            .unwrap()
            .success();
    }
    let budget =
        "/apis/policy/v1/namespaces/kube-system/poddisruptionbudgets/calico-kube-controllers";
    let healthy = if ready { 2 } else { 0 };
    await_that(PATIENCE, || {
        let budget = admin.get(budget)?.checked()?;
        let status = &budget["status"];
        let is_current = status["observedGeneration"] == budget["metadata"]["generation"];
        Ok(is_current && status["expectedPods"] == 2 && status["currentHealthy"] == healthy)
    })
    .unwrap();
}

/// No other node takes the replacements of the evicted pods. With upstream's manifest the drain
/// passes too.
#[test]
fn drain_of_the_only_node_passes_with_replicas_that_are_ready_and_that_are_not() {
    if let Err(missing) = program("kubectl").and_then(|_| program("kube-controller-manager")) {
        return skipped(&missing.to_string());
    }
    on_shared_kubernetes(|host, kubernetes| {
        let (api, admin) = (&kubernetes.api, kubernetes.api.admin());
        admin.node("node1").unwrap();
        let objects = parse(&fs::read_to_string(deploy("install.yaml")).unwrap()).unwrap();
        for name in [
            "ServiceAccount kube-system/calico-kube-controllers",
            BUDGET,
            DEPLOYMENT,
        ] {
            admin.apply_object(&objects[name]).unwrap();
        }
        let _controllers = start_controllers(api, &host.dir("kube-controller-manager"));
        for ready in [true, false] {
            start_pods(admin, ready);
            // No kubelet ends the pods, so their grace period is 0.
            api.kubectl(&[
                "drain",
                "node1",
                "--ignore-daemonsets",
                "--grace-period=0",
                "--timeout=60s",
            ])
            .unwrap();
            assert!(
                !pods(admin).unwrap().iter().any(is_on_a_node),
                "ready: {ready}"
            );
            api.kubectl(&["uncordon", "node1"]).unwrap();
        }
    });
}
