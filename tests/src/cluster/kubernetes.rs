//! A [`Cluster`] on an API server: its pods are also Kubernetes objects, and its plugins usually
//! reach the server through a proxy.

use std::sync::Arc;

use anyhow::{Context, Result};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::{Cluster, ClusterTest};
use crate::content::Content;
use crate::controllers::create_replicas;
use crate::kubernetes::node_restriction::NodeTokens;
use crate::kubernetes::{
    ApiServer, Client, Kubernetes, Objects, ServiceAccount, on_prepared_kubernetes,
    on_shared_kubernetes,
};
use crate::namespaces::Host;
use crate::place::Place;
use crate::proxy::Proxy;
use crate::store::Store;

/// The Kubernetes namespace of every pod.
pub const NAMESPACE: &str = "suite";

/// The node of every pod without a node of its own.
pub(super) const NODE: &str = "node1";

/// Name of [`prepare_both_groups`].
pub(crate) const BOTH_GROUPS: &str = "both groups";

/// The nodes of [`restricted`].
const NODES: [&str; 4] = [NODE, "node2", "node3", "node4"];

/// The additional parts of a cluster on an API server.
#[derive(Debug)]
pub struct ControlPlane<'k> {
    /// etcd and the API server.
    pub servers: &'k mut Kubernetes,
    /// The server in the plugins' kubeconfig. A test connects to the API server directly.
    pub proxy: Arc<Proxy>,
    /// The service account of the plugins. It may do everything, except with
    /// `components/node-restriction`.
    pub account: ServiceAccount,
    /// The token of each node with `components/node-restriction`.
    tokens: NodeTokens,
}

/// Runs a test as [`on`](super::on()) does, on an API server that serves this group alone.
pub fn on_one_group<Parameters>(group: ApiGroup, test: impl ClusterTest<Parameters>) {
    let prepare = move |api: &ApiServer| {
        api.define(group.api_version())?;
        ControlPlane::account(api).map(drop)
    };
    on_prepared_kubernetes(group.api_version(), prepare, |host, servers| {
        run(group, host, ControlPlane::of(servers), test);
    });
}

pub(super) fn on_both_groups<Parameters>(group: ApiGroup, test: impl ClusterTest<Parameters>) {
    on_prepared_kubernetes(BOTH_GROUPS, prepare_both_groups, |host, servers| {
        run(group, host, ControlPlane::of(servers), test);
    });
}

/// Defines both groups, and creates the accounts of plugins and of replicas of kube-controllers.
pub(crate) fn prepare_both_groups(api: &ApiServer) -> Result<()> {
    for group in [ApiGroup::CrdV1, ApiGroup::V3] {
        api.define(group.api_version())?;
        api.await_group(group.name())?;
    }
    api.cni_user()?;
    ControlPlane::account(api)?;
    create_replicas(api)
}

/// Runs a test as [`on`](super::on()) does, on an API server with `components/node-restriction`, with
/// KubeVirt's machines, and with the nodes `node1` to `node4`. The configuration of each node has a
/// kubeconfig with a token that is bound to this node.
pub fn restricted<Parameters>(place: Place, test: impl ClusterTest<Parameters>) {
    let prepare = |api: &ApiServer| {
        let (_, tokens) = api.restrict_nodes(&NODES)?;
        api.namespace(NAMESPACE)?;
        api.define_machines()?;
        for group in [ApiGroup::CrdV1, ApiGroup::V3] {
            api.define(group.api_version())?;
            let token = tokens.values().next().context("no nodes")?;
            api.await_node_restriction(group, token)?;
        }
        Ok(())
    };
    on_prepared_kubernetes("restricted", prepare, |host, servers| {
        let control_plane = ControlPlane::restricted(servers);
        run(place.api_group(), host, control_plane, test);
    });
}

fn run<Parameters>(
    group: ApiGroup,
    host: &Host,
    mut control_plane: ControlPlane<'_>,
    test: impl ClusterTest<Parameters>,
) {
    let mut cluster = Cluster::with(host, |_| Ok(control_plane.store(group))).unwrap();
    test.run(&mut cluster, Some(&mut control_plane));
}

/// Runs a test on an API server with the objects that `install` creates, and with the definitions
/// of a group. The plugins have the permissions of `deploy/rbac` and no others.
pub fn on_installation(
    group: ApiGroup,
    install: impl FnOnce(&ApiServer) + Send,
    test: impl FnOnce(&Cluster<'_>, &mut Kubernetes, &ServiceAccount) + Send,
) {
    on_shared_kubernetes(|host, servers| {
        install(&servers.api);
        servers.api.ensure_defined(group.api_version()).unwrap();
        servers.api.namespace(NAMESPACE).unwrap();
        let user = servers.api.cni_user().unwrap();
        let objects = Objects::new(servers.api.admin(), group, user.kubeconfig.clone());
        let cluster = Cluster::with(host, |_| Ok(Store::Kubernetes(objects))).unwrap();
        cluster.load(&Content::dual_stack());
        test(&cluster, servers, &user);
    });
}

impl<'k> ControlPlane<'k> {
    fn of(servers: &'k mut Kubernetes) -> ControlPlane<'k> {
        let proxy = Arc::new(servers.api.proxy().unwrap());
        let account = Self::account(&servers.api).unwrap();
        ControlPlane {
            servers,
            proxy,
            account,
            tokens: NodeTokens::new(),
        }
    }

    /// Creates the account that may do everything, and the namespace of the pods. Writes nothing if
    /// they exist.
    fn account(api: &ApiServer) -> Result<ServiceAccount> {
        let account = api.service_account("kube-system", "plugin")?;
        api.bind(&account, "cluster-admin")?;
        api.namespace(NAMESPACE)?;
        Ok(account)
    }

    fn restricted(servers: &'k mut Kubernetes) -> ControlPlane<'k> {
        let proxy = Arc::new(servers.api.proxy().unwrap());
        let (account, tokens) = servers.api.restrict_nodes(&NODES).unwrap();
        ControlPlane {
            servers,
            proxy,
            account,
            tokens,
        }
    }

    /// Returns the objects of a group that the server defines.
    fn store(&self, group: ApiGroup) -> Store {
        let api = &self.servers.api;
        if self.tokens.is_empty() {
            let kubeconfig = api
                .kubeconfig_to(&self.proxy.endpoint(), "plugin", &self.account.identity)
                .unwrap();
            return Store::Kubernetes(Objects::new(api.admin(), group, kubeconfig));
        }
        Store::Kubernetes(
            api.objects_of_nodes(group, &self.proxy.endpoint(), &self.tokens)
                .unwrap(),
        )
    }
}

pub(super) fn create_pod(client: &Client, node: &str, name: &str) {
    let pod: Value = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
    });
    let made = client
        .create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod)
        .unwrap();
    assert!(matches!(made.code, 201 | 409), "{made:?}");
}

/// Returns the URL path of a pod.
pub fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}")
}
