//! [`Replicas`]: replicas with different users on one API server, and work for them.

use std::cell::Cell;

use integration_tests::Place;
use integration_tests::controllers::{
    self, Controllers, ControllersCluster, PATIENCE, Setup, await_that,
};
use integration_tests::kubernetes::{Audit, Request};
pub(crate) use integration_tests::on;
use serde_json::Value;

pub(crate) const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-kube-controllers";
pub(crate) const LEADS: &str = "this replica is the leader";
pub(crate) const LEADS_NO_MORE: &str = "this replica is no longer the leader";

/// Replicas with different users, and work for them: each new node gets a host endpoint.
pub(crate) struct Replicas<'a> {
    pub(crate) cluster: ControllersCluster<'a>,
    pub(crate) audit: Audit,
    nodes: Cell<usize>,
}

pub(crate) fn on(place: Place, test: fn(&Replicas<'_>)) {
    controllers::on(place, |cluster| {
        test(&Replicas {
            cluster: *cluster,
            audit: cluster.api.audit().unwrap(),
            nodes: Cell::new(0),
        });
    });
}

impl Replicas<'_> {
    /// Starts a replica with `user` as its user and its name.
    pub(crate) fn start(&self, user: &str, group: &str) -> Controllers {
        let setup = self.setup(user, group);
        setup.start(self.cluster.host, user).unwrap()
    }

    /// Prepares a replica. Creates a released Lease unless there is a Lease.
    pub(crate) fn setup(&self, user: &str, group: &str) -> Setup {
        let api = self.cluster.api;
        let kubeconfig = api.kubeconfig(user, &api.user(user, group).unwrap());
        self.cluster
            .setup_with(&kubeconfig.unwrap())
            .env("ENABLED_CONTROLLERS", "node")
            .env("AUTO_HOST_ENDPOINTS", "enabled")
            .env("POD_NAME", user)
    }

    /// Starts the leader `one`, and then `two`.
    pub(crate) fn pair(&self) -> (Controllers, Controllers) {
        let leader = self.start("one", "system:masters");
        leader.await_log(LEADS, 1).unwrap();
        let standby = self.start("two", "system:masters");
        await_that(PATIENCE, || Ok(self.has_lease())).unwrap();
        (leader, standby)
    }

    pub(crate) fn lease(&self) -> Value {
        self.cluster.read(LEASE)
    }

    pub(crate) fn has_lease(&self) -> bool {
        self.cluster.admin().get(LEASE).unwrap().code == 200
    }

    pub(crate) fn holder(&self) -> String {
        let lease = self.lease();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
        holder.split('_').next().unwrap().to_owned()
    }

    /// Creates a node. Returns the name of its endpoint.
    pub(crate) fn node(&self) -> String {
        let number = self.nodes.get() + 1;
        self.nodes.set(number);
        let name = format!("node-{number}");
        self.cluster.node(&name, &format!("10.9.0.{number}"));
        format!("{name}-auto-hep")
    }

    pub(crate) fn await_endpoint(&self, name: &str) {
        let exists = || Ok(!self.cluster.calico("hostendpoints", name).is_null());
        let seen = await_that(PATIENCE, exists);
        assert!(seen.is_ok(), "no {name}: {:?}", self.audit.lines());
    }

    /// Creates a node, and waits for its endpoint.
    pub(crate) fn do_work(&self) {
        self.await_endpoint(&self.node());
    }

    /// Returns a user's writes of Leases if `of_leases`, otherwise all other writes.
    pub(crate) fn writes(&self, user: &str, of_leases: bool) -> Vec<Request> {
        let written =
            |request: &Request| is_write(request) && (request.resource == "leases") == of_leases;
        self.audit
            .of(user)
            .unwrap()
            .into_iter()
            .filter(written)
            .collect()
    }
}

pub(crate) fn lines(requests: &[Request]) -> Vec<String> {
    requests.iter().map(Request::to_string).collect()
}

pub(crate) fn succeeded(request: &Request) -> bool {
    request.code.is_some_and(|code| (200..300).contains(&code))
}

#[track_caller]
pub(crate) fn await_leader(replica: &Controllers) {
    let leads = await_that(PATIENCE, || Ok(replica.log()?.contains(LEADS)));
    assert!(
        leads.is_ok(),
        "it does not lead:\n{}",
        replica.log().unwrap()
    );
}

pub(crate) fn is_write(request: &Request) -> bool {
    matches!(
        request.verb.as_str(),
        "create" | "update" | "patch" | "delete" | "deletecollection"
    )
}
