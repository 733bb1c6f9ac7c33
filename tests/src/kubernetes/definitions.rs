//! Definitions of Calico's custom resources that take any object, for tests to which the schemas do not matter.

use serde_json::json;

use super::ApiServer;

impl ApiServer {
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
