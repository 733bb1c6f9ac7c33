//! The chart renders the same objects as kustomize for the same options, and rejects unknown values.

mod namespaces;
mod options;
mod pods;
mod pools;
mod roles;
mod same;
mod values;

use integration_tests::manifests::{helm, kustomizers};
use integration_tests::skip::skipped;

const DAEMON_SET: &str = "DaemonSet.apps kube-system/calico-cni";
const DEPLOYMENT: &str = "Deployment.apps kube-system/calico-kube-controllers";
const CONFIG: &str = "ConfigMap kube-system/calico-config";

/// Returns true if helm and kubectl are available; otherwise marks the test as skipped.
fn can_render() -> bool {
    helm().and_then(|_| kustomizers()).map_err(|missing| skipped(&missing.to_string())).is_ok()
}
