//! [`ControlledCluster`]: a cluster with Calico's objects in one of three datastores, and the
//! controllers of nodes, Services, pools and tiers, which a test starts and stops.

use anyhow::Result;
use futures::future::BoxFuture;
use integration_tests::Place;
pub(crate) use integration_tests::controllers::{CALM, RunningControllers, becomes, stays};
use integration_tests::controllers::{
    Connection, ControllersCluster, TypedObjects, controller, default_settings, on_both_groups,
};
use integration_tests::kubernetes::{ApiServer, Audit, Role, ServiceAccount};
pub(crate) use integration_tests::on;
use kube_controllers::context::Context;
use kube_controllers::controllers::host_endpoints::HostEndpoints;
use kube_controllers::controllers::ip_pool::IpPools;
use kube_controllers::controllers::load_balancer::{LoadBalancer, LoadBalancerReport};
use kube_controllers::controllers::node_deletion::NodeDeletion;
use kube_controllers::controllers::node_labels::NodeLabels;
use kube_controllers::controllers::tier::Tiers;
use kube_controllers::settings::Settings;
use kube_controllers::watches::Watches;
use libcalico::api::{NodeSpec, Object, ObjectKey, Spec};
use libcalico::kubernetes::ApiGroup;
use libcalico::store::Entry;
use serde_json::{Value, json};

pub(crate) struct ControlledCluster<'a> {
    pub(crate) servers: ControllersCluster<'a>,
    pub(crate) audit: Audit,
    pub(crate) objects: TypedObjects,
    connection: Connection,
}

/// A function that subscribes a controller and returns its work.
type Subscribe = fn(&Context, &mut Watches) -> BoxFuture<'static, ()>;

/// Runs a test with controllers that have the rights of `deploy/rbac`, or all rights with etcd.
pub(crate) fn on(place: Place, test: impl FnOnce(&ControlledCluster<'_>) + Send) {
    let prepare = |api: &ApiServer| {
        api.namespace("default")?;
        account(api).map(drop)
    };
    on_both_groups("rights of deploy/rbac", place, prepare, |servers| {
        let (api, group) = (servers.api, servers.group);
        let kubeconfig = match group {
            None => api.admin_kubeconfig(),
            Some(_) => account(api).unwrap().kubeconfig,
        };
        test(&ControlledCluster {
            servers: *servers,
            audit: api.audit().unwrap(),
            objects: TypedObjects::new(group, api.admin_kubeconfig()),
            connection: Connection::new(group, kubeconfig),
        });
    });
}

/// Creates the account of the controllers. Writes nothing if it exists.
fn account(api: &ApiServer) -> Result<ServiceAccount> {
    let manifests = Role::manifests_of_controllers();
    api.account_of("kube-system", "calico-kube-controllers", &manifests)
}

impl ControlledCluster<'_> {
    // === Calico's objects ===

    pub(crate) fn get<S: Spec>(&self, name: &str) -> Option<Entry<Object<S>>> {
        self.objects.get(&ObjectKey::global(name))
    }

    pub(crate) fn put<S: Spec>(&self, name: &str, metadata: Value, spec: Value) {
        let mut object: Object<S> = Object::new(name, serde_json::from_value(spec).unwrap());
        object.metadata = serde_json::from_value(metadata).unwrap();
        object.metadata.name = name.into();
        match self.get::<S>(name) {
            None => self.objects.create(&object.key(), &object),
            Some(found) => self.objects.update(&Entry {
                value: object,
                ..found
            }),
        }
    }

    pub(crate) fn delete<S: Spec>(&self, name: &str) {
        self.objects.delete::<Object<S>>(&ObjectKey::global(name));
    }

    pub(crate) fn names<S: Spec>(&self) -> Vec<String> {
        let listed = self.objects.list::<Object<S>>(&Default::default());
        listed.into_iter().map(|entry| entry.key.name).collect()
    }

    // === Kubernetes objects ===

    pub(crate) fn kubernetes_node(&self, name: &str, labels: Value, annotations: Value) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
        });
        self.servers.apply(node);
    }

    pub(crate) fn delete_kubernetes_node(&self, name: &str) {
        self.servers.remove(&format!("/api/v1/nodes/{name}"));
    }

    /// Creates a Calico Node in etcd, or a Kubernetes Node with Calico's annotation on an API
    /// server.
    pub(crate) fn calico_node(&self, name: &str, labels: Value, address: &str) {
        if self.servers.group.is_none() {
            // The controller would delete a Calico Node that refers to a missing Kubernetes Node.
            let spec = json!({"bgp": {"ipv4Address": address}});
            return self.put::<NodeSpec>(name, json!({"labels": labels}), spec);
        }
        let annotations = json!({"projectcalico.org/IPv4Address": address});
        self.kubernetes_node(name, labels, annotations);
    }

    pub(crate) fn delete_calico_node(&self, name: &str) {
        if self.servers.group.is_none() {
            return self.delete::<NodeSpec>(name);
        }
        self.delete_kubernetes_node(name);
    }

    // === controllers ===

    pub(crate) fn start(&self, change: impl FnOnce(&mut Settings)) -> RunningControllers {
        self.start_beside(controller::<LoadBalancer>, change)
    }

    /// Starts the controllers as they run if the controller of Services is not enabled, or lacks
    /// its role.
    pub(crate) fn start_without_load_balancer(
        &self,
        change: impl FnOnce(&mut Settings),
    ) -> RunningControllers {
        self.start_beside(controller::<LoadBalancerReport>, change)
    }

    fn start_beside(
        &self,
        services: Subscribe,
        change: impl FnOnce(&mut Settings),
    ) -> RunningControllers {
        let group = self.servers.group;
        let mut settings = default_settings(group);
        change(&mut settings);
        RunningControllers::start(&self.connection, settings, move |context, watches| {
            let mut work = vec![
                controller::<HostEndpoints>(context, watches),
                services(context, watches),
            ];
            match group {
                None => {
                    work.push(controller::<NodeLabels>(context, watches));
                    work.push(controller::<NodeDeletion>(context, watches));
                }
                Some(ApiGroup::V3) => {
                    work.push(controller::<IpPools>(context, watches));
                    work.push(controller::<Tiers>(context, watches));
                }
                Some(ApiGroup::CrdV1) => {}
            }
            work
        })
    }
}
