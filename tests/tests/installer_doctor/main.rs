//! `calico doctor` on a node that was installed by `calico install`, with a real API server and the role of `deploy/rbac`: a
//! good node, and one thing broken at a time; the same on an etcd; and what processes and pods left behind.

mod broken;
mod configuration;
mod credentials;
mod etcd;
mod leftovers;
mod programs;
mod scene;

use installer::doctor::role::{Scope, permissions};
use integration_tests::kubernetes::Role;

/// What doctor asks for is what the manifest grants: the two read it apart.
#[test]
fn what_is_asked_for_is_what_the_manifest_grants() {
    let groups = ["crd.projectcalico.org", "projectcalico.org"];
    let asked = groups.into_iter().flat_map(|group| permissions(Scope::Calico(group)));
    let mut asked: Vec<String> = asked.map(|permission| permission.to_string()).collect();
    asked.sort();
    asked.dedup();
    let mut granted: Vec<String> = Role::ours().unwrap().0.iter().map(ToString::to_string).collect();
    granted.sort();
    assert_eq!(asked, granted);
}
