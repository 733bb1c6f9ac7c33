//! `deploy/components/node-restriction`: the account of the plugins whose tokens are bound to
//! Nodes, and the policies that limit these tokens.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::api_server::ApiServer;
use super::client::Answer;
use super::identity::Identity;
use super::objects::Objects;
use super::service_account::{ServiceAccount, token_in, token_path, token_request};
use crate::controllers::{PATIENCE, await_that, deletion_mark};
use crate::manifests::{NAMESPACE, deploy};

/// The account of the plugins.
pub const PLUGINS: &str = "calico-cni-plugin-bound";

/// A node that no test uses.
const OTHER_NODE: &str = "other-node";

/// The token of the plugins of each node.
pub type NodeTokens = BTreeMap<String, Identity>;

impl ApiServer {
    /// Applies the part of the component that limits the plugins, and nodes that have only a name.
    /// Returns the account of the plugins, and its token for each node.
    pub fn restrict_nodes(&self, nodes: &[&str]) -> Result<(ServiceAccount, NodeTokens)> {
        self.namespace(NAMESPACE)?;
        for manifest in ["rbac.yaml", "policies.yaml"] {
            self.admin().apply(&fs::read_to_string(
                deploy("components/node-restriction").join(manifest),
            )?)?;
        }
        let account =
            self.account_of(NAMESPACE, PLUGINS, &[deploy("rbac/calico-cni-plugin.yaml")])?;
        let mut tokens = NodeTokens::new();
        for &node in nodes {
            self.admin().node(node)?;
            tokens.insert(node.to_owned(), self.token_of_node(node)?);
        }
        Ok((account, tokens))
    }

    /// Returns a token of the plugins that is bound to a node.
    pub fn token_of_node(&self, node: &str) -> Result<Identity> {
        self.bound_token(PLUGINS, "Node", node)
    }

    /// Returns a token of an account that is bound to an object.
    pub fn bound_token(&self, account: &str, kind: &str, name: &str) -> Result<Identity> {
        let request = token_request(json!({ "boundObjectRef": bound_to(kind, name) }));
        let made = self
            .admin()
            .create(&token_path(NAMESPACE, account), &request)?
            .checked()?;
        token_in(&made).map(Identity::Token)
    }

    /// Returns the objects of a group, with a kubeconfig for the plugins of each node and that of
    /// the administrator for other programs. Writes these kubeconfigs. The plugins reach the server
    /// at `url`.
    pub fn objects_of_nodes(
        &self,
        group: ApiGroup,
        url: &str,
        tokens: &NodeTokens,
    ) -> Result<Objects> {
        let objects = Objects::new(
            self.admin(),
            group,
            self.kubeconfig("people", self.admin_identity())?,
        );
        let mut kubeconfigs = BTreeMap::new();
        for (node, token) in tokens {
            kubeconfigs.insert(node.clone(), self.kubeconfig_to(url, node, token)?);
        }
        Ok(objects.with_kubeconfigs(kubeconfigs))
    }

    /// Waits until the policies limit this token of a node for the objects of a group. The server
    /// applies a policy a moment after the write.
    pub fn await_node_restriction(&self, group: ApiGroup, token: &Identity) -> Result<()> {
        let (version, plugins) = (group.api_version(), self.client(token)?);
        let block = json!({
            "apiVersion": version, "kind": "IPAMBlock", "metadata": { "name": "10-65-9-0-30" },
            "spec": {
                "cidr": "10.65.9.0/30", "affinity": format!("host:{OTHER_NODE}"),
                "strictAffinity": false,
                "deleted": false, "allocations": [null, null, null, null],
                "unallocated": [0, 1, 2, 3],
                "attributes": [],
            },
        });
        let affinity = json!({
            "apiVersion": version, "kind": "BlockAffinity",
            "metadata": { "name": format!("{OTHER_NODE}-10-65-9-0-30") },
            "spec": {
                "cidr": "10.65.9.0/30", "node": OTHER_NODE, "type": "host", "state": "confirmed",
                "deleted": deletion_mark(group, false),
            },
        });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "probe" },
            "spec": {
                "nodeName": OTHER_NODE, "serviceAccountName": PLUGINS,
                "containers": [{ "name": "c", "image": "none" }],
            },
        });
        let annotations = json!({ "metadata": { "annotations": { "probe": "a" } } });
        let dry = |plural: &str| format!("/apis/{version}/{plural}?dryRun=All");
        self.admin().create(&pods, &pod)?.checked()?;
        await_denial("calico-cni-pods", || {
            plugins.patch(&format!("{pods}/probe/status?dryRun=All"), &annotations)
        })?;
        await_denial("calico-cni-blocks", || {
            plugins.create(&dry("ipamblocks"), &block)
        })?;
        await_denial("calico-cni-affinities", || {
            plugins.create(&dry("blockaffinities"), &affinity)
        })?;
        self.admin()
            .delete(&format!("{pods}/probe"))?
            .checked()
            .map(drop)
    }
}

/// Returns the `boundObjectRef` of a TokenRequest.
pub fn bound_to(kind: &str, name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "name": name })
}

impl Answer {
    /// Returns true if a ValidatingAdmissionPolicy refused the request.
    pub fn is_denied_by(&self, policy: &str) -> bool {
        self.code == 403
            && self
                .reason()
                .contains(&format!("ValidatingAdmissionPolicy '{policy}'"))
    }
}

/// Waits until a policy refuses a request.
pub fn await_denial(policy: &str, probe: impl Fn() -> Result<Answer>) -> Result<()> {
    await_that(PATIENCE, || Ok(probe()?.is_denied_by(policy)))
        .with_context(|| format!("{policy} does not refuse the request: {:?}", probe()))
}
