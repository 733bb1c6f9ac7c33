//! Calico's objects of one API group, and pods, by the keys and in the form of the recordings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::client::Client;

/// Every pod there is.
const PODS: &str = "/api/v1/pods";

/// What the API server alone decides.
const SERVER_FIELDS: [&str; 5] = ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"];

/// Content of an API server: `<plural>/<name>` → object, `<plural>/<namespace>/<name>` for what has a namespace.
#[derive(Debug, Clone)]
pub struct Objects {
    client: Client,
    group: ApiGroup,
    kubeconfig: PathBuf,
}

impl Objects {
    /// The objects that `client` may reach in a group. The plugins are told to use `kubeconfig`.
    pub fn new(client: &Client, group: ApiGroup, kubeconfig: PathBuf) -> Objects {
        Objects { client: client.clone(), group, kubeconfig }
    }

    /// Who reaches them.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The API group.
    pub fn group(&self) -> ApiGroup {
        self.group
    }

    /// The file that the plugins find the server with.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Creates each object; what the server decides, it decides anew.
    pub fn load(&self, content: &BTreeMap<String, Value>) -> Result<()> {
        for (key, object) in content {
            let mut object = object.clone();
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.retain(|name, _| !SERVER_FIELDS.contains(&name.as_str()));
            }
            let (plural, _) = key.split_once('/').with_context(|| format!("{key} is no key of an object"))?;
            self.client.create(&self.collection(plural), &object)?.success().with_context(|| key.clone())?;
        }
        Ok(())
    }

    /// Replaces an object, or creates it.
    pub fn put(&self, key: &str, object: &Value) -> Result<()> {
        if self.client.get(&self.collection(key))?.code == 404 {
            return self.load(&BTreeMap::from([(key.to_owned(), object.clone())]));
        }
        self.client.replace(&self.collection(key), object)?.success().with_context(|| key.to_owned()).map(drop)
    }

    /// Deletes an object.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.client.delete(&self.collection(key))?.success().with_context(|| key.to_owned()).map(drop)
    }

    /// Every object of the group, and of every pod its annotations, labels, addresses and phase. The generation is 0
    /// everywhere, as the recorder wrote it down.
    pub fn dump(&self) -> Result<BTreeMap<String, Value>> {
        let mut content = BTreeMap::new();
        for plural in self.plurals()? {
            for mut object in self.list(&self.collection(&plural))? {
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
        for plural in self.plurals()? {
            let collection = self.collection(&plural);
            let objects = self.list(&collection)?;
            // What has namespaces is deleted as a whole in each of them only.
            let namespaced = objects.iter().any(|object| object["metadata"]["namespace"].is_string());
            if !namespaced && !objects.is_empty() {
                self.client.delete(&collection)?.success().with_context(|| plural.clone())?;
            }
            for object in objects.iter().filter(|_| namespaced) {
                self.delete(&format!("{plural}/{}", name(object)?))?;
            }
        }
        for pod in self.list(PODS)? {
            let name = name(&pod)?.replace('/', "/pods/");
            self.client.delete(&format!("/api/v1/namespaces/{name}"))?.success().context(name)?;
        }
        let left = self.dump()?;
        ensure!(left.is_empty(), "still there: {:?}", left.keys());
        Ok(())
    }

    /// A collection, or the path of an object of the group.
    fn collection(&self, key: &str) -> String {
        let group = self.group.api_version();
        match key.split('/').collect::<Vec<_>>()[..] {
            [plural, namespace, name] => format!("/apis/{group}/namespaces/{namespace}/{plural}/{name}"),
            _ => format!("/apis/{group}/{key}"),
        }
    }

    /// What is defined in the group.
    fn plurals(&self) -> Result<Vec<String>> {
        let path = format!("/apis/{}", self.group.api_version());
        let known = self.client.get(&path)?.success().context(path)?;
        let names = known["resources"].as_array().into_iter().flatten().filter_map(|r| r["name"].as_str());
        Ok(names.filter(|name| !name.contains('/')).map(str::to_owned).collect())
    }

    fn list(&self, path: &str) -> Result<Vec<Value>> {
        let mut list = self.client.get(path)?.success().with_context(|| path.to_owned())?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            other => anyhow::bail!("{path} is no list: {other}"),
        }
    }
}

/// `<name>`, or `<namespace>/<name>`.
fn name(object: &Value) -> Result<String> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().with_context(|| format!("an object has no name: {object}"))?;
    Ok(metadata["namespace"].as_str().map_or(name.to_owned(), |namespace| format!("{namespace}/{name}")))
}
