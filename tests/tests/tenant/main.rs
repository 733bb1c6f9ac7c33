//! A tenant beside other owners, from whose names, IDs, handles, addresses and paths the tenant
//! chooses texts. Calls on two nodes and passes of garbage collection run in random order. Nothing
//! of the other owners changes.
//!
//! `FUZZ_TENANT_SECONDS` sets the duration, and `FUZZ_TENANT_SEED` the first world
//! (`make fuzz-tenant`).

mod corpus;
mod others;
mod snapshot;
mod steps;
mod tenant;
mod texts;
mod world;

use integration_tests::cluster::{on_api_server, on_etcd};
use integration_tests::seeds::{Rounds, worlds};
use libcalico::kubernetes::ApiGroup;

use world::World;

const NAME: &str = "FUZZ_TENANT";
const ROUNDS: Rounds = Rounds { few: 40, many: 200 };

#[test]
fn texts_of_a_tenant_change_no_foreign_objects_in_v1() {
    worlds(NAME, ROUNDS, |seed, steps| {
        on_group(ApiGroup::CrdV1, seed, steps)
    });
}

#[test]
fn texts_of_a_tenant_change_no_foreign_objects_in_v3() {
    worlds(NAME, ROUNDS, |seed, steps| {
        on_group(ApiGroup::V3, seed, steps)
    });
}

#[test]
fn names_of_a_tenant_change_no_foreign_objects_on_etcd() {
    worlds(NAME, ROUNDS, |seed, steps| {
        on_etcd(|cluster| World::on_etcd(cluster, seed).live_through(steps))
    });
}

fn on_group(group: ApiGroup, seed: u64, steps: usize) {
    on_api_server(group, |cluster, control_plane| {
        World::on_api_server(cluster, control_plane, seed).live_through(steps);
    });
}
