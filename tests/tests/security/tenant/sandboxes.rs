//! The pods of the tenant, and their sandboxes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;

use anyhow::{Result, ensure};
use integration_tests::content::NETWORK;
use integration_tests::node::Sandbox;
use integration_tests::plugin::Call;
use serde_json::{Value, json};

use super::others::addresses;
use super::shared_nodes::{NODES, SharedNodes};

#[derive(Debug, Clone)]
pub(crate) struct Attachment {
    pub(crate) node: usize,
    pub(crate) sandbox: Sandbox,
    /// CNI_ARGS that differ from those of a kubelet; `None` for a kubelet's.
    pub(crate) args: Option<OsString>,
    /// The result of the ADD, while the sandbox exists.
    pub(crate) result: Option<Value>,
    /// The pod's UID, once the kubelet has reported the sandbox's addresses. Empty without
    /// Kubernetes.
    pub(crate) reported: Option<String>,
}

impl SharedNodes<'_> {
    /// Creates a pod of the tenant. Returns false if the API server rejects it or the tenant has no
    /// access to the namespace.
    pub(crate) fn tenants_pod(&mut self, node: usize, namespace: &str, name: &str) -> Result<bool> {
        let Some(client) = self.client.clone() else {
            return Ok(true);
        };
        // The tenant has access only to the namespace of the others in which two pods share the
        // name of an interface.
        if self.make_namespace(namespace).is_err() || matches!(namespace, "prod" | "shop") {
            return Ok(false);
        }
        let metadata = json!({ "name": name, "annotations": self.annotations(),
                "labels": self.labels(),
            "ownerReferences": self.owners() });
        let account = if self.rng.bool() {
            self.text()
        } else {
            "default".into()
        };
        let named = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account },
        });
        client.create(
            &format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            &named,
        )?;
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "nodeName": NODES[node], "serviceAccountName": account,
                "containers": [{ "name": "c", "image": "none" }] },
        });
        let mut made = client.create(&pods, &pod)?;
        for part in ["labels", "serviceAccountName"] {
            // A rejected text is left out, so that the other texts are still tried.
            if made.code >= 400 {
                let place = if part == "labels" {
                    &mut pod["metadata"]
                } else {
                    &mut pod["spec"]
                };
                place[part] = Value::Null;
                made = client.create(&pods, &pod)?;
            }
        }
        self.history.push(format!(
            "pod {namespace}/{name}: {} {}",
            made.code,
            short(&pod["metadata"])
        ));
        Ok(made.code < 300 || made.code == 409)
    }

    pub(crate) fn attach(
        &mut self,
        node: usize,
        namespace: &str,
        name: &str,
    ) -> Result<Attachment> {
        let sandbox = self.sandbox(node, Some((namespace, name)))?;
        let args = (self.client.is_none()).then(|| self.raw_args(namespace, name));
        Ok(Attachment {
            node,
            sandbox,
            args,
            result: None,
            reported: None,
        })
    }

    /// Returns the CNI_ARGS of a runtime that does not validate names.
    fn raw_args(&mut self, namespace: &str, name: &str) -> OsString {
        let mut args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=").into_bytes();
        args.extend(name.bytes().filter(|byte| *byte != 0));
        if self.rng.u32(..8) == 0 {
            args.extend([0xff, 0xfe, 0x80]);
        }
        OsString::from_vec(args)
    }

    /// Returns the present UID of a pod; `None` if the pod is missing, empty without Kubernetes.
    pub(crate) fn uid_of(&self, sandbox: &Sandbox) -> Result<Option<String>> {
        let (Some(client), Some((namespace, name))) = (&self.client, &sandbox.pod) else {
            return Ok(Some(String::new()));
        };
        let found = client.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))?;
        Ok(found.body["metadata"]["uid"]
            .as_str()
            .filter(|_| found.code == 200)
            .map(str::to_owned))
    }

    /// Checks that the newest sandbox of each existing pod still has the addresses that the kubelet
    /// reported.
    pub(crate) fn check_in_use(&self, held: &BTreeMap<IpAddr, String>) -> Result<()> {
        for (n, known) in self.attachments.iter().enumerate() {
            let is_newest = self.attachments[n + 1..]
                .iter()
                .all(|later| later.sandbox.pod != known.sandbox.pod);
            let (Some(result), Some(uid), true) = (&known.result, &known.reported, is_newest)
            else {
                continue;
            };
            if self.uid_of(&known.sandbox)?.as_ref() != Some(uid) {
                continue;
            }
            let handle = format!("{NETWORK}.{}", known.sandbox.container_id);
            for ip in addresses(result) {
                ensure!(
                    held.get(&ip) == Some(&handle),
                    "{ip} is in use by {known:?}, and held by {:?}",
                    held.get(&ip)
                );
            }
        }
        Ok(())
    }

    pub(crate) fn call(&self, verb: &str, attachment: &Attachment, more: &Value) -> Call {
        let call = self.nodes[attachment.node].verb_with(verb, &attachment.sandbox, more);
        match &attachment.args {
            Some(args) => call.env("CNI_ARGS", args),
            None => call,
        }
    }
}

/// Returns the beginning of a value, for the history.
pub(crate) fn short(value: &Value) -> String {
    value.to_string().chars().take(600).collect()
}
