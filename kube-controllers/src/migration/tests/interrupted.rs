//! Processes that ended between the unlock of v1 and the rest.

use std::time::Duration;

use libcalico::kubernetes::ApiGroup;
use libcalico::migration::cluster_information;
use serde_json::json;

use super::change;
use super::refused::{assert_no_lock_is_shown, is_aggregated, refuse_information};
use crate::migration::testing::{ObjectStore, World, is_in_phase, object};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns true if the status shows the lock.
fn is_lock_shown(store: &ObjectStore) -> bool {
    store.get(&object()).is_some_and(|found| found["status"]["datastoreLockedAt"].is_string())
}

/// Unlocks v1 as an interrupted process, which has not written the status.
fn unlock(world: &World) {
    change(world, &cluster_information(ApiGroup::CrdV1), |found| found["spec"]["datastoreReady"] = true.into());
}

/// Admission refuses the ClusterInformation of v3 although it has accepted the dry run.
#[tokio::test(start_paused = true)]
async fn status_that_shows_an_ended_lock_is_corrected_before_the_checks() {
    let world = World::new();
    world.start();
    world.run_until(is_lock_shown).await;
    unlock(&world);
    refuse_information(&world, ApiGroup::V3);
    let checking = "checking the cluster and all objects before the lock";
    world.run_until(|store| store.get(&object()).is_some_and(|found| found["status"]["message"] == checking)).await;
    assert_no_lock_is_shown(&world, "during the checks");
    world.run_for(4 * MINUTE).await;
    let message = world.message();
    assert!(message.starts_with("projectcalico.org/v3 refuses ClusterInformation/default: "), "{message}");
    assert_no_lock_is_shown(&world, "after the checks");
}

#[tokio::test(start_paused = true)]
async fn failed_migration_with_a_saved_api_service_gives_it_back() {
    let world = World::new();
    world.start();
    world.aggregate();
    world.run_until(|store| is_in_phase(store, "Migrating")).await;
    assert!(!is_aggregated(&world));
    unlock(&world);
    world.server.with_store(|store| store.remove(&cluster_information(ApiGroup::V3)));
    change(&world, &object(), |found| found["status"]["phase"] = json!("Failed"));
    world.run_for(4 * MINUTE).await;
    assert!(is_aggregated(&world));
    assert_eq!(world.phase(), "Failed");
}
