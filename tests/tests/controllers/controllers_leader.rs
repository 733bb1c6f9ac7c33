//! Replicas on one API server: except for initial objects and Leases, only the leader writes.

mod metrics;
mod pair;
mod replicas;
mod unfinished_writes;

use std::time::Duration;

use integration_tests::controllers::{Controllers, PATIENCE, await_that, exit_text};
use serde_json::{Value, json};

use replicas::{LEADS, LEADS_NO_MORE, LEASE, Replicas, await_leader, lines, on, succeeded};

#[on(kubernetes_v1)]
fn only_the_leader_writes_and_releases_the_lease_at_exit(replicas: &Replicas<'_>) {
    let (mut leader, standby) = replicas.pair();
    replicas.do_work();
    assert_eq!(replicas.holder(), "one");
    assert_eq!(exit_text(leader.terminate().unwrap()), "0");
    await_leader(&standby);
    let before = replicas.writes("two", true);
    assert_eq!(replicas.holder(), "two");
    replicas.do_work();
    let first = before.first().unwrap().received;
    let early: Vec<_> = replicas
        .writes("two", false)
        .into_iter()
        .filter(|request| request.received < first)
        .collect();
    // The objects that make the datastore usable are created by the first replica that runs,
    // leader or not.
    assert!(
        early.iter().all(|request| request.verb == "create"),
        "{early:?}"
    );
    assert!(
        !early
            .iter()
            .any(|request| request.resource == "hostendpoints"),
        "{early:?}"
    );
    // The transitions are the acquisitions by `one` and by `two`.
    let lease = replicas.lease();
    assert_eq!(lease["spec"]["leaseTransitions"], 2, "{lease}");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
}

/// Asserts that replica `two` read the Lease and did not write it between the last renewal by `one`
/// and its own acquisition.
#[track_caller]
fn assert_lease_was_left_alone(replicas: &Replicas<'_>) {
    let renewed = replicas
        .writes("one", true)
        .into_iter()
        .rfind(succeeded)
        .unwrap()
        .answered;
    let taken = replicas
        .writes("two", true)
        .into_iter()
        .find(succeeded)
        .unwrap()
        .received;
    let requests = replicas
        .audit
        .of("two")
        .unwrap()
        .into_iter()
        .filter(|request| request.resource == "leases");
    let between = requests.filter(|request| request.received > renewed && request.received < taken);
    let looks: Vec<_> = between.collect();
    assert!(
        looks.len() >= 5 && looks.iter().all(|look| look.verb == "get"),
        "{:?}",
        lines(&looks)
    );
}

#[on(kubernetes_v1)]
fn standby_takes_over_from_a_killed_leader_after_the_lease_expires(replicas: &Replicas<'_>) {
    let (mut leader, standby) = replicas.pair();
    replicas.do_work();
    leader.kill();
    // No leader exists that could react to this node.
    let endpoint = replicas.node();
    await_leader(&standby);
    assert_lease_was_left_alone(replicas);
    replicas.await_endpoint(&endpoint);
    let endpoints = replicas
        .writes("two", false)
        .into_iter()
        .filter(|request| request.resource == "hostendpoints");
    assert_eq!(endpoints.filter(succeeded).count(), 1);
}

#[on(kubernetes_v1)]
fn leader_paused_past_its_lease_stops_writing(replicas: &Replicas<'_>) {
    let (leader, standby) = replicas.pair();
    replicas.do_work();
    leader.freeze().unwrap();
    // When the leader continues, its watch has this event in its buffer.
    let endpoint = replicas.node();
    await_leader(&standby);
    replicas.await_endpoint(&endpoint);
    let taken = replicas
        .writes("two", true)
        .into_iter()
        .find(succeeded)
        .unwrap()
        .answered;
    assert_lease_was_left_alone(replicas);

    leader.thaw().unwrap();
    for _ in 0..10 {
        replicas.do_work();
    }
    leader.await_log(LEADS_NO_MORE, 1).unwrap();
    let late = |of_leases| {
        let writes = replicas.writes("one", of_leases).into_iter();
        writes
            .filter(|request| request.answered > taken)
            .collect::<Vec<_>>()
    };
    assert!(
        !late(false).iter().any(succeeded),
        "{:?}",
        lines(&late(false))
    );
    assert!(
        !late(true).iter().any(succeeded),
        "{:?}",
        lines(&late(true))
    );
    assert_eq!(replicas.holder(), "two");

    // The former leader is on standby. It becomes the leader again when the other replica
    // exits.
    let mut standby = standby;
    standby.terminate().unwrap();
    leader.await_log(LEADS, 2).unwrap();
    replicas.do_work();
}

