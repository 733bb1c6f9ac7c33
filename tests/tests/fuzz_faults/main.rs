//! Calls of two nodes with faults at random moments, round after round: six at once, killed, cut off, slowed down, on states
//! that upstream's calls leave half-way. After each round no address is held twice, and nothing of what was deleted is left.
//!
//! `FUZZ_FAULTS_SECONDS` says how long, `FUZZ_FAULTS_SEED` with which worlds to begin (`make fuzz-faults`).

mod audit;
mod halfway;
mod plan;
mod round;
mod world;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::cluster::{on_api_server, on_etcd};
use libcalico::kubernetes::ApiGroup;

use world::World;

/// Rounds in one world. A world is small, so that the seed of one that fails leads back to the failure soon.
const ROUNDS: usize = 40;

/// Rounds of a run of the suites.
const FEW_ROUNDS: usize = 3;

#[test]
fn random_faults_double_and_leak_nothing_on_etcd() {
    worlds(|seed, rounds| on_etcd(|cluster| World::on_etcd(cluster, seed).live_through(rounds)));
}

#[test]
fn random_faults_double_and_leak_nothing_in_v1() {
    worlds(|seed, rounds| on_group(ApiGroup::CrdV1, seed, rounds));
}

#[test]
fn random_faults_double_and_leak_nothing_in_v3() {
    worlds(|seed, rounds| on_group(ApiGroup::V3, seed, rounds));
}

fn on_group(group: ApiGroup, seed: u64, rounds: usize) {
    on_api_server(group, |cluster, control_plane| {
        World::on_api_server(cluster, control_plane, seed).live_through(rounds);
    });
}

/// Runs worlds one after the other, each with a seed of its own, for as long as was asked for; without that, one short.
fn worlds(world: impl Fn(u64, usize)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let end = number("FUZZ_FAULTS_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let first = number("FUZZ_FAULTS_SEED").unwrap_or_else(|| if end.is_some() { fastrand::u64(1..1 << 32) } else { 1 });
    let rounds = if end.is_some() { ROUNDS } else { FEW_ROUNDS };
    let test = thread::current().name().unwrap_or_default().to_owned();
    for seed in first.. {
        tell(&format!("{test}: FUZZ_FAULTS_SEED={seed}"));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world(seed, rounds))) {
            tell(&format!("{test}: failed with FUZZ_FAULTS_SEED={seed}"));
            resume_unwind(panic);
        }
        if end.is_none_or(|end| Instant::now() >= end) {
            return;
        }
    }
}

/// Around libtest's capture: whoever stops a long run must have its seed.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
