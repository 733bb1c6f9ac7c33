//! Applies manifests as `kubectl apply --server-side --force-conflicts` does.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use ureq::http::Method;

use super::client::Client;

/// The option that takes fields over from their owners.
const FORCE: &str = "force=true";

/// The pause between two requests that ask whether a definition is established. The answer is long.
const PAUSE: Duration = Duration::from_millis(50);

/// Timeout until a definition is established. Several servers may prepare their definitions at the
/// same time.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(180);

const DEFINITION: &str = "CustomResourceDefinition";

impl Client {
    /// Applies the objects of a YAML manifest as [`Client::apply_all`] does.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        self.apply_all(&objects(manifest)?)
    }

    /// Applies objects: first the CustomResourceDefinitions, and then the others, which may be
    /// objects of these definitions.
    pub fn apply_all<'o>(&self, objects: impl IntoIterator<Item = &'o Value>) -> Result<()> {
        let (definitions, others): (Vec<&Value>, Vec<&Value>) = objects
            .into_iter()
            .partition(|object| object["kind"] == DEFINITION);
        self.apply_definitions(definitions, |_| Ok(true))?;
        others
            .into_iter()
            .try_for_each(|object| self.apply_object(object).map(drop))
    }

    /// Applies the CustomResourceDefinitions that `is_wanted` selects by their URL path. Waits for
    /// all afterwards, because the server prepares them at the same time.
    pub(super) fn apply_definitions<'o>(
        &self,
        definitions: impl IntoIterator<Item = &'o Value>,
        is_wanted: impl Fn(&str) -> Result<bool>,
    ) -> Result<()> {
        let mut paths = Vec::new();
        for definition in definitions {
            let path = self.path(definition)?;
            if is_wanted(&path)? {
                self.send_apply(&path, FORCE, definition)?;
            }
            paths.push(path);
        }
        paths
            .iter()
            .try_for_each(|path| self.await_established(path))
    }

    /// Applies one object and returns the stored object.
    pub fn apply_object(&self, object: &Value) -> Result<Value> {
        let path = self.path(object)?;
        let kept = self.send_apply(&path, FORCE, object)?;
        if object["kind"] == DEFINITION {
            self.await_established(&path)?;
        }
        Ok(kept)
    }

    /// Applies one object as `kubectl apply --server-side --dry-run=server --validate=strict` does.
    pub fn dry_run(&self, object: &Value) -> Result<()> {
        let path = self.path(object)?;
        self.send_apply(&path, "dryRun=All&fieldValidation=Strict", object)
            .map(drop)
    }

    /// Applies a node that has only a name.
    pub fn node(&self, name: &str) -> Result<()> {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        self.apply_object(&node).map(drop)
    }

    /// Applies the object of a URL path and returns the stored object.
    fn send_apply(&self, path: &str, options: &str, object: &Value) -> Result<Value> {
        let query = format!("{path}?fieldManager=integration-tests&{options}");
        let answer = self.request(
            Method::PATCH,
            &query,
            "application/apply-patch+yaml",
            &object.to_string(),
        )?;
        answer.checked().with_context(|| path.to_owned())
    }

    /// Returns the URL path of an object, from the server's discovery of its kind.
    fn path(&self, object: &Value) -> Result<String> {
        let field = |value: &Value, name: &str| {
            value[name]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("an object has no {name}: {object}"))
        };
        let (version, kind) = (field(object, "apiVersion")?, field(object, "kind")?);
        let name = field(&object["metadata"], "name")?;
        let group = if version.contains('/') {
            format!("/apis/{version}")
        } else {
            format!("/api/{version}")
        };
        let resources = self.get(&group)?.checked().with_context(|| group.clone())?;
        let resources = resources["resources"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let is_it = |r: &&Value| {
            r["kind"] == kind.as_str() && !r["name"].as_str().unwrap_or("/").contains('/')
        };
        let resource = resources
            .iter()
            .find(is_it)
            .with_context(|| format!("{version} has no {kind}"))?;
        let plural = field(resource, "name")?;
        if resource["namespaced"] == true {
            let namespace = object["metadata"]["namespace"]
                .as_str()
                .unwrap_or("default");
            return Ok(format!("{group}/namespaces/{namespace}/{plural}/{name}"));
        }
        Ok(format!("{group}/{plural}/{name}"))
    }

    /// Waits until a definition is accepted and its resources are served in every version.
    fn await_established(&self, path: &str) -> Result<()> {
        let deadline = Instant::now() + ESTABLISHED_WITHIN;
        while !self.is_served(&self.get(path)?.checked()?)? {
            ensure!(Instant::now() < deadline, "{path} is not established");
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn is_served(&self, definition: &Value) -> Result<bool> {
        let conditions = definition["status"]["conditions"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        if !conditions
            .iter()
            .any(|c| c["type"] == "Established" && c["status"] == "True")
        {
            return Ok(false);
        }
        let spec = &definition["spec"];
        let (group, plural) = (
            spec["group"].as_str().unwrap_or(""),
            spec["names"]["plural"].as_str().unwrap_or(""),
        );
        for version in spec["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|v| v["served"] == true)
        {
            let version = format!("/apis/{group}/{}", version["name"].as_str().unwrap_or(""));
            let known = self.get(&version)?;
            let mut names = known.body["resources"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|r| &r["name"]);
            // Discovery and the resource itself depend on two caches of the server. A busy server
            // may not answer the first list of a new resource; without a limit, it ends the
            // connection after a minute.
            let list = format!("{version}/{plural}?limit=1&timeout=5s");
            if !names.any(|name| name == plural)
                || !self.get(&list).is_ok_and(|answer| answer.code == 200)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Parses the objects of a YAML manifest.
pub(super) fn objects(manifest: &str) -> Result<Vec<Value>> {
    let documents = serde_norway::Deserializer::from_str(manifest);
    let objects: Result<Vec<Value>, _> = documents.map(Value::deserialize).collect();
    Ok(objects
        .context("a manifest is no YAML")?
        .into_iter()
        .filter(|object| !object.is_null())
        .collect())
}
