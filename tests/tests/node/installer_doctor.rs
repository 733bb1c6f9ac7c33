//! `calico doctor` on a node that was installed by `calico install`.

mod configuration;
mod connections;
mod credentials;
mod dead_interfaces;
mod defects;
mod etcd;
mod etcd_node;
mod files;
mod kubernetes_node;
mod leftovers;
mod pods;
mod programs;
mod proxies;
mod report;

use doctor::role::{Scope, permissions};
use integration_tests::kubernetes::Role;

const NODE: &str = "node1";

/// doctor's list of required permissions and the manifest are written separately.
#[test]
fn doctor_checks_exactly_the_permissions_that_the_manifest_grants() {
    let groups = ["crd.projectcalico.org", "projectcalico.org"];
    let asked = groups
        .into_iter()
        .flat_map(|group| permissions(Scope::Calico(group)));
    let mut asked: Vec<String> = asked.map(|permission| permission.to_string()).collect();
    asked.sort();
    asked.dedup();
    let mut granted: Vec<String> = Role::ours()
        .unwrap()
        .0
        .iter()
        .map(ToString::to_string)
        .collect();
    granted.sort();
    assert_eq!(asked, granted);
}