/// Creates or replaces a role that allows everything in the API groups `groups`. Waits until the
/// authorizer applies the role: a replica asks for its rights when it starts, and then only once a
/// minute.
fn role(replicas: &Replicas<'_>, groups: &Value) {
    let rules = json!([
        { "apiGroups": groups, "resources": ["*"], "verbs": ["*"] },
        { "nonResourceURLs": ["*"], "verbs": ["get"] },
    ]);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "no-leases" },
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "no-leases" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "no-leases",
        },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "no-leases",
        }],
    });
    let api = &replicas.cluster.api;
    for object in [role, binding] {
        api.admin().apply_object(&object).unwrap();
    }
    let member = api
        .client(&api.user("member", "no-leases").unwrap())
        .unwrap();
    let may_read_leases = groups
        .as_array()
        .unwrap()
        .contains(&json!("coordination.k8s.io"));
    let path = if may_read_leases {
        "/apis/coordination.k8s.io/v1/leases"
    } else {
        "/api/v1/nodes"
    };
    await_that(PATIENCE, || Ok(member.get(path)?.code == 200)).unwrap();
}

/// Asserts that the replica `one` leads, asks for the Lease again and again, has named the missing
/// right once, and has written no Lease.
#[track_caller]
fn assert_runs_alone(replicas: &Replicas<'_>, one: &Controllers) {
    let looks = || {
        replicas
            .audit
            .of("one")
            .unwrap()
            .into_iter()
            .filter(|request| request.resource == "leases")
            .count()
    };
    await_that(PATIENCE, || Ok(looks() >= 5)).unwrap();
    let log = one.log().unwrap();
    assert_eq!(
        log.matches("the role does not allow writing the Lease")
            .count(),
        1,
        "{log}"
    );
    assert_eq!(log.matches(LEADS).count(), 1, "{log}");
    assert!(replicas.writes("one", true).is_empty() && !replicas.has_lease());
}

/// Upstream's role does not allow Leases. The role is changed while one replica writes without a
/// Lease.
#[on(kubernetes_v1)]
fn replica_without_lease_permission_runs_alone_and_stops_before_a_creator_of_the_lease_writes(
    replicas: &Replicas<'_>,
) {
    role(replicas, &json!(["", "crd.projectcalico.org", "apps"]));
    let one = replicas.start("one", "no-leases");
    let two = replicas.setup("two", "system:masters");
    replicas.cluster.remove(LEASE);
    // The replica becomes the leader only after the time for which another replica could hold a
    // Lease.
    await_leader(&one);
    replicas.do_work();
    assert_runs_alone(replicas, &one);

    let two = two.start(replicas.cluster.host, "two").unwrap();
    await_that(PATIENCE, || Ok(replicas.has_lease())).unwrap();
    role(
        replicas,
        &json!(["", "crd.projectcalico.org", "apps", "coordination.k8s.io"]),
    );
    let lease = replicas.lease();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 25, "{lease}");
    one.await_log(LEADS_NO_MORE, 1).unwrap();
    let mut endpoints = vec![replicas.node()];
    // Both replicas always have work.
    while !two.log().unwrap().contains(LEADS) {
        std::thread::sleep(Duration::from_secs(1));
        endpoints.push(replicas.node());
    }
    endpoints
        .iter()
        .for_each(|endpoint| replicas.await_endpoint(endpoint));
    let of_nodes = |user: &str| {
        let writes = replicas.writes(user, false).into_iter();
        writes
            .filter(|request| request.resource == "hostendpoints")
            .collect::<Vec<_>>()
    };
    let (last, first) = (of_nodes("one").pop().unwrap(), of_nodes("two").remove(0));
    assert!(
        last.answered < first.received,
        "{:?}\n{:?}",
        lines(&of_nodes("one")),
        lines(&of_nodes("two"))
    );
    assert_eq!(
        of_nodes("two").len(),
        endpoints.len(),
        "{:?}",
        lines(&of_nodes("two"))
    );
    // The Lease states 25 s while its creator waits for the last write of the old leader, and
    // 15 s afterwards.
    let renewed = await_that(PATIENCE, || {
        Ok(replicas.lease()["spec"]["leaseDurationSeconds"] == 15)
    });
    assert!(
        renewed.is_ok() && replicas.holder() == "two",
        "{}",
        replicas.lease()
    );
}
