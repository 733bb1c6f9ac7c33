//! Replicas on one API server: except for initial objects and Leases, only the leader writes.

mod lab;
mod metrics;
mod replica;
mod unfinished_writes;

use std::time::Duration;

use integration_tests::controllers::{PATIENCE, await_that, told};
use serde_json::{Value, json};

use lab::{LEADS, LEADS_NO_MORE, LEASE, await_leader, lines, on, succeeded};

#[test]
fn only_the_leader_writes_and_releases_the_lease_at_exit() {
    on(|mut lab| {
        let (mut leader, standby) = lab.pair();
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        assert_eq!(lab.holder(), "one");
        assert_eq!(told(leader.terminate().unwrap()), "0");
        await_leader(&standby);
        let before = lab.writes("two", true);
        assert_eq!(lab.holder(), "two");
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        let first = before.first().unwrap().received;
        let early: Vec<_> = lab
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
        let lease = lab
            .kubernetes
            .api
            .admin()
            .get(LEASE)
            .unwrap()
            .success()
            .unwrap();
        assert_eq!(lease["spec"]["leaseTransitions"], 2, "{lease}");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    });
}

/// Asserts that replica `two` read the Lease and did not write it between the last renewal by `one`
/// and its own acquisition.
#[track_caller]
fn assert_lease_was_left_alone(lab: &lab::Lab<'_>) {
    let renewed = lab
        .writes("one", true)
        .into_iter()
        .rfind(succeeded)
        .unwrap()
        .answered;
    let taken = lab
        .writes("two", true)
        .into_iter()
        .find(succeeded)
        .unwrap()
        .received;
    let requests = lab
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

#[test]
fn standby_takes_over_from_a_killed_leader_after_the_lease_expires() {
    on(|mut lab| {
        let (mut leader, standby) = lab.pair();
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        leader.kill();
        // No leader exists that could react to this node.
        let endpoint = lab.node();
        await_leader(&standby);
        assert_lease_was_left_alone(&lab);
        lab.await_endpoint(&endpoint);
        let endpoints = lab
            .writes("two", false)
            .into_iter()
            .filter(|request| request.resource == "hostendpoints");
        assert_eq!(endpoints.filter(succeeded).count(), 1);
    });
}

#[test]
fn leader_paused_past_its_lease_stops_writing() {
    on(|mut lab| {
        let (leader, standby) = lab.pair();
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        leader.freeze().unwrap();
        // When the leader continues, its watch has this event in its buffer.
        let endpoint = lab.node();
        await_leader(&standby);
        lab.await_endpoint(&endpoint);
        let taken = lab
            .writes("two", true)
            .into_iter()
            .find(succeeded)
            .unwrap()
            .answered;
        assert_lease_was_left_alone(&lab);

        leader.thaw().unwrap();
        for _ in 0..10 {
            let endpoint = lab.node();
            lab.await_endpoint(&endpoint);
        }
        leader.await_log(LEADS_NO_MORE, 1).unwrap();
        let late = |of_leases| {
            let writes = lab.writes("one", of_leases).into_iter();
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
        assert_eq!(lab.holder(), "two");

        // The former leader is on standby. It becomes the leader again when the other replica
        // exits.
        let mut standby = standby;
        standby.terminate().unwrap();
        leader.await_log(LEADS, 2).unwrap();
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
    });
}

/// Creates or replaces a role that allows everything in the API groups `groups`. Waits until the
/// authorizer applies the role: a replica asks for its rights when it starts, and then only once a
/// minute.
fn role(lab: &lab::Lab<'_>, groups: &Value) {
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
    let api = &lab.kubernetes.api;
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

/// Upstream's role does not allow Leases.
#[test]
fn replica_without_lease_permission_runs_alone_and_logs_once() {
    on(|mut lab| {
        role(&lab, &json!(["", "crd.projectcalico.org", "apps"]));
        let replica = lab.start("one", "no-leases");
        // The replica becomes the leader only after the time for which another replica could hold a
        // Lease.
        await_leader(&replica);
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        let looks = || {
            lab.audit
                .of("one")
                .unwrap()
                .into_iter()
                .filter(|request| request.resource == "leases")
                .count()
        };
        await_that(PATIENCE, || Ok(looks() >= 5)).unwrap();
        let log = replica.log().unwrap();
        assert_eq!(
            log.matches("the role does not allow writing the Lease")
                .count(),
            1,
            "{log}"
        );
        assert_eq!(log.matches(LEADS).count(), 1, "{log}");
        assert!(lab.writes("one", true).is_empty() && lab.holder().is_empty());
    });
}

/// The role is changed to allow Leases while one replica writes without a Lease.
#[test]
fn creator_of_the_lease_writes_only_after_the_leaseless_replica_stops() {
    on(|mut lab| {
        let api = &lab.kubernetes.api;
        role(&lab, &json!(["", "crd.projectcalico.org", "apps"]));
        let one = lab.start("one", "no-leases");
        let two = lab.setup("two", "system:masters");
        api.admin().delete(LEASE).unwrap().success().unwrap();
        await_leader(&one);
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);

        let two = two.start(lab.host, "two").unwrap();
        await_that(PATIENCE, || Ok(api.admin().get(LEASE)?.code == 200)).unwrap();
        role(
            &lab,
            &json!(["", "crd.projectcalico.org", "apps", "coordination.k8s.io"]),
        );
        let lease = api.admin().get(LEASE).unwrap().success().unwrap();
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 25, "{lease}");
        one.await_log(LEADS_NO_MORE, 1).unwrap();
        let mut endpoints = vec![lab.node()];
        // Both replicas always have work.
        while !two.log().unwrap().contains(LEADS) {
            std::thread::sleep(Duration::from_secs(1));
            endpoints.push(lab.node());
        }
        endpoints
            .iter()
            .for_each(|endpoint| lab.await_endpoint(endpoint));
        let of_nodes = |user: &str| {
            let writes = lab.writes(user, false).into_iter();
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
        let lease = || api.admin().get(LEASE).unwrap().success().unwrap();
        let renewed = await_that(PATIENCE, || {
            Ok(lease()["spec"]["leaseDurationSeconds"] == 15)
        });
        assert!(renewed.is_ok() && lab.holder() == "two", "{}", lease());
    });
}
