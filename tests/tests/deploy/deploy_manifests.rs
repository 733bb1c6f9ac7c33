//! The manifests of `deploy/`, rendered by kustomize.

mod alerts;
mod api_server;
mod beside_upstream;
mod components;
mod configuration;
mod documented;
mod drain;
mod endpoint;
mod metrics;
mod migration;
mod overlays;
mod platforms;
mod policies;
mod references;
mod removal;
mod roles;
mod schemas;

use integration_tests::manifests::{Objects, deploy, kustomize, kustomizers};
use integration_tests::skip::skipped;

/// The overlays that are complete installations.
const OVERLAYS: [&str; 3] = [
    "overlays/kubernetes-v1",
    "overlays/kubernetes-v3",
    "overlays/etcd",
];

const COMPONENTS: [&str; 19] = [
    "components/agent-metrics",
    "components/cni-1.1",
    "components/critical-quota",
    "components/dac-override",
    "components/default-pool",
    "components/flow-control",
    "components/former-directories",
    "components/host-endpoints",
    "components/host-network-controllers",
    "components/migrate-to-v3",
    "components/node-condition",
    "components/node-restriction",
    "components/openshift-scc",
    "components/privileged",
    "components/prometheus-rule",
    "components/remove-dead-interfaces",
    "components/selinux",
    "components/service-monitor",
    "components/upgrade-ipam",
];

const DAEMON_SET: &str = "DaemonSet.apps kube-system/calico-cni";
const DEPLOYMENT: &str = "Deployment.apps kube-system/calico-kube-controllers";
const BUDGET: &str = "PodDisruptionBudget.policy kube-system/calico-kube-controllers";
const CONFIG: &str = "ConfigMap kube-system/calico-config";
/// The copy of `calico-config` that the workloads read.
const COPY: &str = "ConfigMap kube-system/calico-cni-config";

/// Returns true if kubectl and kustomize are available; otherwise marks the test as skipped.
fn can_render() -> bool {
    kustomizers()
        .map_err(|missing| skipped(&missing.to_string()))
        .is_ok()
}

/// Returns true if an object is for the Prometheus operator, whose definitions are not part of this
/// repository.
fn is_for_prometheus(name: &str) -> bool {
    name.split(' ')
        .next()
        .is_some_and(|kind| kind.ends_with(".monitoring.coreos.com"))
}

fn overlay(name: &str) -> Objects {
    kustomize(&deploy(name)).unwrap()
}
