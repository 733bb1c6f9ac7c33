//! `deploy/components/node-restriction`: the account of the plugins whose tokens are bound to Nodes, and the policies
//! that limit these tokens.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use super::api_server::ApiServer;
use super::client::Answer;
use super::identity::Identity;
use super::objects::Objects;
use super::service_account::{token_path, token_request};
use crate::controllers::{PATIENCE, await_that};
use crate::manifests::{NAMESPACE, deploy};

/// The account of the plugins.
pub const PLUGINS: &str = "calico-cni-plugin-bound";

/// The user of [`PLUGINS`], as in the audit log.
pub const USER: &str = "system:serviceaccount:kube-system:calico-cni-plugin-bound";

/// The manifests of the account, its role and the policies.
const MANIFESTS: [&str; 3] = [
    "rbac/calico-cni-plugin.yaml",
    "components/node-restriction/rbac.yaml",
    "components/node-restriction/policies.yaml",
];

/// A node that no test uses.
const OTHER_NODE: &str = "other-node";

/// The token of the plugins of each node.
pub type NodeTokens = BTreeMap<String, Identity>;

impl ApiServer {
    /// Applies the part of the component that limits the plugins, and creates the nodes that do not exist. Returns a
    /// token of the plugins for each node.
    pub fn restrict_nodes(&self, nodes: &[&str]) -> Result<NodeTokens> {
        self.namespace(NAMESPACE)?;
        for manifest in MANIFESTS.map(deploy) {
            self.admin().apply(&fs::read_to_string(manifest)?)?;
        }
        let token = |name: &&str| -> Result<(String, Identity)> {
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            let created = self.admin().create("/api/v1/nodes", &node)?;
            ensure!(matches!(created.code, 201 | 409), "{created:?}");
            Ok(((*name).to_owned(), self.token_of_node(name)?))
        };
        nodes.iter().map(token).collect()
    }

    /// Returns a token of the plugins that is bound to a node.
    pub fn token_of_node(&self, node: &str) -> Result<Identity> {
        self.bound_token(PLUGINS, "Node", node)
    }

    /// Returns a token of an account that is bound to an object.
    pub fn bound_token(&self, account: &str, kind: &str, name: &str) -> Result<Identity> {
        let reference = json!({ "apiVersion": "v1", "kind": kind, "name": name });
        let request = token_request(&json!({ "boundObjectRef": reference }));
        let made = self.admin().create(&token_path(NAMESPACE, account), &request)?.success()?;
        let token = made["status"]["token"].as_str().context("a TokenRequest has no token")?;
        Ok(Identity::Token(token.to_owned()))
    }

    /// Returns the objects of a group, with a kubeconfig for the plugins of each node and that of the administrator for
    /// other programs. Writes these kubeconfigs. The plugins reach the server at `url`.
    pub fn objects_of_nodes(&self, group: ApiGroup, url: &str, tokens: &NodeTokens) -> Result<Objects> {
        let objects = Objects::new(self.admin(), group, self.kubeconfig("people", self.admin_identity())?);
        let mut kubeconfigs = BTreeMap::new();
        for (node, token) in tokens {
            kubeconfigs.insert(node.clone(), self.kubeconfig_to(url, node, token)?);
        }
        Ok(objects.with_kubeconfigs(kubeconfigs))
    }

    /// Waits until the policies limit this token of a node for the objects of a group. The server applies a policy a
    /// moment after the write.
    pub fn await_node_restriction(&self, group: ApiGroup, token: &Identity) -> Result<()> {
        let (version, plugins) = (group.api_version(), self.client(token)?);
        let block = json!({
            "apiVersion": version, "kind": "IPAMBlock", "metadata": { "name": "10-65-9-0-30" },
            "spec": {
                "cidr": "10.65.9.0/30", "affinity": format!("host:{OTHER_NODE}"), "strictAffinity": false,
                "deleted": false, "allocations": [null, null, null, null], "unallocated": [0, 1, 2, 3], "attributes": [],
            },
        });
        let affinity = json!({
            "apiVersion": version, "kind": "BlockAffinity", "metadata": { "name": format!("{OTHER_NODE}-10-65-9-0-30") },
            "spec": {
                "cidr": "10.65.9.0/30", "node": OTHER_NODE, "type": "host", "state": "confirmed",
                "deleted": if group == ApiGroup::CrdV1 { json!("false") } else { json!(false) },
            },
        });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "probe" },
            "spec": { "nodeName": OTHER_NODE, "containers": [{ "name": "c", "image": "none" }] },
        });
        let annotations = json!({ "metadata": { "annotations": { "probe": "a" } } });
        let dry = |plural: &str| format!("/apis/{version}/{plural}?dryRun=All");
        self.admin().create(&pods, &pod)?.success()?;
        await_denial("calico-cni-pods", || plugins.patch(&format!("{pods}/probe/status?dryRun=All"), &annotations))?;
        await_denial("calico-cni-blocks", || plugins.create(&dry("ipamblocks"), &block))?;
        await_denial("calico-cni-affinities", || plugins.create(&dry("blockaffinities"), &affinity))?;
        self.admin().delete(&format!("{pods}/probe"))?.success().map(drop)
    }
}

impl Answer {
    /// Returns true if a ValidatingAdmissionPolicy refused the request.
    pub fn is_denied_by(&self, policy: &str) -> bool {
        self.code == 403 && self.reason().contains(&format!("ValidatingAdmissionPolicy '{policy}'"))
    }
}

/// Waits until a policy refuses a request.
pub fn await_denial(policy: &str, probe: impl Fn() -> Result<Answer>) -> Result<()> {
    await_that(PATIENCE, || Ok(probe()?.is_denied_by(policy)))
        .with_context(|| format!("{policy} does not refuse the request: {:?}", probe()))
}
