//! The files of tests/golden/calicoctl: courses of upstream's `calicoctl ipam` and
//! `calicoctl datastore migrate`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::recording;

const INITIAL: &str = "initial";
const PODS_AND_SERVICES: &str = "pods-and-services";

/// The steps of one folder, each on the state that the previous one left.
#[derive(Debug, Clone)]
pub struct Course {
    /// Name of the folder.
    pub name: String,
    /// The whole datastore before the first step.
    pub initial: BTreeMap<String, Value>,
    /// The steps in order, each with the name of its file without the extension.
    pub steps: Vec<(String, Step)>,
}

/// A call of calicoctl and its effects.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The special circumstance of the step, or empty.
    pub why: String,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables that differ from those of the course.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Exit status.
    pub exit: i32,
    /// Everything on stdout.
    pub stdout: String,
    /// Everything on stderr.
    pub stderr: String,
    /// Files that the step reads, by name.
    pub files_before: BTreeMap<String, String>,
    /// Files that the step wrote, by name.
    pub files_after: BTreeMap<String, String>,
    /// The keys of the datastore that the step changed, with their new value; `None` for a deleted
    /// key.
    pub changed: BTreeMap<String, Option<Value>>,
}

/// Returns the names of the files of a course without the extension, sorted.
pub fn names(course: &str) -> Result<Vec<String>> {
    recording::names(&format!("calicoctl/{course}"))
}

impl Course {
    /// Reads `tests/golden/calicoctl/<name>`.
    pub fn read(name: &str) -> Result<Course> {
        let is_step = |file: &String| file != INITIAL && file != PODS_AND_SERVICES;
        let mut steps = Vec::new();
        for file in names(name)?.into_iter().filter(is_step) {
            let step: Step = read(name, &file)?;
            steps.push((file, step));
        }
        Ok(Course {
            name: name.to_owned(),
            initial: content(read(name, INITIAL)?)?,
            steps,
        })
    }

    /// Returns the step that begins with this number, such as `03`.
    pub fn step(&self, number: &str) -> Result<&Step> {
        Ok(&self.steps[self.position(number)?].1)
    }

    /// Returns the datastore before the step that begins with this number: the initial content with
    /// the changes of all earlier steps.
    pub fn content_before(&self, number: &str) -> Result<BTreeMap<String, Value>> {
        let mut content = self.initial.clone();
        for (key, value) in self.steps[..self.position(number)?]
            .iter()
            .flat_map(|(_, step)| &step.changed)
        {
            match value {
                Some(value) => content.insert(key.clone(), value.clone()),
                None => content.remove(key),
            };
        }
        Ok(content)
    }

    /// Reads the pods and Services of a course on Kubernetes, if there are any.
    pub fn pods_and_services(&self) -> Result<Vec<Value>> {
        if !names(&self.name)?
            .iter()
            .any(|file| file == PODS_AND_SERVICES)
        {
            return Ok(Vec::new());
        }
        read(&self.name, PODS_AND_SERVICES)
    }

    fn position(&self, number: &str) -> Result<usize> {
        let is_it = |(name, _): &(String, Step)| name.split('-').next() == Some(number);
        self.steps
            .iter()
            .position(is_it)
            .with_context(|| format!("{} has no step {number}", self.name))
    }
}

impl Step {
    /// Returns the arguments after `calicoctl ipam`.
    pub fn ipam_arguments(&self) -> &[String] {
        self.argv.get(2..).unwrap_or_default()
    }
}

/// Parses an initial state. The recorder wrote an empty one as a list.
fn content(state: Value) -> Result<BTreeMap<String, Value>> {
    match state {
        Value::Array(items) if items.is_empty() => Ok(BTreeMap::new()),
        state => Ok(serde_json::from_value(state)?),
    }
}

fn read<T: DeserializeOwned>(course: &str, file: &str) -> Result<T> {
    let path: PathBuf = recording::directory()
        .join("calicoctl")
        .join(course)
        .join(format!("{file}.json"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_before_a_step_contains_the_changes_of_earlier_steps() {
        let course = Course::read("etcd-ipam").unwrap();
        let pool = "/calico/resources/v3/projectcalico.org/ippools/big";
        assert!(course.content_before("30").unwrap().contains_key(pool));
        let after = course.content_before("31").unwrap();
        assert!(
            !after.contains_key(pool) && after.contains_key(&pool.replace("big", "split-big-0"))
        );
        assert!(course.content_before("99").is_err());
        assert_eq!(
            course.step("30").unwrap().ipam_arguments(),
            ["split", "4", "--name=big"]
        );
    }
}
