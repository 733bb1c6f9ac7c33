//! The CustomResourceDefinitions of Calico's kinds in both API groups. `make generate` writes them to `deploy/crds/v1`
//! and `deploy/crds/v3`.
//!
//! The schema of most kinds is generated from the types of [`crate::api`]. Blocks, affinities and handles are stored in
//! another form than in etcd ([`crate::kubernetes`]); this folder has types for that form, of which only the schema is
//! used.
//!
//! A file for each kind adds the constraints that a type cannot express: required fields, defaults of the API server,
//! rules across fields, the columns of `kubectl get`. All of these are upstream's (DS-54, DS-55), so that the objects
//! of both programs are accepted and keep all their fields; the descriptions are ours. The module `structural` converts
//! a type's schema to the form that the API server requires. Read `custom_resource` first.

mod block_affinity;
mod cluster_information;
mod condition;
mod custom_resource;
mod field;
mod host_endpoint;
mod ip_pool;
mod ip_reservation;
mod ipam_block;
mod ipam_config;
mod ipam_handle;
mod kube_controllers_configuration;
mod policy;
mod structural;
#[cfg(test)]
mod tests;
mod tier;

use serde_json::{Value, json};

use crate::kubernetes::ApiGroup;

pub use block_affinity::BlockAffinitySpec;
pub use condition::{Condition, Conditions};
pub use ipam_block::{AllocationAttribute, IpamBlockSpec};
pub use ipam_handle::IpamHandleSpec;

/// The first line of each file.
const HEADER: &str = "# Made by `make generate` from libcalico/src/crd; do not edit.\n";

/// Returns the definitions of a group, ordered by plural.
pub fn definitions(group: ApiGroup) -> Vec<Value> {
    [
        block_affinity::definition(group),
        cluster_information::definition(group),
        policy::global(group),
        host_endpoint::definition(group),
        ipam_block::definition(group),
        ipam_config::definition(group),
        ipam_handle::definition(group),
        ip_pool::definition(group),
        ip_reservation::definition(group),
        kube_controllers_configuration::definition(group),
        policy::in_namespace(group),
        policy::staged_global(group),
        policy::staged_in_namespace(group),
        tier::definition(group),
    ]
    .into()
}

/// The file that lists a folder's files for kustomize. It has no extension, because `kubectl apply -f` applies every
/// `.yaml`.
const LIST: &str = "Kustomization";

/// Returns the paths below `deploy/crds` and the content of the files.
pub fn published() -> Result<Vec<(String, String)>, serde_norway::Error> {
    let mut files = Vec::new();
    for (folder, group) in [("v1", ApiGroup::CrdV1), ("v3", ApiGroup::V3)] {
        let mut names = Vec::new();
        for definition in definitions(group) {
            let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
            let name = format!("{plural}.yaml");
            files.push((format!("{folder}/{name}"), format!("{HEADER}{}", serde_norway::to_string(&definition)?)));
            names.push(name);
        }
        let list = json!({ "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": LIST, "resources": names });
        files.push((format!("{folder}/{LIST}"), format!("{HEADER}{}", serde_norway::to_string(&list)?)));
    }
    Ok(files)
}
