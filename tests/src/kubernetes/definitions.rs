//! Calico's custom resources, as `deploy/crds` defines them, those that it lacks, and KubeVirt's.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libcalico::kubernetes::{ApiGroup, Resource};
use libcalico::migration::moved_kinds;
use serde_json::{Value, json};

use super::manifest::objects;
use super::{ApiServer, Client};
use crate::controllers::await_that;
use crate::manifests::deploy;

const MACHINES: [(&str, &str); 2] = [
    ("VirtualMachine", "virtualmachines"),
    ("VirtualMachineInstance", "virtualmachineinstances"),
];
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Timeout until the list of groups has changed. The server prepares each kind with much processor
/// time.
const PATIENCE: Duration = Duration::from_secs(180);

impl Client {
    /// Deletes all definitions of Calico's kinds with all objects, and waits until no Calico group
    /// is served.
    pub fn undefine(&self) -> Result<()> {
        for name in self.calicos()? {
            self.delete(&format!("{DEFINITIONS}/{name}"))?.checked()?;
        }
        await_that(PATIENCE, || {
            let groups = self.get("/apis")?.checked()?;
            Ok(self.calicos()?.is_empty() && !groups.to_string().contains("projectcalico.org"))
        })
    }

    fn calicos(&self) -> Result<Vec<String>> {
        let all = self.get(DEFINITIONS)?.checked()?;
        let names = all["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| item["metadata"]["name"].as_str());
        Ok(names
            .filter(|name| name.ends_with("projectcalico.org"))
            .map(str::to_owned)
            .collect())
    }
}

impl ApiServer {
    /// Defines the kinds of an API group and version, and waits until they are served.
    pub fn define(&self, api_version: &str) -> Result<()> {
        self.admin()
            .apply_definitions(&definitions(api_version)?, |_| Ok(true))
    }

    /// Does the same, but leaves existing definitions and the owners of their fields unchanged.
    pub fn ensure_defined(&self, api_version: &str) -> Result<()> {
        let admin = self.admin();
        admin.apply_definitions(&definitions(api_version)?, |path| {
            Ok(admin.get(path)?.code == 404)
        })
    }

    /// Defines the kinds of an API group and version that a migration copies and `deploy/crds`
    /// lacks, and waits until they are served. Their schema accepts any field.
    pub fn define_others(&self, api_version: &str) -> Result<()> {
        let admin = self.admin();
        let kinds = moved_kinds()
            .into_iter()
            .flat_map(|moved| [moved.v1, moved.v3]);
        let kinds = kinds.filter(|kind| kind.api_version == api_version);
        let definitions: Vec<Value> = kinds
            .map(|kind| open_definition(&kind))
            .collect::<Result<_>>()?;
        admin.apply_definitions(&definitions, |path| Ok(admin.get(path)?.code == 404))
    }

    /// Defines DatastoreMigration, and in both groups all kinds that a migration copies.
    pub fn define_for_migration(&self) -> Result<()> {
        for folder in ["v1", "v3", "migration"] {
            self.admin()
                .apply_definitions(&definitions(folder)?, |_| Ok(true))?;
        }
        [ApiGroup::CrdV1, ApiGroup::V3]
            .into_iter()
            .try_for_each(|group| self.define_others(group.api_version()))
    }

    /// Defines a kind whose schema accepts any field.
    pub fn define_open(&self, resource: &Resource) -> Result<()> {
        self.admin()
            .apply_object(&open_definition(resource)?)
            .map(drop)
    }

    /// Defines KubeVirt's kinds of VMs and VMIs. Their schema accepts any field.
    pub fn define_machines(&self) -> Result<()> {
        for (kind, plural) in MACHINES {
            let resource = Resource {
                api_version: "kubevirt.io/v1",
                kind,
                plural,
                namespaced: true,
            };
            self.define_open(&resource)?;
        }
        Ok(())
    }

    /// Deletes the definitions of KubeVirt's kinds with all objects.
    pub fn undefine_machines(&self) -> Result<()> {
        for (_, plural) in MACHINES {
            let path = format!("{DEFINITIONS}/{plural}.kubevirt.io");
            self.admin().delete(&path)?.checked()?;
        }
        Ok(())
    }

    /// Waits until the server lists an API group, a moment after it serves the group's kinds.
    pub fn await_group(&self, group: &str) -> Result<()> {
        await_that(PATIENCE, || {
            let known = self.admin().get("/apis")?.checked()?;
            Ok(known["groups"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|known| known["name"] == group))
        })
        .with_context(|| format!("{group} is not among the API groups"))
    }

    /// Waits until the server publishes the schema of a kind, a moment after it serves the kind.
    /// kubectl validates with the schema.
    pub fn await_schema(&self, api_version: &str, kind: &str) -> Result<()> {
        let described = format!(r#""kind":"{kind}""#);
        await_that(PATIENCE, || {
            let answer = self
                .admin()
                .get(&format!("/openapi/v3/apis/{api_version}"))?;
            Ok(answer.code == 200 && answer.body.to_string().contains(&described))
        })
        .with_context(|| format!("the schema of {kind} in {api_version} is not published"))
    }
}

/// Returns the definition of a kind whose schema accepts any field.
fn open_definition(resource: &Resource) -> Result<Value> {
    let Resource { kind, plural, .. } = resource;
    let (group, version) = resource
        .api_version
        .split_once('/')
        .context("GROUP/VERSION")?;
    let scope = if resource.namespaced {
        "Namespaced"
    } else {
        "Cluster"
    };
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = json!({
        "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
    });
    Ok(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": scope, "versions": [version],
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
        },
    }))
}

/// Reads the definitions of a folder of `deploy/crds`.
fn definitions(api_version: &str) -> Result<Vec<Value>> {
    let version = api_version.rsplit('/').next().context("GROUP/VERSION")?;
    let folder = deploy("crds").join(version);
    let mut definitions = Vec::new();
    for file in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = file?.path();
        // `kubectl apply -f` skips the file `Kustomization`, too.
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            definitions.extend(objects(&fs::read_to_string(path)?)?);
        }
    }
    ensure!(!definitions.is_empty(), "{} is empty", folder.display());
    Ok(definitions)
}
