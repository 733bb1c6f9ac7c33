//! [`RestrictedCluster`]: a cluster of two nodes with `components/node-restriction`, and clients
//! with the tokens of a node.

use anyhow::Result;
use integration_tests::Place;
use integration_tests::controllers::deletion_mark;
use integration_tests::kubernetes::node_restriction::{PLUGINS, await_denial};
use integration_tests::kubernetes::{
    Answer, ApiServer, Client, Identity, Kubernetes, on_prepared_kubernetes, token_path,
    token_request,
};
use integration_tests::manifests::{NAMESPACE as SYSTEM, compose, kustomizers};
use integration_tests::namespaces::Host;
pub(crate) use integration_tests::on;
use integration_tests::skip::skipped;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "suite";
const AGENT: &str = "calico-cni";

pub(crate) struct RestrictedCluster<'a> {
    pub(crate) host: &'a Host,
    pub(crate) api: &'a ApiServer,
    pub(crate) group: ApiGroup,
}

pub(crate) fn on(place: Place, test: fn(&RestrictedCluster<'_>)) {
    composed(place, &[], test);
}

/// Runs a test as [`on`] does, with more components.
pub(crate) fn composed(
    place: Place,
    components: &'static [&str],
    test: fn(&RestrictedCluster<'_>),
) {
    if let Err(missing) = kustomizers() {
        return skipped(&missing.to_string());
    }
    let group = place.api_group();
    let preparation = format!("{group:?} with {components:?}");
    on_prepared_kubernetes(
        &preparation,
        move |api| install(api, group, components),
        |host, Kubernetes { api, .. }| {
            test(&RestrictedCluster { host, api, group });
        },
    );
}

fn install(api: &ApiServer, group: ApiGroup, components: &[&str]) -> Result<()> {
    let overlay = match group {
        ApiGroup::CrdV1 => "overlays/kubernetes-v1",
        ApiGroup::V3 => "overlays/kubernetes-v3",
    };
    let components = [&["components/node-restriction"][..], components].concat();
    let folder = tempfile::tempdir()?;
    let objects = compose(folder.path(), &[overlay], &components)?;
    api.admin().apply_all(objects.values())?;
    api.namespace(NAMESPACE)?;
    for node in ["node1", "node2"] {
        api.admin().node(node)?;
    }
    await_policies(api, group)
}

/// Waits until each policy is in force, a moment after it was written.
fn await_policies(api: &ApiServer, group: ApiGroup) -> Result<()> {
    api.await_node_restriction(group, &api.token_of_node("node1")?)?;
    let (agent, tokens) = (
        agent_of(api, "node1")?,
        format!("{}?dryRun=All", token_path(SYSTEM, PLUGINS)),
    );
    await_denial("calico-cni-tokens", || {
        agent.create(&tokens, &token_request(json!({})))
    })
}

/// Creates a pod of the agent on a node, and returns a client with that pod's token.
fn agent_of(api: &ApiServer, node: &str) -> Result<Client> {
    let name = format!("{AGENT}-{node}");
    let containers = json!([{ "name": "c", "image": "none" }]);
    let spec = json!({ "nodeName": node, "serviceAccountName": AGENT, "containers": containers });
    let metadata = json!({ "name": name, "namespace": SYSTEM });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    api.admin().apply_object(&pod)?;
    api.client(&api.bound_token(AGENT, "Pod", &name)?)
}

impl RestrictedCluster<'_> {
    pub(crate) fn pod(&self, node: &str, name: &str) {
        let metadata =
            json!({ "name": name, "namespace": NAMESPACE, "annotations": { "kept": "a" } });
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
        self.api.token_of_node(node).unwrap()
    }

    /// Creates a pod of the agent on a node, and returns a client with that pod's token.
    pub(crate) fn agent_of(&self, node: &str) -> Client {
        agent_of(self.api, node).unwrap()
    }

    /// Returns the URL path of Calico's objects of a kind.
    pub(crate) fn path(&self, plural: &str) -> String {
        format!("/apis/{}/{plural}", self.group.api_version())
    }

    /// Returns the URL path of a Calico object.
    pub(crate) fn object_path(&self, plural: &str, name: &str) -> String {
        format!("{}/{name}", self.path(plural))
    }

    /// Returns a block with four addresses. `allocations` has the node of each address in use;
    /// `owner` may be empty.
    pub(crate) fn block(&self, cidr: &str, owner: &str, allocations: &[&str]) -> Value {
        let taken = allocations.len();
        let indexes: Vec<Option<usize>> = (0..4)
            .map(|index| (index < taken).then_some(index))
            .collect();
        let free: Vec<usize> = (taken..4).collect();
        let attribute = |node: &&str| {
            let owner = json!({ "node": node, "namespace": NAMESPACE, "pod": "p" });
            json!({ "handle_id": format!("net.{node}"), "secondary": owner })
        };
        let attributes: Vec<Value> = allocations.iter().map(attribute).collect();
        let mut spec = json!({ "cidr": cidr, "strictAffinity": false, "deleted": false,
                "sequenceNumber": 1,
            "allocations": indexes, "unallocated": free, "attributes": attributes });
        if !owner.is_empty() {
            spec["affinity"] = json!(owner);
        }
        self.calico("IPAMBlock", &dashed(cidr), spec)
    }

    /// Returns a confirmed affinity.
    pub(crate) fn affinity(&self, node: &str, cidr: &str) -> Value {
        let mark = deletion_mark(self.group, false);
        let spec = json!({
            "state": "confirmed", "node": node, "type": "host", "cidr": cidr, "deleted": mark,
        });
        self.calico("BlockAffinity", &format!("{node}-{}", dashed(cidr)), spec)
    }

    /// Returns an object, and does not store it.
    pub(crate) fn calico(&self, kind: &str, name: &str, spec: Value) -> Value {
        json!({
            "apiVersion": self.group.api_version(), "kind": kind, "metadata": { "name": name },
            "spec": spec,
        })
    }

    /// Changes the object at a path by `edit` and replaces it as `client`.
    pub(crate) fn change(
        &self,
        client: &Client,
        path: &str,
        edit: impl FnOnce(&mut Value),
    ) -> Result<Answer> {
        let mut object = self.api.admin().get(path)?.checked()?;
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

#[track_caller]
pub(crate) fn assert_denied(answer: Result<Answer>, policy: &str) {
    let answer = answer.unwrap();
    assert!(answer.is_denied_by(policy), "{policy}: {answer:?}");
}
