//! Calico's objects of one API group, and pods, with the keys and in the form of the recordings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::client::Client;

const PODS: &str = "/api/v1/pods";

/// The kinds with the bookkeeping of addresses.
const IPAM: [&str; 3] = ["blockaffinities", "ipamblocks", "ipamhandles"];

/// Fields of the metadata that the API server sets.
const SERVER_FIELDS: [&str; 5] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
];

/// Access to Calico's objects and the pods of an API server, by key: `<plural>/<name>`, or
/// `<plural>/<namespace>/<name>` for a namespaced object.
#[derive(Debug, Clone)]
pub struct Objects {
    client: Client,
    group: ApiGroup,
    kubeconfig: PathBuf,
    of_nodes: BTreeMap<String, PathBuf>,
}

impl Objects {
    /// Returns the objects of a group, as `client` may access them. The plugins use `kubeconfig`.
    pub fn new(client: &Client, group: ApiGroup, kubeconfig: PathBuf) -> Objects {
        Objects {
            client: client.clone(),
            group,
            kubeconfig,
            of_nodes: BTreeMap::new(),
        }
    }

    /// Returns these objects with a kubeconfig for the plugins of each node.
    #[must_use]
    pub fn with_kubeconfigs(self, of_nodes: BTreeMap<String, PathBuf>) -> Objects {
        Objects { of_nodes, ..self }
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the API group.
    pub fn group(&self) -> ApiGroup {
        self.group
    }

    /// Returns the path of the kubeconfig of all programs without a kubeconfig of their node.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the path of the kubeconfig of a node's plugins.
    ///
    /// # Panics
    /// Panics if only other nodes have a kubeconfig of their own.
    pub fn kubeconfig_of(&self, node: &str) -> &Path {
        if self.of_nodes.is_empty() {
            return &self.kubeconfig;
        }
        self.of_nodes
            .get(node)
            .unwrap_or_else(|| panic!("the node {node:?} has no kubeconfig"))
    }

    /// Creates each object, without the metadata that the server sets.
    pub fn load(&self, content: &BTreeMap<String, Value>) -> Result<()> {
        for (key, object) in content {
            let mut object = object.clone();
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.retain(|name, _| !SERVER_FIELDS.contains(&name.as_str()));
            }
            let collection = match key.split('/').collect::<Vec<_>>()[..] {
                [plural, _] => self.collection(plural),
                [plural, namespace, _] => {
                    format!(
                        "/apis/{}/namespaces/{namespace}/{plural}",
                        self.group.api_version()
                    )
                }
                _ => anyhow::bail!("{key} is no key of an object"),
            };
            self.client
                .create(&collection, &object)?
                .checked()
                .with_context(|| key.clone())?;
        }
        Ok(())
    }

    /// Replaces an object, or creates it.
    pub fn put(&self, key: &str, object: &Value) -> Result<()> {
        if self.client.get(&self.collection(key))?.code == 404 {
            return self.load(&BTreeMap::from([(key.to_owned(), object.clone())]));
        }
        self.client
            .replace(&self.collection(key), object)?
            .checked()
            .with_context(|| key.to_owned())
            .map(drop)
    }

    /// Deletes an object.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.client
            .delete(&self.collection(key))?
            .checked()
            .with_context(|| key.to_owned())
            .map(drop)
    }

    /// Reads every object of the group, and parts of every pod. Removes `managedFields` and sets
    /// every generation to 0, as the recorder does.
    pub fn dump(&self) -> Result<BTreeMap<String, Value>> {
        self.dump_of(self.plurals()?.iter().map(String::as_str))
    }

    /// Reads the part of [`Objects::dump`] that [`Accounts`](crate::accounts::Accounts) needs, in
    /// four requests.
    pub fn dump_accounts(&self) -> Result<BTreeMap<String, Value>> {
        self.dump_of(IPAM.into_iter())
    }

    fn dump_of<'p>(
        &self,
        plurals: impl Iterator<Item = &'p str>,
    ) -> Result<BTreeMap<String, Value>> {
        let mut content = BTreeMap::new();
        for plural in plurals {
            for mut object in self.list(&self.collection(plural))? {
                let key = format!("{plural}/{}", name(&object)?);
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                    metadata.insert("generation".into(), json!(0));
                }
                content.insert(key, object);
            }
        }
        for pod in self.list(PODS)? {
            let (metadata, status) = (&pod["metadata"], &pod["status"]);
            let seen = json!({
                "annotations": metadata["annotations"], "labels": metadata["labels"],
                "phase": status["phase"], "podIPs": status["podIPs"],
            });
            content.insert(format!("pods/{}", name(&pod)?), seen);
        }
        Ok(content)
    }

    /// Deletes every object of the group and every pod.
    pub fn clear(&self) -> Result<()> {
        let mut cleared = Vec::new();
        for plural in self.plurals()? {
            let collection = self.collection(&plural);
            let objects = self.list(&collection)?;
            if objects.is_empty() {
                continue;
            }
            // Namespaced objects can be deleted as a collection only within one namespace.
            let namespaced = objects
                .iter()
                .any(|object| object["metadata"]["namespace"].is_string());
            if !namespaced {
                self.client
                    .delete(&collection)?
                    .checked()
                    .with_context(|| plural.clone())?;
            }
            for object in objects.iter().filter(|_| namespaced) {
                self.delete(&format!("{plural}/{}", name(object)?))?;
            }
            cleared.push(plural);
        }
        for pod in self.list(PODS)? {
            let name = name(&pod)?.replace('/', "/pods/");
            self.client
                .delete(&format!("/api/v1/namespaces/{name}"))?
                .checked()
                .context(name)?;
        }
        let left = self.dump_of(cleared.iter().map(String::as_str))?;
        ensure!(left.is_empty(), "still there: {:?}", left.keys());
        Ok(())
    }

    fn collection(&self, key: &str) -> String {
        let group = self.group.api_version();
        match key.split('/').collect::<Vec<_>>()[..] {
            [plural, namespace, name] => {
                format!("/apis/{group}/namespaces/{namespace}/{plural}/{name}")
            }
            _ => format!("/apis/{group}/{key}"),
        }
    }

    fn plurals(&self) -> Result<Vec<String>> {
        let path = format!("/apis/{}", self.group.api_version());
        let known = self.client.get(&path)?.checked().context(path)?;
        let names = known["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|r| r["name"].as_str());
        Ok(names
            .filter(|name| !name.contains('/'))
            .map(str::to_owned)
            .collect())
    }

    fn list(&self, path: &str) -> Result<Vec<Value>> {
        let mut list = self
            .client
            .get(path)?
            .checked()
            .with_context(|| path.to_owned())?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            other => anyhow::bail!("{path} is no list: {other}"),
        }
    }
}

/// Returns `<name>`, or `<namespace>/<name>`.
fn name(object: &Value) -> Result<String> {
    let metadata = &object["metadata"];
    let name = metadata["name"]
        .as_str()
        .with_context(|| format!("an object has no name: {object}"))?;
    Ok(metadata["namespace"]
        .as_str()
        .map_or(name.to_owned(), |namespace| format!("{namespace}/{name}")))
}
