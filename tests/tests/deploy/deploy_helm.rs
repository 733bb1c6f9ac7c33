//! The chart renders the same objects as kustomize for the same options, and rejects unknown
//! values.

mod change;
mod endpoint;
mod metadata;
mod migration;
mod namespaces;
mod options;
mod platforms;
mod pods;
mod pools;
mod released;
mod roles;
mod same;
mod uninstall;
mod values;

use integration_tests::manifests::{helm, kustomizers};
use integration_tests::skip::skipped;

const DAEMON_SET: &str = "DaemonSet.apps kube-system/calico-cni";
const DEPLOYMENT: &str = "Deployment.apps kube-system/calico-kube-controllers";
const CONFIG: &str = "ConfigMap kube-system/calico-config";
/// The copy of `calico-config` that the workloads read.
const COPY: &str = "ConfigMap kube-system/calico-cni-config";
const CHART_LABELS: [&str; 5] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
];

/// Returns true if helm, kubectl and kustomize are available; otherwise marks the test as skipped.
fn can_render() -> bool {
    helm()
        .and_then(|_| kustomizers())
        .map_err(|missing| skipped(&missing.to_string()))
        .is_ok()
}

/// Returns the differences of a rendering in which these keys of the configuration differ.
fn of_configuration(keys: &[&str]) -> Vec<String> {
    let values = [COPY, CONFIG]
        .into_iter()
        .flat_map(|map| keys.iter().map(move |key| format!("{map}/data/{key}")));
    let checksum = |workload: &str| {
        format!("{workload}/spec/template/metadata/annotations/checksum/configuration")
    };
    values
        .chain([DAEMON_SET, DEPLOYMENT].map(checksum))
        .collect()
}
