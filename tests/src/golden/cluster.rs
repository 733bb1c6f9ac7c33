//! The Kubernetes objects of a recording, as the recorder created them: nodes, the namespace, pods.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::recording::Pod;
use crate::command::ip_json;
use crate::kubernetes::{ApiServer, Client, ENDPOINT, Identity, Objects};
use crate::namespaces::Host;

/// The namespace of every recorded pod.
pub const NAMESPACE: &str = "golden";

/// The nodes in the recorded calls.
pub const NODES: [&str; 2] = ["node1", "node2"];

const KUBECONFIG: &str = "pki/admin.kubeconfig";

/// Returns the directory of `<lab>` on a host.
pub fn lab(host: &Host) -> PathBuf {
    host.dir("recorder")
}

/// Creates the nodes and the namespace.
pub fn prepare(api: &ApiServer) -> Result<()> {
    for name in NODES {
        let spec =
            json!({ "podCIDR": "10.244.7.0/24", "podCIDRs": ["10.244.7.0/24", "fd00:244:7::/64"] });
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "spec": spec,
        });
        api.admin().apply_object(&node)?;
    }
    api.namespace(NAMESPACE)
}

/// Writes the kubeconfig that the recorded configurations name, for one identity.
pub fn write_kubeconfig(host: &Host, api: &ApiServer, identity: &Identity) -> Result<PathBuf> {
    let path = lab(host).join(KUBECONFIG);
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    fs::write(
        &path,
        identity.kubeconfig(ENDPOINT, &api.authority_certificate())?,
    )?;
    Ok(path)
}

/// Applies the manifest of a pod, which creates the pod unless it exists.
pub fn create_pod(client: &Client, pod: &Pod) -> Result<()> {
    client
        .apply_object(&manifest(pod))
        .with_context(|| format!("pod {}", pod.name))
        .map(drop)
}

/// Deletes a pod of the recordings.
pub fn delete_pod(client: &Client, name: &str) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}");
    client.delete(&path)?.checked().context(path).map(drop)
}

/// Returns a pod with the annotation of the recorder's `kubectl apply`.
fn manifest(pod: &Pod) -> Value {
    let mut manifest = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "annotations": pod.annotations, "labels": pod.labels, "name": pod.name,
            "namespace": pod.namespace,
        },
        "spec": {
            "containers": [{ "image": "x", "name": "c", "ports": pod.ports }],
            "nodeName": pod.node,
        },
    });
    let applied = format!("{manifest}\n");
    manifest["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
        json!(applied);
    manifest
}

/// Deletes the objects that a recording left behind, and waits until its links are gone.
pub fn clear(api: &ApiServer, group: ApiGroup) -> Result<()> {
    Objects::new(api.admin(), group, api.admin_kubeconfig()).clear()?;
    // The links of a deleted network namespace disappear a little later; `lo` remains.
    let deadline = Instant::now() + Duration::from_secs(60);
    while ip_json("link show")?
        .as_array()
        .is_some_and(|links| links.len() > 1)
    {
        ensure!(
            Instant::now() < deadline,
            "links of the last recording are still there"
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
