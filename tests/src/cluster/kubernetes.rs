//! A [`Cluster`] on an API server: its pods are also Kubernetes objects, and its plugins usually
//! reach the server through a proxy.

use std::sync::Arc;

use anyhow::{Context, Result};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::Cluster;
use crate::content::Content;
use crate::kubernetes::node_restriction::NodeTokens;
use crate::kubernetes::{
    ApiServer, Client, Kubernetes, Objects, ServiceAccount, on_prepared_kubernetes,
    on_shared_kubernetes,
};
use crate::namespaces::Host;
use crate::plugin::Plugins;
use crate::proxy::Proxy;
use crate::store::Store;

/// The Kubernetes namespace of every pod.
pub const NAMESPACE: &str = "suite";

/// The node of every pod without a node of its own.
pub(super) const NODE: &str = "node1";

/// The nodes of [`on_each_group`].
const NODES: [&str; 2] = [NODE, "node2"];

/// The additional parts of a cluster on an API server.
#[derive(Debug)]
pub struct ControlPlane<'k> {
    /// etcd and the API server.
    pub servers: &'k mut Kubernetes,
    /// The server in the plugins' kubeconfig. A test connects to the API server directly.
    pub proxy: Arc<Proxy>,
    /// The service account of the plugins. The account of [`on_api_server`] may do everything.
    pub account: ServiceAccount,
    /// The token of each node with `components/node-restriction`.
    tokens: NodeTokens,
}

/// Runs a test with an API server that serves Calico's objects in one API group. The tests of a
/// process may share the server, see [`on_prepared_kubernetes`].
pub fn on_api_server(
    group: ApiGroup,
    test: impl FnOnce(&Cluster<'_>, &mut ControlPlane<'_>) + Send,
) {
    let prepare = move |api: &ApiServer| {
        api.define(group.api_version())?;
        ControlPlane::account(api).map(drop)
    };
    on_prepared_kubernetes(group.api_version(), prepare, |host, servers| {
        on_cluster(group, host, servers, test)
    });
}

/// Runs a test as [`on_api_server`] does, on a server that also serves the other group, so that the
/// tests of both groups share it. The account of [`ApiServer::cni_user`] exists.
pub fn on_api_server_of_both_groups(
    group: ApiGroup,
    test: impl FnOnce(&Cluster<'_>, &mut ControlPlane<'_>) + Send,
) {
    let prepare = |api: &ApiServer| {
        for group in [ApiGroup::CrdV1, ApiGroup::V3] {
            api.define(group.api_version())?;
            api.await_group(group.name())?;
        }
        api.cni_user()?;
        ControlPlane::account(api).map(drop)
    };
    on_prepared_kubernetes("both groups", prepare, |host, servers| {
        on_cluster(group, host, servers, test)
    });
}

fn on_cluster(
    group: ApiGroup,
    host: &Host,
    servers: &mut Kubernetes,
    test: impl FnOnce(&Cluster<'_>, &mut ControlPlane<'_>),
) {
    let mut control_plane = ControlPlane::of(servers);
    let cluster = Cluster::with(host, |_| Ok(control_plane.store(group))).unwrap();
    test(&cluster, &mut control_plane);
}

/// Runs a test as [`on_api_server`] does, with `components/node-restriction`. The configuration of
/// each of `nodes` has a kubeconfig with a token that is bound to this node.
pub fn on_restricted_api_server(
    group: ApiGroup,
    nodes: &[&str],
    test: impl FnOnce(&Cluster<'_>, &mut ControlPlane<'_>) + Send,
) {
    on_restricted(&[group], nodes, |host, servers| {
        let mut control_plane = ControlPlane::restricted(servers, nodes);
        let cluster = Cluster::with(host, |_| Ok(control_plane.store(group))).unwrap();
        test(&cluster, &mut control_plane);
    });
}

/// Runs a test once for each API group, one after the other on one API server with both groups,
/// with `components/node-restriction` and the nodes `node1` and `node2`. Expects that the server
/// refuses no request of the plugins.
pub fn on_each_group(test: impl Fn(&Cluster<'_>, &mut ControlPlane<'_>) + Send + Sync) {
    let groups = [ApiGroup::CrdV1, ApiGroup::V3];
    on_restricted(&groups, &NODES, |host, servers| {
        host.add_uplink().unwrap();
        let mut control_plane = ControlPlane::restricted(servers, &NODES);
        for group in groups {
            // The new host does not have the audit log, which is a file of this one.
            let audit = control_plane.servers.api.audit().unwrap();
            let on_new_host = |host: &Host| {
                // The plugins' kubeconfigs are files of the new host, so each run writes its own.
                let cluster = Cluster {
                    host,
                    plugins: Plugins::locate()?,
                    store: control_plane.store(group),
                };
                test(&cluster, &mut control_plane);
                cluster.store.clear()
            };
            host.reinstalled(on_new_host).unwrap();
            audit.assert_nothing_refused(&control_plane.account.user);
        }
    });
}

/// Runs a test on an API server with these groups, with KubeVirt's machines, and with policies that
/// limit the tokens of these nodes.
fn on_restricted(
    groups: &[ApiGroup],
    nodes: &[&str],
    test: impl FnOnce(&Host, &mut Kubernetes) + Send,
) {
    let preparation = format!("{groups:?} restricted on {nodes:?}");
    let groups = groups.to_vec();
    let nodes: Vec<String> = nodes.iter().map(|&node| node.to_owned()).collect();
    let prepare = move |api: &ApiServer| {
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let (_, tokens) = api.restrict_nodes(&nodes)?;
        api.namespace(NAMESPACE)?;
        api.define_machines()?;
        for group in groups {
            api.define(group.api_version())?;
            let token = tokens.values().next().context("no nodes")?;
            api.await_node_restriction(group, token)?;
        }
        Ok(())
    };
    on_prepared_kubernetes(&preparation, prepare, test);
}

/// Runs a test on an API server with the objects that `install` creates, and with the definitions
/// of `crd.projectcalico.org/v1`. The plugins have the permissions of `deploy/rbac` and no others.
pub fn on_installation(
    install: impl FnOnce(&ApiServer) + Send,
    test: impl FnOnce(&Cluster<'_>, &mut Kubernetes, &ServiceAccount) + Send,
) {
    on_installation_of(ApiGroup::CrdV1, install, test);
}

/// Does the same as [`on_installation`] with the definitions of an API group.
pub fn on_installation_of(
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

    fn restricted(servers: &'k mut Kubernetes, nodes: &[&str]) -> ControlPlane<'k> {
        let proxy = Arc::new(servers.api.proxy().unwrap());
        let (account, tokens) = servers.api.restrict_nodes(nodes).unwrap();
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
