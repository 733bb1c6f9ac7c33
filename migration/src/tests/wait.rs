use std::time::Duration;

use kube_controllers::rollout::{DAEMON_SETS, DEPLOYMENTS};
use libcalico::kubernetes::{ApiGroup, Location, Resource};
use libcalico::migration::cluster_information;
use serde_json::{Value, json};

use super::{change, is_gone};
use crate::NAMESPACE;
use crate::testing::{MigratedCluster, definition, is_in_phase};

const MINUTE: Duration = Duration::from_secs(60);

fn at(resource: Resource, name: &str) -> Location {
    Location::namespaced(resource, NAMESPACE, name)
}

/// Adds a workload that is rolled out, and whose configuration does not name a group.
fn put(cluster: &MigratedCluster, at: &Location) {
    let spec =
        json!({ "replicas": 1, "template": { "spec": { "containers": [{ "name": "c" }] } } });
    let status = json!({
        "observedGeneration": 1, "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
        "updatedNumberScheduled": 1,
        "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1,
    });
    cluster.server.with_store(|store| {
        store.put(
            at,
            json!({ "metadata": { "generation": 1 }, "spec": spec, "status": status }),
        );
    });
}

fn set_group(cluster: &MigratedCluster, at: &Location, group: &str) {
    let environment = json!([{ "name": "CALICO_API_GROUP", "value": group }]);
    change(cluster, at, |found| {
        found["spec"]["template"]["spec"]["containers"][0]["env"] = environment
    });
}

async fn converged(cluster: &MigratedCluster) {
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Converged"))
        .await;
}

/// Lets a process wait for a minute, and returns the message with which it waits.
async fn wait(cluster: &MigratedCluster) -> String {
    cluster.run_for(MINUTE).await;
    assert_eq!(cluster.phase(), "Converged", "{}", cluster.message());
    cluster.message()
}

#[tokio::test(start_paused = true)]
async fn complete_waits_until_each_existing_program_is_set_to_v3() {
    let cluster = MigratedCluster::new();
    let programs = [
        at(DAEMON_SETS, "calico-node"),
        at(DAEMON_SETS, "canal"),
        at(DEPLOYMENTS, "calico-typha"),
    ];
    programs.iter().for_each(|program| put(&cluster, program));
    converged(&cluster).await;
    let text = "Waiting for user to set CALICO_API_GROUP=projectcalico.org/v3 on";
    assert_eq!(
        wait(&cluster).await,
        format!("{text} calico-node and canal and calico-typha")
    );
    set_group(&cluster, &programs[1], "projectcalico.org/v3");
    assert_eq!(
        wait(&cluster).await,
        format!("{text} calico-node and calico-typha")
    );
    // An empty group means v1 for these programs, as long as v1 exists.
    set_group(&cluster, &programs[0], "");
    set_group(&cluster, &programs[2], "crd.projectcalico.org/v1");
    assert_eq!(
        wait(&cluster).await,
        format!("{text} calico-node and calico-typha")
    );
    set_group(&cluster, &programs[0], "projectcalico.org/v3");
    set_group(&cluster, &programs[2], "ProjectCalico.org/V3");
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn complete_waits_until_each_program_is_rolled_out() {
    let cluster = MigratedCluster::new();
    let (node, typha) = (
        at(DAEMON_SETS, "calico-node"),
        at(DEPLOYMENTS, "calico-typha"),
    );
    for program in [&node, &typha] {
        put(&cluster, program);
        set_group(&cluster, program, "projectcalico.org/v3");
    }
    let set = |at: &Location, field: &str, value: i64| {
        change(&cluster, at, |found| found["status"][field] = value.into())
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
    converged(&cluster).await;
    for (program, field, bad, good, expected) in cases {
        set(program, field, bad);
        assert_eq!(wait(&cluster).await, expected);
        set(program, field, good);
    }
    // A pod on a wrong node is not in the way.
    set(&node, "numberMisscheduled", 1);
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn complete_waits_for_the_plugins() {
    let cluster = MigratedCluster::new();
    converged(&cluster).await;
    let plugin = at(DAEMON_SETS, "calico-cni");
    let set = |group: &str| {
        let entry = json!({ "name": "CALICO_API_GROUP", "value": group });
        change(&cluster, &plugin, |found| {
            let variables = &mut found["spec"]["template"]["spec"]["containers"][0]["env"];
            variables[0] = entry;
            variables[1] = Value::Null;
        });
    };
    set("crd.projectcalico.org/v1");
    let expected = "Waiting for user to set CALICO_API_GROUP=projectcalico.org/v3 on calico-cni";
    change(&cluster, &plugin, |found| {
        found["spec"]["template"]["spec"]["containers"][0]["name"] = "install-cni".into();
    });
    assert_eq!(wait(&cluster).await, expected);
    set("projectcalico.org/v3");
    change(&cluster, &plugin, |found| {
        found["status"]["numberUnavailable"] = json!(1)
    });
    assert_eq!(
        wait(&cluster).await,
        "Waiting for calico-cni pods to be available (1 unavailable)"
    );
    change(&cluster, &plugin, |found| {
        found["status"]["numberUnavailable"] = json!(0)
    });
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn definitions_of_v1_stay_while_a_program_is_not_set_to_v3() {
    let cluster = MigratedCluster::new();
    converged(&cluster).await;
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    let node = at(DAEMON_SETS, "calico-node");
    put(&cluster, &node);
    cluster.delete().await;
    cluster.run_for(MINUTE).await;
    let expected = "Waiting for user to set CALICO_API_GROUP=projectcalico.org/v3 on calico-node";
    assert_eq!(
        (cluster.phase().as_str(), cluster.message().as_str()),
        ("Complete", expected)
    );
    let v1 = definition(&cluster_information(ApiGroup::CrdV1).resource);
    assert!(cluster.server.object(&v1).is_some());

    set_group(&cluster, &node, "projectcalico.org/v3");
    cluster.run_until(is_gone).await;
    assert_eq!(cluster.server.object(&v1), None);
}
