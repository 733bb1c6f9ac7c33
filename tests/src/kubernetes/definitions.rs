//! Definitions of Calico's custom resources: those of deploy/crds, and some that take any object, for tests to which
//! the schemas do not matter.

use std::fs;
use std::path::Path;

use anyhow::Result;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use super::ApiServer;

/// The folder of the definitions that are installed.
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds");

impl ApiServer {
    /// Defines the kinds of an API group as an installation does.
    pub fn define(&self, group: ApiGroup) -> Result<()> {
        let folder = match group {
            ApiGroup::CrdV1 => "v1",
            ApiGroup::V3 => "v3",
        };
        for file in Path::new(INSTALLED).join(folder).read_dir()? {
            self.admin().apply(&fs::read_to_string(file?.path())?)?;
        }
        Ok(())
    }

    /// Defines the kinds of an API group and version, `projectcalico.org/v3`.
    ///
    /// # Panics
    /// When the API server refuses.
    pub fn define_anything(&self, api_version: &str) {
        let config = match api_version {
            "projectcalico.org/v3" => ("IPAMConfiguration", "ipamconfigurations"),
            _ => ("IPAMConfig", "ipamconfigs"),
        };
        let (group, version) = api_version.split_once('/').expect("GROUP/VERSION");
        for (kind, plural) in [
            ("ClusterInformation", "clusterinformations"),
            ("IPPool", "ippools"),
            ("IPReservation", "ipreservations"),
            ("IPAMBlock", "ipamblocks"),
            ("BlockAffinity", "blockaffinities"),
            ("IPAMHandle", "ipamhandles"),
            config,
        ] {
            let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
            let definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": { "name": format!("{plural}.{group}") },
                "spec": {
                    "group": group,
                    "scope": "Cluster",
                    "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
                    "versions": [{
                        "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
                    }],
                },
            });
            self.admin().apply(&definition.to_string()).expect("a definition");
        }
    }
}
