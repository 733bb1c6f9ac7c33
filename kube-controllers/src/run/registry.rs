//! Selects the controllers that the settings enable.

use futures::FutureExt;
use futures::future::BoxFuture;
use libcalico::kubernetes::ApiGroup;

use crate::context::Context;
use crate::controllers::host_endpoints::HostEndpoints;
use crate::controllers::ip_pool::IpPools;
use crate::controllers::load_balancer::LoadBalancer;
use crate::controllers::namespace::NamespaceController;
use crate::controllers::node_deletion::NodeDeletion;
use crate::controllers::node_labels::NodeLabels;
use crate::controllers::policy::PolicyController;
use crate::controllers::policy_names::PolicyNames;
use crate::controllers::service_account::ServiceAccountController;
use crate::controllers::tier::Tiers;
use crate::controllers::workload_endpoint::WorkloadEndpoints;
use crate::gc::GarbageCollection;
use crate::runtime::Controller;
use crate::settings::{ControllerName, Mode, Settings};
use crate::watches::Watches;

/// A controller that has subscribed to its watches.
pub(super) struct RegisteredController {
    /// The controller's name in logs and metrics.
    pub(super) name: &'static str,
    /// The controller's work. Ends when the controllers are stopped.
    pub(super) run: BoxFuture<'static, ()>,
}

/// Creates the controllers that the settings enable, and subscribes them to `watches`.
pub(super) fn build(context: &Context, settings: &Settings, watches: &mut Watches) -> Vec<RegisteredController> {
    let mut registry = Registry { context, watches, controllers: Vec::new() };
    for name in &settings.enabled {
        match name {
            ControllerName::Node => registry.add_node_controllers(settings),
            ControllerName::Policy => registry.add::<PolicyController>(),
            ControllerName::Namespace => registry.add::<NamespaceController>(),
            ControllerName::ServiceAccount => registry.add::<ServiceAccountController>(),
            ControllerName::LoadBalancer => registry.add::<LoadBalancer>(),
            ControllerName::WorkloadEndpoint => registry.add::<WorkloadEndpoints>(),
        }
    }
    match context.mode {
        Mode::Etcd | Mode::Kubernetes(ApiGroup::CrdV1) if settings.policy_name_migrator => {
            registry.add::<PolicyNames>()
        }
        Mode::Etcd | Mode::Kubernetes(ApiGroup::CrdV1) => {}
        // This group has no API server of Calico's, so kube-controllers does its work. Names of policies are the names
        // of their resources, so the migrator has no work.
        Mode::Kubernetes(ApiGroup::V3) => {
            registry.add::<IpPools>();
            registry.add::<Tiers>();
        }
    }
    registry.controllers
}

struct Registry<'a> {
    context: &'a Context,
    watches: &'a mut Watches,
    controllers: Vec<RegisteredController>,
}

impl Registry<'_> {
    fn add_node_controllers(&mut self, settings: &Settings) {
        self.add::<GarbageCollection>();
        // Always created: a controller that is turned off deletes the host endpoints that it created.
        self.add::<HostEndpoints>();
        if settings.sync_node_labels {
            self.add::<NodeLabels>();
        }
        if settings.delete_nodes {
            self.add::<NodeDeletion>();
        }
    }

    fn add<C: Controller>(&mut self) {
        let controller = C::new(self.context, self.watches);
        self.controllers
            .push(RegisteredController { name: C::NAME, run: controller.run(self.context.clone()).boxed() });
    }
}
