//! Random faults on two nodes, round after round. After each round no address is assigned twice,
//! and nothing of a deleted sandbox is left.
//!
//! `FUZZ_FAULTS_SECONDS` sets the duration, and `FUZZ_FAULTS_SEED` the first world
//! (`make fuzz-faults`).

mod audit;
mod interrupted;
mod node_pair;
mod plan;
mod round;

use integration_tests::Place;
use integration_tests::cluster::{Cluster, ControlPlane, on};
use integration_tests::seeds::{Rounds, worlds};

use node_pair::NodePair;

const NAME: &str = "FUZZ_FAULTS";
const ROUNDS: Rounds = Rounds { few: 3, many: 40 };

#[test]
fn random_faults_on_etcd_neither_duplicate_nor_leak_addresses() {
    worlds(NAME, ROUNDS, |seed, rounds| {
        on(Place::Etcd, |cluster: &Cluster<'_>| {
            NodePair::on_etcd(cluster, seed).run(rounds);
        });
    });
}

#[test]
fn random_faults_in_v1_neither_duplicate_nor_leak_addresses() {
    worlds_of_group(Place::KubernetesV1);
}

#[test]
fn random_faults_in_v3_neither_duplicate_nor_leak_addresses() {
    worlds_of_group(Place::KubernetesV3);
}

fn worlds_of_group(place: Place) {
    worlds(NAME, ROUNDS, |seed, rounds| {
        let run = |cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
            NodePair::on_api_server(cluster, control_plane, seed).run(rounds);
        };
        on(place, run);
    });
}
