//! A cluster of two nodes with `components/node-restriction`, and clients with the tokens of a node.

use anyhow::Result;
use integration_tests::controllers::{PATIENCE, await_that, deletion_mark};
use integration_tests::kubernetes::{
    Answer, ApiServer, Client, Identity, Kubernetes, on_kubernetes, token_in, token_path, token_request,
};
use integration_tests::manifests::{compose, kustomizers};
use integration_tests::namespaces::Host;
use integration_tests::skip::skipped;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

pub(crate) const SYSTEM: &str = "kube-system";
pub(crate) const NAMESPACE: &str = "suite";
pub(crate) const PLUGINS: &str = "calico-cni-plugin-bound";
const AGENT: &str = "calico-cni";

pub(crate) struct Scene<'a> {
    pub(crate) host: &'a Host,
    pub(crate) api: &'a ApiServer,
    pub(crate) group: ApiGroup,
}

/// Runs a test in a cluster with `components/node-restriction` and the nodes `node1` and `node2`.
pub(crate) fn restricted(group: ApiGroup, test: impl FnOnce(&Scene<'_>) + Send) {
    if let Err(missing) = kustomizers() {
        return skipped(&missing.to_string());
    }
    on_kubernetes(|host, Kubernetes { api, .. }| {
        let scene = Scene { host, api, group };
        scene.install();
        test(&scene);
    });
}

impl Scene<'_> {
    fn install(&self) {
        let overlay = match self.group {
            ApiGroup::CrdV1 => "overlays/kubernetes-v1",
            ApiGroup::V3 => "overlays/kubernetes-v3",
        };
        let objects = compose(&self.host.dir("manifests"), &[overlay], &["components/node-restriction"]).unwrap();
        for object in objects.values() {
            self.api.admin().apply_object(object).unwrap();
        }
        self.api.namespace(NAMESPACE).unwrap();
        for node in ["node1", "node2"] {
            self.api.admin().node(node).unwrap();
        }
        self.await_policies();
    }

    /// Waits until each policy is in force, a moment after it was written.
    fn await_policies(&self) {
        let (plugins, agent) = (self.plugins_of("node1"), self.agent_of("node1"));
        self.pod("node2", "probe");
        let dry = |path: String| format!("{path}?dryRun=All");
        let blocks = dry(self.path("ipamblocks"));
        let affinities = dry(self.path("blockaffinities"));
        let annotation = json!({ "metadata": { "annotations": { "probe": "a" } } });
        await_denial("calico-cni-tokens", || {
            agent.create(&dry(token_path(SYSTEM, PLUGINS)), &token_request(json!({})))
        });
        await_denial("calico-cni-pods", || plugins.patch(&dry(status_path("probe")), &annotation));
        await_denial("calico-cni-blocks", || plugins.create(&blocks, &self.block("10.65.9.0/30", "host:node2", &[])));
        await_denial("calico-cni-affinities", || plugins.create(&affinities, &self.affinity("node2", "10.65.9.0/30")));
    }

    pub(crate) fn pod(&self, node: &str, name: &str) {
        let metadata = json!({ "name": name, "namespace": NAMESPACE, "annotations": { "kept": "a" } });
        let spec = json!({ "nodeName": node, "containers": [{ "name": "c", "image": "none" }] });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        self.api.admin().apply_object(&pod).unwrap();
    }

    /// Returns a client with a token of the plugins that is bound to a node.
    pub(crate) fn plugins_of(&self, node: &str) -> Client {
        self.api.client(&self.token_of(node)).unwrap()
    }

    /// Returns a token of the plugins that is bound to a node.
    pub(crate) fn token_of(&self, node: &str) -> Identity {
        self.bound_token(PLUGINS, "Node", node)
    }

    /// Creates a pod of the agent on a node, and returns a client with that pod's token.
    pub(crate) fn agent_of(&self, node: &str) -> Client {
        let name = format!("{AGENT}-{node}");
        let containers = json!([{ "name": "c", "image": "none" }]);
        let spec = json!({ "nodeName": node, "serviceAccountName": AGENT, "containers": containers });
        let metadata = json!({ "name": name, "namespace": SYSTEM });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        self.api.admin().apply_object(&pod).unwrap();
        self.api.client(&self.bound_token(AGENT, "Pod", &name)).unwrap()
    }

    fn bound_token(&self, account: &str, kind: &str, name: &str) -> Identity {
        let request = token_request(json!({ "boundObjectRef": bound_to(kind, name) }));
        let made = self.api.admin().create(&token_path(SYSTEM, account), &request).unwrap().success().unwrap();
        Identity::Token(token_in(&made).unwrap())
    }

    /// Returns the URL path of Calico's objects of a kind.
    pub(crate) fn path(&self, plural: &str) -> String {
        format!("/apis/{}/{plural}", self.group.api_version())
    }

    /// Returns the URL path of a Calico object.
    pub(crate) fn object_path(&self, plural: &str, name: &str) -> String {
        format!("{}/{name}", self.path(plural))
    }

    /// Returns a block with four addresses. `allocations` has the node of each address in use; `owner` may be empty.
    pub(crate) fn block(&self, cidr: &str, owner: &str, allocations: &[&str]) -> Value {
        let taken = allocations.len();
        let indexes: Vec<Option<usize>> = (0..4).map(|index| (index < taken).then_some(index)).collect();
        let free: Vec<usize> = (taken..4).collect();
        let attribute = |node: &&str| {
            let owner = json!({ "node": node, "namespace": NAMESPACE, "pod": "p" });
            json!({ "handle_id": format!("net.{node}"), "secondary": owner })
        };
        let attributes: Vec<Value> = allocations.iter().map(attribute).collect();
        let mut spec = json!({ "cidr": cidr, "strictAffinity": false, "deleted": false, "sequenceNumber": 1,
            "allocations": indexes, "unallocated": free, "attributes": attributes });
        if !owner.is_empty() {
            spec["affinity"] = json!(owner);
        }
        self.calico("IPAMBlock", &dashed(cidr), spec)
    }

    /// Returns a confirmed affinity.
    pub(crate) fn affinity(&self, node: &str, cidr: &str) -> Value {
        let mark = deletion_mark(self.group, false);
        let spec = json!({ "state": "confirmed", "node": node, "type": "host", "cidr": cidr, "deleted": mark });
        self.calico("BlockAffinity", &format!("{node}-{}", dashed(cidr)), spec)
    }

    /// Returns an object, and does not store it.
    pub(crate) fn calico(&self, kind: &str, name: &str, spec: Value) -> Value {
        json!({ "apiVersion": self.group.api_version(), "kind": kind, "metadata": { "name": name }, "spec": spec })
    }

    /// Changes the object at a path by `edit` and replaces it as `client`.
    pub(crate) fn change(&self, client: &Client, path: &str, edit: impl FnOnce(&mut Value)) -> Result<Answer> {
        let mut object = self.api.admin().get(path)?.success()?;
        edit(&mut object);
        client.replace(path, &object)
    }
}

/// Returns the name of the block with this CIDR.
fn dashed(cidr: &str) -> String {
    cidr.replace(['.', ':', '/'], "-")
}

pub(crate) fn status_path(pod: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/status")
}

/// Returns the `boundObjectRef` of a TokenRequest.
pub(crate) fn bound_to(kind: &str, name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "name": name })
}

fn is_denied(answer: &Answer, policy: &str) -> bool {
    answer.code == 403 && answer.reason().contains(&format!("ValidatingAdmissionPolicy '{policy}'"))
}

pub(crate) fn await_denial(policy: &str, probe: impl Fn() -> Result<Answer>) {
    let denied = await_that(PATIENCE, || Ok(is_denied(&probe()?, policy)));
    assert!(denied.is_ok(), "{policy} does not refuse: {:?}", probe());
}

#[track_caller]
pub(crate) fn assert_denied(answer: Result<Answer>, policy: &str) {
    let answer = answer.unwrap();
    assert!(is_denied(&answer, policy), "{policy}: {answer:?}");
}
