//! An installed node, and doctor's report about it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use integration_tests::installation::OWN_BIN;
use integration_tests::kubernetes::{
    ApiServer, Kubernetes, ServiceAccount, on_prepared_kubernetes,
};
use integration_tests::node_pod::{NAMESPACE, NodePod, POD_ACCOUNT, may_make_tokens};
use integration_tests::plugin::Outcome;
use integration_tests::proxy::Proxy;
use serde_json::{Value, json};

pub(crate) const NODE: &str = "node1";
/// libcni's directory of results, below the root of the node.
pub(crate) const RESULTS: &str = "var/lib/cni/results";
const GROUP: &str = "crd.projectcalico.org/v1";

pub(crate) struct Scene<'k> {
    pub(crate) kubernetes: &'k mut Kubernetes,
    pub(crate) pod: NodePod,
    pub(crate) proxy: Proxy,
    pub(crate) plugins: ServiceAccount,
}

/// The report of doctor: exit status, and the checks by name.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) exit: Option<i32>,
    pub(crate) checks: BTreeMap<String, Value>,
}

pub(crate) fn on_a_good_node(test: impl FnOnce(&mut Scene<'_>) + Send) {
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
        fs::create_dir_all(pod.container.path(RESULTS)).unwrap();
        for name in ["portmap", "loopback"] {
            let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["0.3.1","1.0.0"]}"#;
            let script = format!("#!/bin/sh\ncat >/dev/null\necho '{answer}'\n");
            make_executable(
                &pod.container
                    .file(&format!("{OWN_BIN}/{name}"), script)
                    .unwrap(),
                true,
            );
        }
        for (name, value) in [("SLEEP", "false"), ("KUBERNETES_NODE_NAME", NODE)] {
            pod.set(name, value);
        }
        let outcome = pod.calico(&["install"]).run().unwrap();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        test(&mut Scene {
            kubernetes,
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

pub(crate) fn make_executable(path: &Path, yes: bool) {
    set_permissions(
        path,
        Permissions::from_mode(if yes { 0o755 } else { 0o644 }),
    )
    .unwrap();
}

pub(crate) trait Examined {
    fn doctor(&self) -> Said;
}

impl Examined for Scene<'_> {
    fn doctor(&self) -> Said {
        Said::of(&self.pod.calico(&["doctor", "-o", "json"]).run().unwrap())
    }
}

impl Scene<'_> {
    pub(crate) fn patch(&self, path: &str, patch: &Value) {
        let path = format!("/apis/{GROUP}/{path}");
        self.kubernetes
            .api
            .admin()
            .patch(&path, patch)
            .unwrap()
            .success()
            .unwrap();
    }
}

impl Said {
    /// Parses the JSON report.
    #[track_caller]
    pub(crate) fn of(outcome: &Outcome) -> Said {
        let document = serde_json::from_str::<Value>(&outcome.stdout);
        let document = document
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", outcome.stdout, outcome.stderr));
        let checks = document["checks"].as_array().unwrap().iter();
        let named = |check: &Value| (check["name"].as_str().unwrap().to_owned(), check.clone());
        Said {
            exit: outcome.exit,
            checks: checks.map(named).collect(),
        }
    }

    pub(crate) fn wrong(&self) -> Vec<String> {
        let wrong = self
            .checks
            .iter()
            .filter(|(_, check)| check["state"] != "ok");
        let mut wrong: Vec<String> = wrong
            .map(|(name, check)| format!("{} {name}", check["state"].as_str().unwrap()))
            .collect();
        wrong.sort();
        wrong
    }

    /// Returns the observation and the remedy of a check.
    pub(crate) fn words(&self, name: &str) -> String {
        let check = &self.checks[name];
        format!(
            "{} -> {}",
            check["seen"].as_str().unwrap(),
            check["wayOut"].as_str().unwrap_or_default()
        )
    }
}

pub(crate) struct Break<'a> {
    /// The checks that are not ok, sorted by state and name.
    pub(crate) found: &'a [&'a str],
    /// A check, and words of its report.
    pub(crate) words: (&'a str, &'a str),
}

impl Break<'_> {
    /// Breaks the node and asserts that exactly these checks report it; then repairs the node and
    /// asserts that all checks are ok.
    #[track_caller]
    pub(crate) fn and_mend(
        &self,
        scene: &impl Examined,
        break_it: impl FnOnce(),
        mend_it: impl FnOnce(),
    ) {
        break_it();
        let said = scene.doctor();
        assert_eq!(said.wrong(), self.found, "{said:#?}");
        let fails = self.found.iter().any(|state| state.starts_with("fail "));
        assert_eq!(said.exit, Some(i32::from(fails)), "{said:#?}");
        let (check, words) = self.words;
        assert!(
            said.words(check).contains(words),
            "{words} is not in {}",
            said.words(check)
        );
        mend_it();
        is_good(scene);
    }
}

#[track_caller]
pub(crate) fn is_good(scene: &impl Examined) {
    let said = scene.doctor();
    assert_eq!(
        (said.wrong(), said.exit),
        (Vec::new(), Some(0)),
        "{said:#?}"
    );
}
