//! An enabled controller whose role is missing starts when the role is bound.

use std::fs;

use integration_tests::controllers::{
    Controllers, ControllersCluster, METRICS_PORT, PATIENCE, await_that, metrics, service_path,
};
use integration_tests::kubernetes::Role;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::{NAME, NAMESPACE, manifest, on};

/// The policies whose deletion is the right for which the program asks in place of all rights of
/// the role.
const POLICIES: &str = "globalnetworkpolicies";

/// Waits until `is_so` returns true, for longer than the pause after which the program asks for its
/// rights again.
#[track_caller]
fn until(controllers: &Controllers, what: &str, is_so: impl Fn() -> bool) {
    let seen = await_that(PATIENCE * 3, || Ok(is_so()));
    assert!(
        seen.is_ok(),
        "{what}: not seen\n{}",
        controllers.log().unwrap()
    );
}

/// Returns the number of warnings about a missing role.
fn warnings(controllers: &Controllers, role: &str) -> usize {
    let role = format!("calico-kube-controllers-{role}");
    let log = controllers.log().unwrap();
    let warns = |line: &&str| {
        line.contains("the role of an enabled controller is missing") && line.contains(&role)
    };
    log.lines().filter(warns).count()
}

/// Returns true if the Service `web` has the Event that names the missing role.
fn says_why_it_waits(cluster: &ControllersCluster<'_>) -> bool {
    let events = cluster.get(&service_path("web").replace("/services/web", "/events"));
    let of_web = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        event["involvedObject"]["name"] == "web"
            && message.contains("the role calico-kube-controllers-load-balancer")
    };
    events["items"]
        .as_array()
        .is_some_and(|events| events.iter().any(of_web))
}

#[on(kubernetes_v1)]
fn controller_without_its_role_is_named_once_and_starts_when_the_role_is_bound(
    cluster: &ControllersCluster<'_>,
) {
    let api = cluster.api;
    let role = Role::of_manifests(&Role::manifests_of_controllers()).unwrap();
    let mut base = role.clone();
    let of_crd_v1 = ApiGroup::CrdV1.name();
    base.0
        .retain(|one| one.resource != "services/status" && one.resource != "hostendpoints");
    base.0
        .retain(|one| one.resource != POLICIES || one.group != of_crd_v1);
    let account = api.service_account(NAMESPACE, NAME).unwrap();
    api.cluster_role(NAME, &base.rules()).unwrap();
    api.bind(&account, NAME).unwrap();
    cluster.node("n1", "10.0.0.1");
    cluster.pool("balancer", "10.80.0.0/16", "LoadBalancer");
    cluster.service("web", "10.80.0.7");
    // An older Calico stored the policy `web` so. Without the annotation, `default.web` would
    // be the policy's name.
    cluster.put(
        "GlobalNetworkPolicy",
        POLICIES,
        "default.web",
        &json!({ "tier": "default" }),
    );
    let annotated =
        json!({ "metadata": { "annotations": { "projectcalico.org/metadata": "{}" } } });
    let path = cluster.path(POLICIES, "default.web");
    cluster.merge(&path, &annotated);

    let audit = api.audit().unwrap();
    let setup = cluster.setup_with(&account.kubeconfig);
    // With FV_TEST the renames do not wait for a roll-out of calico-node, which this cluster
    // lacks.
    let setup = setup.env("LEADER_ELECTION", "false").env("FV_TEST", "true");
    let mut controllers = setup.start(cluster.host, "controllers").unwrap();
    let named = |role: &str| warnings(&controllers, role);
    let metric = |role: &str, value: u8| {
        let line = format!("kube_controllers_missing_rights{{role=\"{role}\"}} {value}");
        metrics(METRICS_PORT).is_ok_and(|page| page.lines().any(|shown| shown == line))
    };
    until(&controllers, "the role of the Services is missing", || {
        named("load-balancer") == 1
    });
    until(&controllers, "the role of policy names is missing", || {
        named("policy-names") == 1
    });
    assert_eq!(named("host-endpoints"), 0, "the controller is off");
    let off = [
        ("load-balancer", 1),
        ("policy-names", 1),
        ("host-endpoints", 0),
    ];
    until(&controllers, "the metric names both", || {
        off.iter().all(|(role, value)| metric(role, *value))
    });
    until(&controllers, "the Service has an Event", || {
        says_why_it_waits(cluster)
    });

    cluster.configure(
        &json!({ "leakGracePeriod": "1s", "hostEndpoint": { "autoCreate": "Enabled" } }),
    );
    until(
        &controllers,
        "the role of the host endpoints is missing",
        || named("host-endpoints") == 1,
    );
    cluster.address_left_behind("n1", "10.65.1.0");
    until(&controllers, "the leak is gone", || {
        cluster.handles_and_blocks().0.is_empty()
    });
    let refused: Vec<_> = audit
        .of(&account.user)
        .unwrap()
        .into_iter()
        .filter(|one| one.code == Some(403))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let all = ["load-balancer", "host-endpoints", "policy-names"];
    assert_eq!(all.map(named), [1, 1, 1]);
    until(&controllers, "the metric names all", || {
        all.iter().all(|role| metric(role, 1))
    });
    let policy = |name: &str| cluster.calico(POLICIES, name);
    assert!(
        !policy("default.web").is_null() && policy("web").is_null(),
        "the controller does not run"
    );
    let status = || fs::read_to_string(controllers.status_file()).unwrap();
    let roles = all.map(|role| format!("{NAME}-{role}")).join(", ");
    assert!(
        status().contains(&format!("outdated: {roles}")),
        "{}",
        status()
    );

    api.cluster_role(NAME, &role.rules()).unwrap();
    until(&controllers, "the Service has its address", || {
        cluster.shown("web") == ["10.80.0.7"]
    });
    until(&controllers, "the node has an endpoint", || {
        !cluster.calico("hostendpoints", "n1-auto-hep").is_null()
    });
    let started = "running controllers: gc, host-endpoints, load-balancer, policy-names";
    until(&controllers, "all controllers run", || {
        controllers.log().unwrap().contains(started)
    });
    until(&controllers, "the policy has its own name", || {
        !policy("web").is_null() && policy("default.web").is_null()
    });
    assert_eq!(all.map(named), [1, 1, 1]);
    until(&controllers, "the metric names none", || {
        all.iter().all(|role| metric(role, 0))
    });
    until(&controllers, "the status names no role", || {
        !status().contains("Roles")
    });
    assert!(controllers.terminate().unwrap().success());
}

