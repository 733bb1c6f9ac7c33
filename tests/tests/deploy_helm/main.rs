//! The chart renders what kustomize does, object by object, for the same options; and refuses values that it does not know.

mod options;
mod pods;
mod pools;
mod same;
mod values;

use integration_tests::manifests::{helm, kustomizers};
use integration_tests::skip::skipped;

const DAEMON_SET: &str = "DaemonSet.apps kube-system/calico-cni";
const DEPLOYMENT: &str = "Deployment.apps kube-system/calico-kube-controllers";
const CONFIG: &str = "ConfigMap kube-system/calico-config";

/// Whether helm and kubectl are there; the test is skipped otherwise.
fn can_render() -> bool {
    helm().and_then(|_| kustomizers()).map_err(|missing| skipped(&missing.to_string())).is_ok()
}
