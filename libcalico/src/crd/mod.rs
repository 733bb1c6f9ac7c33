//! The CustomResourceDefinitions of the kinds that [`definitions`] lists, in both API groups. FelixConfiguration,
//! BGPConfiguration and BGPPeer have no definition here. `make generate` writes the definitions to `deploy/crds/v1` and
//! `deploy/crds/v3`.
//!
//! Each schema is generated from a Rust type, in most cases from a type of [`crate::api`]. Blocks, affinities and
//! handles are stored in another form than in etcd ([`crate::kubernetes`]), and policies have more fields than our
//! programs use. `ipam` and `policy` contain types for these, of which only the schema is used.
//!
//! The files `ipam`, `network`, `configuration` and `policy` add the constraints that a type cannot express: required
//! fields, defaults of the API server, rules across fields, the columns of `kubectl get`. All of these are upstream's
//! (DS-54, DS-55), so that the objects of both programs are accepted and keep all their fields; the descriptions are
//! ours. The module `structural` converts a type's schema to the form that the API server requires. Read
//! `custom_resource` first.

mod configuration;
mod custom_resource;
mod ipam;
mod network;
mod policy;
mod structural;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use crate::kubernetes::ApiGroup;

pub use custom_resource::{Condition, Conditions};
pub use ipam::{AllocationAttribute, BlockAffinitySpec, IpamBlockSpec, IpamHandleSpec};

/// The first line of each file.
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

/// The file that lists a folder's files for kustomize. It has no extension, because `kubectl apply -f` applies every
/// `.yaml`.
const KUSTOMIZATION: &str = "Kustomization";

/// Returns the paths below `deploy/crds` and the content of the files.
pub fn generated_files() -> Result<Vec<(String, String)>, serde_norway::Error> {
    let mut files = Vec::new();
    for (folder, group) in [("v1", ApiGroup::CrdV1), ("v3", ApiGroup::V3)] {
        let mut names = Vec::new();
        for definition in definitions(group) {
            let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
            let name = format!("{plural}.yaml");
            files.push((format!("{folder}/{name}"), format!("{HEADER}{}", serde_norway::to_string(&definition)?)));
            names.push(name);
        }
        let list =
            json!({ "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": KUSTOMIZATION, "resources": names });
        files.push((format!("{folder}/{KUSTOMIZATION}"), format!("{HEADER}{}", serde_norway::to_string(&list)?)));
    }
    Ok(files)
}
