//! A tenant beside other owners, from whose names, IDs, handles, addresses and paths the tenant
//! chooses texts. Calls on two nodes and passes of garbage collection run in random order. Nothing
//! of the other owners changes.
//!
//! `FUZZ_TENANT_SECONDS` sets the duration, and `FUZZ_TENANT_SEED` the first world
//! (`make fuzz-tenant`).

mod corpus;
mod others;
mod sandboxes;
mod shared_nodes;
mod snapshot;
mod steps;
mod texts;

use integration_tests::Place;
use integration_tests::cluster::{Cluster, ControlPlane, on};
use integration_tests::seeds::{Rounds, worlds};

use shared_nodes::SharedNodes;

const NAME: &str = "FUZZ_TENANT";
const ROUNDS: Rounds = Rounds { few: 40, many: 200 };

/// Shows SEC-6.
#[test]
fn names_of_a_tenant_change_no_foreign_objects_on_etcd() {
    worlds(NAME, ROUNDS, |seed, steps| {
        on(Place::Etcd, |cluster: &Cluster<'_>| {
            SharedNodes::on_etcd(cluster, seed).run(steps);
        });
    });
}

/// Shows SEC-6.
#[test]
fn texts_of_a_tenant_change_no_foreign_objects_in_v1() {
    worlds_of_group(Place::KubernetesV1);
}

/// Shows SEC-6.
#[test]
fn texts_of_a_tenant_change_no_foreign_objects_in_v3() {
    worlds_of_group(Place::KubernetesV3);
}

fn worlds_of_group(place: Place) {
    worlds(NAME, ROUNDS, |seed, steps| {
        let run = |cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
            SharedNodes::on_api_server(cluster, control_plane, seed).run(steps);
        };
        on(place, run);
    });
}
