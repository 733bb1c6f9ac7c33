//! The kinds of a control plane: definitions of custom resources, and APIServices of other servers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::controllers::await_that;
use crate::kubernetes::Client;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// Timeout until the API server no longer serves a deleted kind.
const PATIENCE: Duration = Duration::from_secs(30);

/// The kinds after the preparation.
pub(super) struct Kinds {
    /// The definitions by name, without the fields that the API server sets.
    definitions: BTreeMap<String, Value>,
    /// The specification of each APIService of another server, by name.
    aggregated: BTreeMap<String, Value>,
}

impl Kinds {
    pub(super) fn read(admin: &Client) -> Result<Kinds> {
        Ok(Kinds {
            definitions: definitions(admin)?,
            aggregated: aggregated(admin)?,
        })
    }

    /// Deletes the definitions of a test. Creates those that it has deleted, if `may_create`.
    /// Returns an error if a definition has changed.
    pub(super) fn restore(&self, admin: &Client, may_create: bool) -> Result<()> {
        let mut present = BTreeMap::new();
        await_that(PATIENCE, || {
            let all = list(admin, DEFINITIONS)?;
            let is_deleted = |one: &Value| !one["metadata"]["deletionTimestamp"].is_null();
            let are_settled = !all.iter().any(is_deleted);
            present = all.into_iter().map(definition).collect();
            Ok(are_settled)
        })
        .context("a definition is being deleted")?;
        let missing: Vec<&Value> = self
            .definitions
            .iter()
            .filter(|(name, _)| !present.contains_key(*name))
            .map(|(_, definition)| definition)
            .collect();
        ensure!(
            may_create || missing.is_empty(),
            "the test has deleted a definition"
        );
        let mut new = present;
        new.retain(|name, _| !self.definitions.contains_key(name));
        for name in new.keys() {
            let deleted = admin.delete(&format!("{DEFINITIONS}/{name}"))?;
            deleted.checked().with_context(|| name.clone())?;
        }
        await_that(PATIENCE, || self.are_gone(admin, &new)).context("a kind is still served")?;

        admin.apply_definitions(missing, |_| Ok(true))?;
        let groups = self.groups();
        await_that(PATIENCE, || Ok(groups.is_subset(&served(admin)?)))
            .context("a group is not served")?;
        ensure!(
            definitions(admin)? == self.definitions,
            "the test has changed a definition"
        );
        Ok(())
    }

    /// Returns an error if an APIService of another server was created, changed or deleted.
    pub(super) fn compare_aggregated(&self, admin: &Client) -> Result<()> {
        ensure!(
            aggregated(admin)? == self.aggregated,
            "the test has changed an APIService"
        );
        Ok(())
    }

    fn groups(&self) -> BTreeSet<String> {
        self.definitions.values().map(group).collect()
    }

    /// Returns true if the API server neither serves nor describes nor stores these kinds.
    fn are_gone(&self, admin: &Client, kinds: &BTreeMap<String, Value>) -> Result<bool> {
        if kinds.is_empty() {
            return Ok(true);
        }
        let (kept, served) = (self.groups(), served(admin)?);
        let described = admin.get("/openapi/v3")?.checked()?["paths"].take();
        let described = described.as_object();
        for definition in kinds.values() {
            let group = group(definition);
            let is_served = if kept.contains(&group) {
                is_resource(admin, definition)?
            } else {
                let schema = format!("apis/{group}/");
                let mut paths = described.into_iter().flat_map(|paths| paths.keys());
                served.contains(&group) || paths.any(|path| path.starts_with(&schema))
            };
            if is_served {
                return Ok(false);
            }
        }
        // The list of definitions is long.
        let stored = definitions(admin)?;
        Ok(!kinds.keys().any(|name| stored.contains_key(name)))
    }
}

fn group(definition: &Value) -> String {
    definition["spec"]["group"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Returns true if the API server lists the resource of a definition.
fn is_resource(admin: &Client, definition: &Value) -> Result<bool> {
    let plural = &definition["spec"]["names"]["plural"];
    for version in definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let version = version["name"].as_str().unwrap_or_default();
        let known = admin.get(&format!("/apis/{}/{version}", group(definition)))?;
        let mut resources = known.body["resources"].as_array().into_iter().flatten();
        if resources.any(|resource| resource["name"] == *plural) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the names of the groups that the API server lists.
fn served(admin: &Client) -> Result<BTreeSet<String>> {
    let known = admin.get("/apis")?.checked()?;
    let groups = known["groups"].as_array().into_iter().flatten();
    Ok(groups
        .filter_map(|group| group["name"].as_str().map(str::to_owned))
        .collect())
}

fn definitions(admin: &Client) -> Result<BTreeMap<String, Value>> {
    let all = list(admin, DEFINITIONS)?.into_iter();
    Ok(all.map(definition).collect())
}

/// Returns the name of a stored definition, and the definition as a test would apply it.
fn definition(mut stored: Value) -> (String, Value) {
    let name = name(&stored);
    let mut metadata = json!({ "name": name });
    for texts in ["labels", "annotations"] {
        if let Some(present) = stored["metadata"].get(texts) {
            metadata[texts] = present.clone();
        }
    }
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": metadata, "spec": stored["spec"].take(),
    });
    (name, definition)
}

fn aggregated(admin: &Client) -> Result<BTreeMap<String, Value>> {
    let all = list(admin, API_SERVICES)?.into_iter();
    let others = all.filter(|one| !one["spec"]["service"].is_null());
    Ok(others
        .map(|mut one| (name(&one), one["spec"].take()))
        .collect())
}

fn list(admin: &Client, path: &str) -> Result<Vec<Value>> {
    match admin.get(path)?.checked()?["items"].take() {
        Value::Array(items) => Ok(items),
        other => anyhow::bail!("{path} is no list: {other}"),
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
