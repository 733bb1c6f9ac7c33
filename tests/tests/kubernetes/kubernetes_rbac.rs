//! The role in `deploy/rbac` grants the CNI user exactly the permissions that the plugins need.
//!
//! `golden_kubernetes.rs` shows that no recording needs more, and `kubernetes_kubevirt.rs` covers
//! the permissions for VMIs.

use std::collections::BTreeMap;
use std::path::Path;

use integration_tests::golden::cluster;
use integration_tests::kubernetes::{
    ApiServer, Kubernetes, Objects, Role, ServiceAccount, on_kubernetes,
};
use integration_tests::namespaces::{Host, NETNS_DIR};
use integration_tests::plugin::{Outcome, Plugins};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

/// The steps of a node. Together they need each permission.
const STEPS: [Step; 10] = [
    Step::Verb("STATUS", ""),
    Step::Verb("ADD", "web-1"),
    // A runtime that lost its state repeats the ADD.
    Step::Verb("ADD", "web-1"),
    Step::Verb("ADD", "web-2"),
    Step::Verb("CHECK", "web-2"),
    Step::Verb("DEL", "web-1"),
    Step::Verb("ADD", "web-3"),
    Step::GcOfAllBut("web-2"),
    Step::PoolDeselectsTheNode,
    // The node's last pod is deleted, and its block with it.
    Step::Verb("DEL", "web-2"),
];

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A CNI command for the sandbox of a pod, which has the pod's name.
    Verb(&'static str, &'static str),
    GcOfAllBut(&'static str),
    PoolDeselectsTheNode,
}

/// The observation after a step.
#[derive(Debug, PartialEq)]
struct Observation {
    exit: Option<i32>,
    objects: BTreeMap<String, Value>,
}

/// `node1`, whose plugins have the rights of a role.
struct LimitedNode<'a> {
    host: &'a Host,
    api: &'a ApiServer,
    objects: Objects,
    plugins: Plugins,
}

/// Shows SEC-87.
#[test]
fn plugins_need_and_use_every_permission_in_crd_v1() {
    every_permission_is_used_and_needed(ApiGroup::CrdV1);
}

/// Shows SEC-87.
#[test]
fn plugins_need_and_use_every_permission_in_v3() {
    every_permission_is_used_and_needed(ApiGroup::V3);
}

#[test]
fn role_is_a_subset_of_upstreams_role() {
    let (ours, upstreams) = (Role::ours().unwrap(), Role::upstreams().unwrap());
    let more = Role(ours.0.difference(&upstreams.0).cloned().collect());
    assert_eq!(
        more,
        Role::default(),
        "swapping the binaries alone would not do:\n{more}"
    );
    assert!(ours.0.len() < upstreams.0.len());
}

fn every_permission_is_used_and_needed(group: ApiGroup) {
    on_kubernetes(|host, Kubernetes { ref api, .. }| {
        api.define(group.api_version()).unwrap();
        cluster::prepare(api).unwrap();
        let user = api.cni_user().unwrap();
        let name = group.api_version().split('/').next().unwrap();
        let role = Role::ours().unwrap().of_groups(&["", name]);

        api.grant(&user, &role).unwrap();
        let audit = api.audit().unwrap();
        let complete = run_steps(host, api, group, &user, &[]);
        let failed: Vec<_> = STEPS
            .iter()
            .zip(&complete)
            .filter(|(_, observation)| observation.exit != Some(0))
            .collect();
        assert!(failed.is_empty(), "{failed:#?}");
        assert!(
            complete
                .last()
                .unwrap()
                .objects
                .keys()
                .all(|key| !key.starts_with("ipamblocks/")),
            "{complete:#?}"
        );
        assert_eq!(Role::used_by(&audit.of(&user.user).unwrap()), role);

        let mut unneeded = role.clone();
        unneeded.0.retain(|permission| {
            api.grant(&user, &role.without(permission)).unwrap();
            run_steps(host, api, group, &user, &complete) == complete
        });
        assert_eq!(
            unneeded,
            Role::default(),
            "nothing shows that these are needed:\n{unneeded}"
        );
    });
}

