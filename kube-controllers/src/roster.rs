//! Which controllers the settings ask for.

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

/// A controller that has subscribed.
pub(crate) struct Enlisted {
    /// As it is named in logs and metrics.
    pub(crate) name: &'static str,
    /// Its work, until it is told to stop.
    pub(crate) run: BoxFuture<'static, ()>,
}

/// The controllers that are wanted, subscribed to `feeds`.
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
        // What Calico's API server did is for us to do, and names are the resources' own.
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
        // Always, as it takes back what it made when it is turned off.
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
