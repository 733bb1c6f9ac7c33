//! Replicas with different users on one API server, and work for them.

use integration_tests::controllers::{Controllers, PATIENCE, Setup, await_that};
use integration_tests::kubernetes::{
    ApiServer, Audit, Kubernetes, Request, on_prepared_kubernetes,
};
use integration_tests::namespaces::Host;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

pub(crate) const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-kube-controllers";
pub(crate) const LEADS: &str = "this replica is the leader";
pub(crate) const LEADS_NO_MORE: &str = "this replica is no longer the leader";

/// Replicas with different users, and work for them: each new node gets a host endpoint.
pub(crate) struct Lab<'a> {
    pub(crate) host: &'a Host,
    pub(crate) kubernetes: &'a Kubernetes,
    pub(crate) audit: Audit,
    pub(crate) nodes: usize,
}

pub(crate) fn on(test: impl FnOnce(Lab<'_>) + Send) {
    let prepare = |api: &ApiServer| api.define(ApiGroup::CrdV1.api_version());
    on_prepared_kubernetes("replicas", prepare, |host, kubernetes| {
        let audit = kubernetes.api.audit().unwrap();
        test(Lab {
            host,
            kubernetes,
            audit,
            nodes: 0,
        });
    });
}

impl Lab<'_> {
    /// Starts a replica with `user` as its user and its name.
    pub(crate) fn start(&self, user: &str, group: &str) -> Controllers {
        self.setup(user, group).start(self.host, user).unwrap()
    }

    /// Prepares a replica. Creates a released Lease unless there is a Lease.
    pub(crate) fn setup(&self, user: &str, group: &str) -> Setup {
        let api = &self.kubernetes.api;
        let kubeconfig = api
            .kubeconfig(user, &api.user(user, group).unwrap())
            .unwrap();
        let setup = Setup::kubernetes(api)
            .unwrap()
            .env("KUBECONFIG", kubeconfig.display().to_string());
        let setup = setup
            .env("ENABLED_CONTROLLERS", "node")
            .env("AUTO_HOST_ENDPOINTS", "enabled");
        setup.env("POD_NAME", user)
    }

    pub(crate) fn pair(&self) -> (Controllers, Controllers) {
        let leader = self.start("one", "system:masters");
        leader.await_log(LEADS, 1).unwrap();
        let standby = self.start("two", "system:masters");
        let made = || Ok(self.kubernetes.api.admin().get(LEASE)?.code == 200);
        await_that(PATIENCE, made).unwrap();
        (leader, standby)
    }

    pub(crate) fn holder(&self) -> String {
        let lease = self
            .kubernetes
            .api
            .admin()
            .get(LEASE)
            .unwrap()
            .success()
            .unwrap();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
        holder.split('_').next().unwrap().to_owned()
    }

    pub(crate) fn node(&mut self) -> String {
        self.nodes += 1;
        let name = format!("node-{}", self.nodes);
        let annotations =
            json!({ "projectcalico.org/IPv4Address": format!("10.9.0.{}/24", self.nodes) });
        let metadata = json!({ "name": name, "annotations": annotations });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        self.kubernetes
            .api
            .admin()
            .create("/api/v1/nodes", &node)
            .unwrap()
            .success()
            .unwrap();
        format!("{name}-auto-hep")
    }

    pub(crate) fn await_endpoint(&self, name: &str) {
        let path = format!(
            "/apis/{}/hostendpoints/{name}",
            ApiGroup::CrdV1.api_version()
        );
        let there = await_that(PATIENCE, || {
            Ok(self.kubernetes.api.admin().get(&path)?.code == 200)
        });
        assert!(there.is_ok(), "no {name}: {:?}", self.audit.lines());
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
