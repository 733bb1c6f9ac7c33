//! [`KubernetesNode`]: an installed node of a cluster with its data in an API server.

use anyhow::Result;
use integration_tests::Place;
use integration_tests::kubernetes::{ApiServer, ServiceAccount, on_prepared_kubernetes};
use integration_tests::node_pod::{NAMESPACE, NodePod, POD_ACCOUNT, may_make_tokens};
pub(crate) use integration_tests::on;
use integration_tests::proxy::Proxy;
use serde_json::{Value, json};

use crate::installer_doctor::NODE;
use crate::installer_doctor::files;
use crate::installer_doctor::report::{Examined, Report};

const GROUP: &str = "crd.projectcalico.org/v1";

pub(crate) struct KubernetesNode<'k> {
    pub(crate) api: &'k ApiServer,
    pub(crate) pod: NodePod,
    /// The server to which the pod and the plugins connect.
    pub(crate) proxy: Proxy,
    /// The account of the plugins.
    pub(crate) plugins: ServiceAccount,
}

/// Runs a test with a node on which doctor finds no problem.
pub(crate) fn on(place: Place, test: impl FnOnce(&mut KubernetesNode<'_>) + Send) {
    assert_eq!(place, Place::KubernetesV1);
    on_prepared_kubernetes("definitions and accounts", prepare, |host, kubernetes| {
        host.add_uplink().unwrap();
        let api = &kubernetes.api;
        let proxy = api.proxy().unwrap();
        let plugins = api.cni_user().unwrap();
        let objects = [
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }),
            json!({ "apiVersion": GROUP, "kind": "ClusterInformation",
                    "metadata": { "name": "default" },
                    "spec": { "clusterGUID": "0123456789abcdef0123456789abcdef", "datastoreReady": true } }),
            json!({ "apiVersion": GROUP, "kind": "IPPool", "metadata": { "name": "pool" },
                    "spec": { "cidr": "10.65.0.0/16", "ipipMode": "Never", "vxlanMode": "Never",
                              "nodeSelector": "all()" } }),
        ];
        for object in &objects {
            api.admin().apply_object(object).unwrap();
        }
        let mut pod = NodePod::new(host, api, &proxy.endpoint()).unwrap();
        files::prepare(&pod.container);
        for (name, value) in [("SLEEP", "false"), ("KUBERNETES_NODE_NAME", NODE)] {
            pod.set(name, value);
        }
        let outcome = pod.calico(&["install"]).run();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        test(&mut KubernetesNode {
            api,
            pod,
            proxy,
            plugins,
        });
    });
}

/// Creates the definitions, and the accounts of the pod and of the plugins with their permissions.
fn prepare(api: &ApiServer) -> Result<()> {
    api.define(GROUP)?;
    api.cni_user()?;
    may_make_tokens(
        api,
        &api.service_account(NAMESPACE, POD_ACCOUNT)?,
        "calico-cni-plugin",
    )
}

impl Examined for KubernetesNode<'_> {
    fn doctor(&self) -> Report {
        Report::of(&self.pod.calico(&["doctor", "-o", "json"]).run())
    }
}

impl KubernetesNode<'_> {
    pub(crate) fn patch(&self, path: &str, patch: &Value) {
        let path = format!("/apis/{GROUP}/{path}");
        self.api.admin().patch(&path, patch).unwrap().success();
    }
}
