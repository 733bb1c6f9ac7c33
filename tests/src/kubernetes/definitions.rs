//! Calico's custom resources, as `deploy/crds` defines them, and KubeVirt's.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{ApiServer, Client};
use crate::controllers::await_that;

/// Kind and plural of KubeVirt's machines and of their instances.
const MACHINES: [(&str, &str); 2] =
    [("VirtualMachine", "virtualmachines"), ("VirtualMachineInstance", "virtualmachineinstances")];
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How long a group may take to be listed.
const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    /// Removes all definitions of Calico's kinds, with all objects. No group of Calico's is served when this returns.
    pub fn undefine(&self) -> Result<()> {
        for name in self.calicos()? {
            self.delete(&format!("{DEFINITIONS}/{name}"))?.success()?;
        }
        await_that(PATIENCE, || {
            let groups = self.get("/apis")?.success()?;
            Ok(self.calicos()?.is_empty() && !groups.to_string().contains("projectcalico.org"))
        })
    }

    /// Returns the names of the definitions of Calico's kinds.
    fn calicos(&self) -> Result<Vec<String>> {
        let all = self.get(DEFINITIONS)?.success()?;
        let names = all["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str());
        Ok(names.filter(|name| name.ends_with("projectcalico.org")).map(str::to_owned).collect())
    }
}

impl ApiServer {
    /// Defines the kinds of an API group and version: `crd.projectcalico.org/v1` or `projectcalico.org/v3`. They are
    /// served when this returns.
    pub fn define(&self, api_version: &str) -> Result<()> {
        let version = api_version.rsplit('/').next().context("GROUP/VERSION")?;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds").join(version);
        let mut count = 0;
        for file in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = file?.path();
            // The list of the files has no extension, and `kubectl apply -f` passes it by too.
            if path.extension().is_some_and(|extension| extension == "yaml") {
                self.admin().apply(&fs::read_to_string(path)?)?;
                count += 1;
            }
        }
        ensure!(count > 0, "{} is empty", folder.display());
        Ok(())
    }

    /// Defines the kinds of KubeVirt that name virtual machines, as far as Calico looks at them.
    pub fn define_machines(&self) -> Result<()> {
        for (kind, plural) in MACHINES {
            let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
            let version =
                json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } });
            self.admin().apply_object(&json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": { "name": format!("{plural}.kubevirt.io") },
                "spec": {
                    "group": "kubevirt.io", "scope": "Namespaced", "versions": [version],
                    "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
                },
            }))?;
        }
        Ok(())
    }

    /// Takes the definitions of those away, with all objects.
    pub fn undefine_machines(&self) -> Result<()> {
        for (_, plural) in MACHINES {
            let path = format!("{DEFINITIONS}/{plural}.kubevirt.io");
            self.admin().delete(&path)?.success()?;
        }
        Ok(())
    }

    /// Waits until the server says that it has an API group, a moment after it serves its kinds.
    pub fn await_group(&self, group: &str) -> Result<()> {
        await_that(PATIENCE, || {
            let known = self.admin().get("/apis")?.success()?;
            Ok(known["groups"].as_array().into_iter().flatten().any(|known| known["name"] == group))
        })
        .with_context(|| format!("{group} is not among the API groups"))
    }
}
