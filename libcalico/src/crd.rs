//! The CustomResourceDefinitions of the kinds that [`definitions`] lists, in both API groups, and
//! that of DatastoreMigration. `make generate` writes them to `deploy/crds`.
//!
//! Each schema is generated from a Rust type, for some kinds from a type of [`crate::api`]. `ipam`
//! and `policy` contain types of which only the schema is used.
//!
//! The files `ipam`, `network`, `configuration` and `policy` add the constraints that a type cannot
//! express. These are upstream's (DS-54, DS-55). Read `custom_resource` first.

mod configuration;
mod custom_resource;
mod ipam;
mod migration;
mod network;
mod policy;
mod structural;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use crate::kubernetes::ApiGroup;

pub use custom_resource::{Condition, Conditions};
pub use ipam::{AllocationAttribute, BlockAffinitySpec, IpamBlockSpec, IpamHandleSpec};

const HEADER: &str = "# Made by `make generate` from libcalico/src/crd; do not edit.\n";

/// Returns the definitions of a group, ordered by plural.
pub fn definitions(group: ApiGroup) -> Vec<Value> {
    [
        ipam::affinity(group),
        configuration::cluster_information(group),
        policy::global(group),
        network::host_endpoint(group),
        ipam::block(group),
        ipam::settings(group),
        ipam::handle(group),
        network::pool(group),
        network::reservation(group),
        configuration::kube_controllers(group),
        policy::in_namespace(group),
        policy::staged_global(group),
        policy::staged_in_namespace(group),
        policy::tier(group),
    ]
    .into()
}

/// The list of a folder's files for kustomize. It has no extension, because `kubectl apply -f`
/// applies every `.yaml`.
const KUSTOMIZATION: &str = "Kustomization";

/// Returns the paths below `deploy/crds` and the content of the files.
pub fn generated_files() -> Result<Vec<(String, String)>, serde_norway::Error> {
    let mut files = Vec::new();
    for (folder, definitions) in [
        ("v1", definitions(ApiGroup::CrdV1)),
        ("v3", definitions(ApiGroup::V3)),
        ("migration", vec![migration::datastore_migration()]),
    ] {
        let mut names = Vec::new();
        for definition in definitions {
            let plural = definition["spec"]["names"]["plural"]
                .as_str()
                .unwrap_or_default();
            let name = format!("{plural}.yaml");
            files.push((
                format!("{folder}/{name}"),
                format!("{HEADER}{}", serde_norway::to_string(&definition)?),
            ));
            names.push(name);
        }
        let list = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": KUSTOMIZATION,
            "resources": names,
        });
        files.push((
            format!("{folder}/{KUSTOMIZATION}"),
            format!("{HEADER}{}", serde_norway::to_string(&list)?),
        ));
    }
    Ok(files)
}
