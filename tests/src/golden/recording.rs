//! The files of tests/golden.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A scenario on one datastore.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Name of the file without its extension.
    pub name: String,
    /// Description, one line.
    pub what: String,
    /// `etcd`, `kdd1` or `kdd3`: the folder of the file.
    pub datastore: String,
    /// Content before the first step.
    pub initial: BTreeMap<String, Value>,
    /// The calls, in order.
    pub steps: Vec<Step>,
}

/// A call and its result.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Action before the call.
    #[serde(default)]
    pub before: Option<Before>,
    /// `calico` or `calico-ipam`.
    pub prog: String,
    /// Arguments.
    pub argv: Vec<String>,
    /// CNI variables.
    pub env: BTreeMap<String, String>,
    /// Configuration: JSON, or a string that is sent unchanged.
    pub stdin: Value,
    /// Exit status.
    pub exit: i32,
    /// Parsed stdout, or a string if it is not JSON.
    pub stdout: Value,
    /// State after the call.
    pub after: After,
}

/// Actions between calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Before {
    /// Deletes a pod's network namespace.
    DeleteNetns(String),
    /// Applies the manifest of a Pod, which creates the Pod unless it exists.
    CreatePod(Pod),
    /// Deletes a Pod of the namespace `golden`.
    DeletePod(String),
}

/// A pod as the recorder created it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `spec.nodeName`.
    pub node: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Ports of its only container, as in a manifest.
    pub ports: Vec<Value>,
}

/// State after a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    /// Kernel state of the host, as [`crate::kernel::host`] returns it.
    pub host: Value,
    /// Kernel state of the pods, as [`crate::kernel::pods`] returns it.
    pub pods: Value,
    /// Datastore content.
    pub store: Value,
}

/// Returns the directory tests/golden.
pub fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golden"))
}

/// Returns the names of the recordings of one datastore, sorted.
pub fn names(datastore: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in directory().join(datastore).read_dir()? {
        let file = entry?
            .file_name()
            .into_string()
            .ok()
            .context("a file name is not UTF-8")?;
        names.push(
            file.strip_suffix(".json")
                .with_context(|| format!("{file} is no recording"))?
                .to_owned(),
        );
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