#[on(etcd)]
fn controllers_without_their_roles_with_etcd_are_named_once_and_start_when_the_roles_are_bound(
    cluster: &ControllersCluster<'_>,
) {
    let api = cluster.api;
    let role = Role::of_manifest(&manifest("etcd/calico-kube-controllers.yaml")).unwrap();
    let mut base = role.clone();
    base.0
        .retain(|one| one.resource != "services/status" && one.resource != "daemonsets");
    let account = api.service_account(NAMESPACE, NAME).unwrap();
    api.cluster_role(NAME, &base.rules()).unwrap();
    api.bind(&account, NAME).unwrap();
    cluster.pool("balancer", "10.80.0.0/16", "LoadBalancer");
    cluster.service("web", "10.80.0.7");

    let audit = api.audit().unwrap();
    let setup = cluster.setup_with(&account.kubeconfig);
    let mut controllers = setup
        .env("LEADER_ELECTION", "false")
        .start(cluster.host, "controllers")
        .unwrap();
    let roles = ["load-balancer", "policy-names"];
    let named = || roles.map(|role| warnings(&controllers, role));
    until(&controllers, "both roles are missing", || named() == [1, 1]);
    let status = || fs::read_to_string(controllers.status_file()).unwrap_or_default();
    let both = roles
        .map(|role| format!("calico-kube-controllers-{role}"))
        .join(", ");
    until(&controllers, "the status names both roles", || {
        status().contains(&both)
    });
    until(&controllers, "the Service has an Event", || {
        says_why_it_waits(cluster)
    });
    let refused: Vec<_> = audit
        .of(&account.user)
        .unwrap()
        .into_iter()
        .filter(|one| one.code == Some(403))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");

    api.cluster_role(NAME, &role.rules()).unwrap();
    api.await_granted(&account, &role).unwrap();
    // Controllers that start again for new settings ask for their rights at once, and else
    // after a minute.
    cluster.configure(&json!({ "syncLabels": "Disabled" }));
    until(&controllers, "the Service has its address", || {
        cluster.shown("web") == ["10.80.0.7"]
    });
    until(&controllers, "the status names no role", || {
        !status().contains("Roles")
    });
    assert_eq!(named(), [1, 1]);
    assert!(controllers.terminate().unwrap().success());
}
