//! Random faults on two nodes, round after round. After each round no address is assigned twice,
//! and nothing of a deleted sandbox is left.
//!
//! `FUZZ_FAULTS_SECONDS` sets the duration, and `FUZZ_FAULTS_SEED` the first world
//! (`make fuzz-faults`).

mod audit;
mod halfway;
mod plan;
mod round;
mod world;

use integration_tests::cluster::{on_api_server, on_etcd};
use integration_tests::seeds::{Rounds, worlds};
use libcalico::kubernetes::ApiGroup;

use world::World;

const NAME: &str = "FUZZ_FAULTS";
const ROUNDS: Rounds = Rounds { few: 3, many: 40 };

#[test]
fn random_faults_on_etcd_neither_duplicate_nor_leak_addresses() {
    worlds(NAME, ROUNDS, |seed, rounds| {
        on_etcd(|cluster| World::on_etcd(cluster, seed).live_through(rounds))
    });
}

#[test]
fn random_faults_in_v1_neither_duplicate_nor_leak_addresses() {
    worlds(NAME, ROUNDS, |seed, rounds| {
        on_group(ApiGroup::CrdV1, seed, rounds)
    });
}

#[test]
fn random_faults_in_v3_neither_duplicate_nor_leak_addresses() {
    worlds(NAME, ROUNDS, |seed, rounds| {
        on_group(ApiGroup::V3, seed, rounds)
    });
}

fn on_group(group: ApiGroup, seed: u64, rounds: usize) {
    on_api_server(group, |cluster, control_plane| {
        World::on_api_server(cluster, control_plane, seed).live_through(rounds);
    });
}