/// Runs the [`STEPS`] up to the first step whose observation differs from `expected`.
fn run_steps(
    host: &Host,
    api: &ApiServer,
    group: ApiGroup,
    user: &ServiceAccount,
    expected: &[Observation],
) -> Vec<Observation> {
    let observed = host.reinstalled(|host| {
        let kubeconfig = cluster::write_kubeconfig(host, api, &user.identity)?;
        let objects = Objects::new(api.admin(), group, kubeconfig);
        let node = LimitedNode {
            host,
            api,
            objects,
            plugins: Plugins::locate()?,
        };
        node.prepare();
        let mut observed = Vec::new();
        for (index, step) in STEPS.iter().enumerate() {
            observed.push(node.run(*step));
            if expected
                .get(index)
                .is_some_and(|expected| *expected != observed[index])
            {
                break;
            }
        }
        Ok(observed)
    });
    cluster::clear(api, group).unwrap();
    observed.unwrap()
}

impl LimitedNode<'_> {
    fn prepare(&self) {
        let version = self.objects.group().api_version();
        for object in [
            json!({ "apiVersion": version, "kind": "ClusterInformation",
                    "metadata": { "name": "default" },
                    "spec": { "datastoreReady": true } }),
            self.pool("all()"),
        ] {
            self.api.admin().apply_object(&object).unwrap();
        }
        for name in ["web-1", "web-2", "web-3"] {
            self.host.ensure_pod(name).unwrap();
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": cluster::NAMESPACE },
                "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
            });
            self.api.admin().apply_object(&pod).unwrap();
        }
    }

    fn pool(&self, selector: &str) -> Value {
        json!({ "apiVersion": self.objects.group().api_version(), "kind": "IPPool",
                "metadata": { "name": "pool4" },
                "spec": { "cidr": "10.65.0.0/16", "blockSize": 26, "nodeSelector": selector } })
    }

    fn run(&self, step: Step) -> Observation {
        let exit = match step {
            Step::Verb(verb, pod) => self.verb(verb, pod, &json!({})).exit,
            Step::GcOfAllBut(pod) => {
                let valid = json!([{ "containerID": pod, "ifname": "eth0" }]);
                self.verb("GC", "", &json!({ "cni.dev/valid-attachments": valid }))
                    .exit
            }
            Step::PoolDeselectsTheNode => {
                self.api.admin().apply_object(&self.pool("!all()")).unwrap();
                Some(0)
            }
        };
        Observation {
            exit,
            objects: self.objects(),
        }
    }

    fn verb(&self, verb: &str, pod: &str, more: &Value) -> Outcome {
        let mut conf = json!({
            "cniVersion": "1.1.0", "name": "k8s-pod-network", "type": "calico",
            "log_level": "error",
            "datastore_type": "kubernetes", "calico_api_group": self.objects.group().api_version(),
            "kubernetes": { "kubeconfig": self.objects.kubeconfig() },
            "nodename": "node1", "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
        });
        if verb == "CHECK" {
            conf["prevResult"] = self.result(pod);
        }
        conf.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let args = format!(
            "K8S_POD_NAMESPACE={};K8S_POD_NAME={pod}",
            cluster::NAMESPACE
        );
        let call = self
            .plugins
            .verb("calico", verb, pod, &Path::new(NETNS_DIR).join(pod), &conf);
        let outcome = call.env("CNI_ARGS", args).run();
        if verb == "ADD" {
            std::fs::write(self.result_file(pod), &outcome.stdout).unwrap();
        }
        outcome
    }

    fn result_file(&self, pod: &str) -> std::path::PathBuf {
        self.host.dir("results").join(pod)
    }

    fn result(&self, pod: &str) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.result_file(pod)).unwrap()).unwrap()
    }

    fn objects(&self) -> BTreeMap<String, Value> {
        let summary = |(key, object): (String, Value)| {
            let summary = match key.split('/').next().unwrap_or_default() {
                "blockaffinities" => object["spec"]["state"].clone(),
                "ipamhandles" => object["spec"]["block"].clone(),
                "ipamblocks" => object["spec"]["allocations"]
                    .as_array()
                    .map(|all| taken(all))
                    .into(),
                "pods" => object["annotations"].clone(),
                _ => Value::Null,
            };
            (key, summary)
        };
        self.objects
            .dump()
            .unwrap()
            .into_iter()
            .map(summary)
            .collect()
    }
}

fn taken(allocations: &[Value]) -> usize {
    allocations.iter().filter(|index| !index.is_null()).count()
}
