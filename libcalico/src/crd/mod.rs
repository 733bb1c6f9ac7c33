//! The CustomResourceDefinitions of Calico's kinds, in both API groups: `deploy/crds/v1` and `deploy/crds/v3`, made
//! from our types by `make generate`.
//!
//! Where the v3 type is what Kubernetes stores, its schema is that of [`crate::api`]. Blocks, affinities and handles
//! are stored in another form than in etcd ([`crate::kubernetes`]); types for that form are here, and nothing but their
//! schema is used.
//!
//! A file for each kind says what a type cannot: what is required, what the API server fills in, rules across fields,
//! the columns of `kubectl get`. All of it is upstream's (DS-54, DS-55, DS-95 …), so that either program's objects pass
//! and stay whole; the words are ours. The module `structural` makes of a type's schema what the API server takes for
//! one.

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

/// What each file begins with.
const HEADER: &str = "# Made by `make generate` from libcalico/src/crd; do not edit.\n";

/// The definitions of one group, in the order of their plurals.
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

/// Lists the files of a folder for kustomize. Without an extension: `kubectl apply -f` takes every `.yaml` for an object.
const LIST: &str = "Kustomization";

/// The files below `deploy/crds` and what is in them.
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
