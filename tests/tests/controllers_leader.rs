//! Two replicas before one API server: who writes, and who takes over when the other is ended, killed, or paused. The audit
//! log tells who wrote what.

use std::time::{Duration, Instant};

use integration_tests::controllers::{Controllers, PATIENCE, Setup, await_that, told};
use integration_tests::kubernetes::{Audit, Kubernetes, Request, on_kubernetes};
use integration_tests::namespaces::Host;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-kube-controllers";
/// What the log says.
const LEADS: &str = "this replica leads";
const LEADS_NO_MORE: &str = "this replica does not lead any more";
/// How long the Lease is another's after its last change, and what a standby may take to see that.
const LEASE_AND_A_LOOK: Duration = Duration::from_secs(15 + 4);

/// Replicas that are different users, and work for them: each new node gets a host endpoint.
struct Lab<'a> {
    host: &'a Host,
    kubernetes: &'a Kubernetes,
    audit: Audit,
    nodes: usize,
}

fn on(test: impl FnOnce(Lab<'_>) + Send) {
    on_kubernetes(|host, kubernetes| {
        kubernetes.api.define(ApiGroup::CrdV1.api_version()).unwrap();
        let audit = kubernetes.api.audit().unwrap();
        test(Lab { host, kubernetes, audit, nodes: 0 });
    });
}

impl Lab<'_> {
    /// A replica of this name that is a user of this name.
    fn start(&self, user: &str, group: &str) -> Controllers {
        let api = &self.kubernetes.api;
        let kubeconfig = api.kubeconfig(user, &api.user(user, group).unwrap()).unwrap();
        let setup = Setup::kubernetes(api).unwrap().env("KUBECONFIG", kubeconfig.display().to_string());
        let setup = setup.env("ENABLED_CONTROLLERS", "node").env("AUTO_HOST_ENDPOINTS", "enabled");
        setup.env("POD_NAME", user).start(self.host, user).unwrap()
    }

    /// One that leads, and one that stands by.
    fn pair(&self) -> (Controllers, Controllers) {
        let leader = self.start("one", "system:masters");
        leader.await_log(LEADS, 1).unwrap();
        let standby = self.start("two", "system:masters");
        let made = || Ok(self.kubernetes.api.admin().get(LEASE)?.code == 200);
        await_that(PATIENCE, made).unwrap();
        (leader, standby)
    }

    fn holder(&self) -> String {
        let lease = self.kubernetes.api.admin().get(LEASE).unwrap().success().unwrap();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
        holder.split('_').next().unwrap().to_owned()
    }

    /// Makes a node; the leader has something to write.
    fn node(&mut self) -> String {
        self.nodes += 1;
        let name = format!("node-{}", self.nodes);
        let annotations = json!({ "projectcalico.org/IPv4Address": format!("10.9.0.{}/24", self.nodes) });
        let metadata = json!({ "name": name, "annotations": annotations });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        self.kubernetes.api.admin().create("/api/v1/nodes", &node).unwrap().success().unwrap();
        format!("{name}-auto-hep")
    }

    fn await_endpoint(&self, name: &str) {
        let path = format!("/apis/{}/hostendpoints/{name}", ApiGroup::CrdV1.api_version());
        let there = await_that(PATIENCE, || Ok(self.kubernetes.api.admin().get(&path)?.code == 200));
        assert!(there.is_ok(), "no {name}: {:?}", self.audit.lines());
    }

    /// The writes of a user, of Leases or of everything else.
    fn writes(&self, user: &str, of_leases: bool) -> Vec<Request> {
        let written = |request: &Request| {
            let writes = matches!(request.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
            writes && (request.resource == "leases") == of_leases
        };
        self.audit.of(user).unwrap().into_iter().filter(written).collect()
    }
}

fn succeeded(request: &Request) -> bool {
    request.code.is_some_and(|code| (200..300).contains(&code))
}

#[track_caller]
fn await_leader(replica: &Controllers, limit: Duration) -> Duration {
    let begin = Instant::now();
    let leads = await_that(limit, || Ok(replica.log()?.contains(LEADS)));
    assert!(leads.is_ok(), "it does not lead after {limit:?}:\n{}", replica.log().unwrap());
    begin.elapsed()
}

#[test]
fn only_the_leader_writes_and_gives_its_lease_back_at_its_end() {
    on(|mut lab| {
        let (mut leader, standby) = lab.pair();
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        assert_eq!(lab.holder(), "one");
        assert_eq!(told(leader.terminate().unwrap()), "0");
        let taken = await_leader(&standby, Duration::from_secs(5));
        assert!(taken < Duration::from_secs(4), "{taken:?}");
        let before = lab.writes("two", true);
        assert_eq!(lab.holder(), "two");
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        let first = before.first().unwrap().received;
        let early: Vec<_> = lab.writes("two", false).into_iter().filter(|request| request.received < first).collect();
        // What makes the datastore usable is made by whoever comes first, and is the same whoever it is.
        assert!(early.iter().all(|request| request.verb == "create"), "{early:?}");
        assert!(!early.iter().any(|request| request.resource == "hostendpoints"), "{early:?}");
        // All three times the Lease was read before; what it was written over is named.
        let lease = lab.kubernetes.api.admin().get(LEASE).unwrap().success().unwrap();
        assert_eq!(lease["spec"]["leaseTransitions"], 1, "{lease}");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    });
}

#[test]
fn a_standby_takes_over_from_a_leader_that_was_killed() {
    on(|mut lab| {
        let (mut leader, standby) = lab.pair();
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        leader.kill();
        // Nobody is there for it now.
        let endpoint = lab.node();
        let taken = await_leader(&standby, LEASE_AND_A_LOOK);
        assert!(taken > Duration::from_secs(10), "{taken:?}: the Lease was not over");
        lab.await_endpoint(&endpoint);
        let endpoints = lab.writes("two", false).into_iter().filter(|request| request.resource == "hostendpoints");
        assert_eq!(endpoints.filter(succeeded).count(), 1);
    });
}

#[test]
fn a_leader_that_was_paused_past_its_lease_writes_nothing_more() {
    on(|mut lab| {
        let (leader, standby) = lab.pair();
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        leader.freeze().unwrap();
        let frozen = Instant::now();
        // Its watch has this in its buffer when it goes on, and it has not asked since whether it leads.
        let endpoint = lab.node();
        await_leader(&standby, LEASE_AND_A_LOOK);
        lab.await_endpoint(&endpoint);
        let taken = lab.writes("two", true).into_iter().find(succeeded).unwrap().answered;
        assert!(frozen.elapsed() > Duration::from_secs(10));

        leader.thaw().unwrap();
        for _ in 0..10 {
            let endpoint = lab.node();
            lab.await_endpoint(&endpoint);
        }
        leader.await_log(LEADS_NO_MORE, 1).unwrap();
        let late = |of_leases| {
            let writes = lab.writes("one", of_leases).into_iter();
            writes.filter(|request| request.answered > taken).collect::<Vec<_>>()
        };
        let lines = |requests: Vec<Request>| requests.iter().map(Request::to_string).collect::<Vec<_>>();
        assert!(!late(false).iter().any(succeeded), "{:?}", lines(late(false)));
        assert!(!late(true).iter().any(succeeded), "{:?}", lines(late(true)));
        assert_eq!(lab.holder(), "two");

        // It stands by, and takes over in its turn.
        let mut standby = standby;
        standby.terminate().unwrap();
        leader.await_log(LEADS, 2).unwrap();
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
    });
}

/// Upstream's own role knows no Leases.
#[test]
fn where_the_role_knows_no_leases_it_runs_alone_and_says_so_once() {
    on(|mut lab| {
        let api = &lab.kubernetes.api;
        let all = |groups: Value| json!({ "apiGroups": groups, "resources": ["*"], "verbs": ["*"] });
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "no-leases" },
            "rules": [all(json!(["", "crd.projectcalico.org", "apps"])), { "nonResourceURLs": ["*"], "verbs": ["get"] }],
        });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "no-leases" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "no-leases" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "no-leases" }],
        });
        for object in [role, binding] {
            api.admin().apply_object(&object).unwrap();
        }
        let replica = lab.start("one", "no-leases");
        // Refused for longer than another could hold one.
        let alone = await_leader(&replica, LEASE_AND_A_LOOK + Duration::from_secs(5));
        assert!(alone > Duration::from_secs(14), "{alone:?}");
        let endpoint = lab.node();
        lab.await_endpoint(&endpoint);
        let log = replica.log().unwrap();
        assert_eq!(log.matches("the role does not allow to write the lease").count(), 1, "{log}");
        assert_eq!(lab.kubernetes.api.admin().get(LEASE).unwrap().code, 404);
    });
}
