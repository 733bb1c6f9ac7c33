//! The files of tests/golden.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One scenario on one datastore.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Name of the file without its extension.
    pub name: String,
    /// One line.
    pub what: String,
    /// `etcd`, `kdd1` or `kdd3`: the folder it is in.
    pub datastore: String,
    /// Content before the first step.
    pub initial: BTreeMap<String, Value>,
    /// The calls, in order.
    pub steps: Vec<Step>,
}

/// One call and what came of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What was done just before.
    #[serde(default)]
    pub before: Option<Before>,
    /// `calico` or `calico-ipam`.
    pub prog: String,
    /// Arguments.
    pub argv: Vec<String>,
    /// CNI variables.
    pub env: BTreeMap<String, String>,
    /// Configuration: JSON, or a text that is sent as it is.
    pub stdin: Value,
    /// Exit status.
    pub exit: i32,
    /// Parsed stdout, or the text.
    pub stdout: Value,
    /// What was there afterwards.
    pub after: After,
}

/// Actions between calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Before {
    /// Deletes a pod's network namespace.
    DeleteNetns(String),
    /// Creates a pod in Kubernetes, or leaves it as it is.
    CreatePod(Pod),
    /// Deletes a pod of the namespace `golden` in Kubernetes.
    DeletePod(String),
}

/// A pod as the recorder created it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `spec.nodeName`.
    pub node: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Ports of its one container, as in a manifest.
    pub ports: Vec<Value>,
}

/// State after a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    /// See [`crate::kernel::host`].
    pub host: Value,
    /// See [`crate::kernel::pods`].
    pub pods: Value,
    /// Datastore content.
    pub store: Value,
}

/// tests/golden.
pub fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golden"))
}

/// Names of the recordings of one datastore, in order.
pub fn names(datastore: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in directory().join(datastore).read_dir()? {
        let file = entry?.file_name().into_string().ok().context("a file name is not UTF-8")?;
        names.push(file.strip_suffix(".json").with_context(|| format!("{file} is no recording"))?.to_owned());
    }
    names.sort();
    Ok(names)
}

/// Reads `tests/golden/<datastore>/<name>.json`.
pub fn read(datastore: &str, name: &str) -> Result<Recording> {
    let path = directory().join(datastore).join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}
