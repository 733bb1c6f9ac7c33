use std::time::Duration;

use kube_controllers::rollout::{DAEMON_SETS, DEPLOYMENTS};
use libcalico::kubernetes::{ApiGroup, Location, Resource};
use libcalico::migration::cluster_information;
use serde_json::{Value, json};

use super::{change, is_gone};
use crate::NAMESPACE;
use crate::testing::{World, definition, is_in_phase};

const MINUTE: Duration = Duration::from_secs(60);

fn at(resource: Resource, name: &str) -> Location {
    Location::namespaced(resource, NAMESPACE, name)
}

/// Adds a workload that is rolled out, and whose configuration does not name a group.
fn put(world: &World, at: &Location) {
    let spec =
        json!({ "replicas": 1, "template": { "spec": { "containers": [{ "name": "c" }] } } });
    let status = json!({
        "observedGeneration": 1, "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
        "updatedNumberScheduled": 1,
        "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1,
    });
    world.server.with_store(|store| {
        store.put(
            at,
            json!({ "metadata": { "generation": 1 }, "spec": spec, "status": status }),
        );
    });
}

fn set_group(world: &World, at: &Location, group: &str) {
    let environment = json!([{ "name": "CALICO_API_GROUP", "value": group }]);
    change(world, at, |found| {
        found["spec"]["template"]["spec"]["containers"][0]["env"] = environment
    });
}

async fn converged(world: &World) {
    world.start();
    world
        .run_until(|store| is_in_phase(store, "Converged"))
        .await;
}

/// Lets a process wait for a minute, and returns the message with which it waits.
async fn wait(world: &World) -> String {
    world.run_for(MINUTE).await;
    assert_eq!(world.phase(), "Converged", "{}", world.message());
    world.message()
}

#[tokio::test(start_paused = true)]
async fn complete_waits_until_each_existing_program_is_set_to_v3() {
    let world = World::new();
    let programs = [
        at(DAEMON_SETS, "calico-node"),
        at(DAEMON_SETS, "canal"),
        at(DEPLOYMENTS, "calico-typha"),
    ];
    programs.iter().for_each(|program| put(&world, program));
    converged(&world).await;
    let text = "Waiting for user to set CALICO_API_GROUP=projectcalico.org/v3 on";
    assert_eq!(
        wait(&world).await,
        format!("{text} calico-node and canal and calico-typha")
    );
    set_group(&world, &programs[1], "projectcalico.org/v3");
    assert_eq!(
        wait(&world).await,
        format!("{text} calico-node and calico-typha")
    );
    // An empty group means v1 for these programs, as long as v1 exists.
    set_group(&world, &programs[0], "");
    set_group(&world, &programs[2], "crd.projectcalico.org/v1");
    assert_eq!(
        wait(&world).await,
        format!("{text} calico-node and calico-typha")
    );
    set_group(&world, &programs[0], "projectcalico.org/v3");
    set_group(&world, &programs[2], "ProjectCalico.org/V3");
    world
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn complete_waits_until_each_program_is_rolled_out() {
    let world = World::new();
    let (node, typha) = (
        at(DAEMON_SETS, "calico-node"),
        at(DEPLOYMENTS, "calico-typha"),
    );
    for program in [&node, &typha] {
        put(&world, program);
        set_group(&world, program, "projectcalico.org/v3");
    }
    let set = |at: &Location, field: &str, value: i64| {
        change(&world, at, |found| found["status"][field] = value.into())
    };
    let cases = [
        (
            &node,
            "observedGeneration",
            0,
            1,
            "Waiting for calico-node rollout to begin",
        ),
        (
            &node,
            "updatedNumberScheduled",
            0,
            1,
            "Waiting for calico-node rollout (0/1 updated)",
        ),
        (
            &node,
            "numberUnavailable",
            1,
            0,
            "Waiting for calico-node pods to be available (1 unavailable)",
        ),
        (
            &typha,
            "updatedReplicas",
            0,
            1,
            "Waiting for calico-typha rollout (0/1 updated)",
        ),
        (
            &typha,
            "availableReplicas",
            0,
            1,
            "Waiting for calico-typha pods to be available (1 unavailable)",
        ),
    ];
    set(&node, "observedGeneration", 0);
    converged(&world).await;
    for (program, field, bad, good, expected) in cases {
        set(program, field, bad);
        assert_eq!(wait(&world).await, expected);
        set(program, field, good);
    }
    // A pod on a wrong node is not in the way.
    set(&node, "numberMisscheduled", 1);
    world
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn complete_waits_for_the_plugins() {
    let world = World::new();
    converged(&world).await;
    let plugin = at(DAEMON_SETS, "calico-cni");
    let set = |group: &str| {
        let entry = json!({ "name": "CALICO_API_GROUP", "value": group });
        change(&world, &plugin, |found| {
            let variables = &mut found["spec"]["template"]["spec"]["containers"][0]["env"];
            variables[0] = entry;
            variables[1] = Value::Null;
        });
    };
    set("crd.projectcalico.org/v1");
    let expected = "Waiting for user to set CALICO_API_GROUP=projectcalico.org/v3 on calico-cni";
    change(&world, &plugin, |found| {
        found["spec"]["template"]["spec"]["containers"][0]["name"] = "install-cni".into();
    });
    assert_eq!(wait(&world).await, expected);
    set("projectcalico.org/v3");
    change(&world, &plugin, |found| {
        found["status"]["numberUnavailable"] = json!(1)
    });
    assert_eq!(
        wait(&world).await,
        "Waiting for calico-cni pods to be available (1 unavailable)"
    );
    change(&world, &plugin, |found| {
        found["status"]["numberUnavailable"] = json!(0)
    });
    world
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn definitions_of_v1_stay_while_a_program_is_not_set_to_v3() {
    let world = World::new();
    converged(&world).await;
    world
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    let node = at(DAEMON_SETS, "calico-node");
    put(&world, &node);
    world.delete().await;
    world.run_for(MINUTE).await;
    let expected = "Waiting for user to set CALICO_API_GROUP=projectcalico.org/v3 on calico-node";
    assert_eq!(
        (world.phase().as_str(), world.message().as_str()),
        ("Complete", expected)
    );
    let v1 = definition(&cluster_information(ApiGroup::CrdV1).resource);
    assert!(world.server.object(&v1).is_some());

    set_group(&world, &node, "projectcalico.org/v3");
    world.run_until(is_gone).await;
    assert_eq!(world.server.object(&v1), None);
}
