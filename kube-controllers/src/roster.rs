//! Selects the controllers that the settings enable.

use futures::FutureExt;
use futures::future::BoxFuture;
use libcalico::kubernetes::ApiGroup;

use crate::context::{Context, Controller, Mode};
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
use crate::feed::Feeds;
use crate::gc::GarbageCollection;
use crate::settings::{ControllerName, Settings};

/// A controller that has subscribed to its watches.
pub(crate) struct Enlisted {
    /// The controller's name in logs and metrics.
    pub(crate) name: &'static str,
    /// The controller's work. Ends when the controllers are stopped.
    pub(crate) run: BoxFuture<'static, ()>,
}

/// Creates the controllers that the settings enable, and subscribes them to `feeds`.
pub(crate) fn enlist(context: &Context, settings: &Settings, feeds: &mut Feeds) -> Vec<Enlisted> {
    let mut roster = Roster { context, feeds, enlisted: Vec::new() };
    for name in &settings.enabled {
        match name {
            ControllerName::Node => roster.add_those_of_nodes(settings),
            ControllerName::Policy => roster.add::<PolicyController>(),
            ControllerName::Namespace => roster.add::<NamespaceController>(),
            ControllerName::ServiceAccount => roster.add::<ServiceAccountController>(),
            ControllerName::LoadBalancer => roster.add::<LoadBalancer>(),
            ControllerName::WorkloadEndpoint => roster.add::<WorkloadEndpoints>(),
        }
    }
    match context.mode {
        Mode::Etcd | Mode::Kubernetes(ApiGroup::CrdV1) if settings.policy_name_migrator => roster.add::<PolicyNames>(),
        Mode::Etcd | Mode::Kubernetes(ApiGroup::CrdV1) => {}
        // This group has no API server of Calico's, so kube-controllers does its work. Names of policies are the names
        // of their resources, so the migrator has no work.
        Mode::Kubernetes(ApiGroup::V3) => {
            roster.add::<IpPools>();
            roster.add::<Tiers>();
        }
    }
    roster.enlisted
}

struct Roster<'a> {
    context: &'a Context,
    feeds: &'a mut Feeds,
    enlisted: Vec<Enlisted>,
}

impl Roster<'_> {
    fn add_those_of_nodes(&mut self, settings: &Settings) {
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
        let controller = C::new(self.context, self.feeds);
        self.enlisted.push(Enlisted { name: C::NAME, run: controller.run(self.context.clone()).boxed() });
    }
}
