//! Selects and runs the controllers with one set of settings: from their subscription until they
//! are stopped, for example because a setting changes that requires new controllers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use libcalico::kubernetes::ApiGroup;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::rule_sets::{self, RuleSet};
use crate::context::Context;
use crate::controllers::host_endpoints::HostEndpoints;
use crate::controllers::ip_pool::IpPools;
use crate::controllers::load_balancer::{LoadBalancer, LoadBalancerReport};
use crate::controllers::namespace::NamespaceController;
use crate::controllers::node_deletion::NodeDeletion;
use crate::controllers::node_labels::NodeLabels;
use crate::controllers::policy::PolicyController;
use crate::controllers::policy_names::PolicyNames;
use crate::controllers::same_cluster;
use crate::controllers::service_account::ServiceAccountController;
use crate::controllers::tier::Tiers;
use crate::controllers::workload_endpoint::WorkloadEndpoints;
use crate::gc::GarbageCollection;
use crate::runtime::Controller;
use crate::settings::{ControllerName, Mode, Settings};
use crate::status::Status;
use crate::watches::Watches;

/// Time limit for controllers and watches to end. Most writes that were sent have their responses
/// by then.
const STOP_DEADLINE: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecycleEnd {
    Stopped,
    /// Settings or rights changed that require new controllers.
    Changed,
    /// A controller ended by itself, which is a bug.
    Failed,
}

/// Runs the controllers that the present settings enable, until `context.stop`, until the settings
/// or the rights require other controllers, or until a controller ends.
pub(super) async fn run_until_changed(context: &Context, status: &Status) -> LifecycleEnd {
    let (settings, stop) = (context.settings.borrow().clone(), &context.stop);
    let context = Context {
        stop: stop.child_token(),
        ..context.clone()
    };
    let Some(refused) = stop
        .run_until_cancelled(rule_sets::refused(&context, &BTreeSet::new()))
        .await
    else {
        return LifecycleEnd::Stopped;
    };
    let mut watches = Watches::default();
    let controllers = build(&context, &settings, &refused, &mut watches);
    let names: Vec<_> = controllers.iter().map(|(name, _)| *name).collect();
    tracing::info!(
        "running controllers: {}",
        if names.is_empty() {
            "none".into()
        } else {
            names.join(", ")
        }
    );

    let mut tasks = JoinSet::new();
    for (name, run) in controllers {
        tasks.spawn(async move {
            run.await;
            name
        });
    }
    let running = watches.start(&context);
    let end = tokio::select! {
        biased;
        () = stop.cancelled() => LifecycleEnd::Stopped,
        () = wait_for_restart(&settings, context.settings.clone()) => LifecycleEnd::Changed,
        () = rule_sets::await_change(&context, status, &refused) => LifecycleEnd::Changed,
        Some(ended) = tasks.join_next() => {
            tracing::error!("a controller ended unexpectedly; restarting all controllers: {ended:?}");
            LifecycleEnd::Failed
        }
        never = running.await_lists(status) => match never {},
    };
    context.stop.cancel();
    let drained = async {
        while tasks.join_next().await.is_some() {}
        running.stopped().await;
    };
    if timeout(STOP_DEADLINE, drained).await.is_err() {
        tracing::warn!(
            "some controllers or watches did not end within {STOP_DEADLINE:?} and are canceled"
        );
    }
    context.metrics.remove_controllers();
    end
}

/// Waits until settings are in force for which controllers that run with `settings` have to be
/// restarted.
async fn wait_for_restart(settings: &Settings, mut current: watch::Receiver<Arc<Settings>>) {
    if current
        .wait_for(|next| settings.restarts_for(next))
        .await
        .is_err()
    {
        // The sender is gone, so the settings never change again.
        std::future::pending::<()>().await;
    }
}

/// A controller that has subscribed to its watches: its name in logs and metrics, and its work.
type NamedTask = (&'static str, BoxFuture<'static, ()>);

/// Creates the controllers that the settings enable, except those with a refused rule set, and
/// subscribes them to `watches`.
fn build(
    context: &Context,
    settings: &Settings,
    refused: &BTreeSet<RuleSet>,
    watches: &mut Watches,
) -> Vec<NamedTask> {
    match context.mode {
        Mode::Etcd if !settings.enabled.is_empty() => {
            same_cluster::follow(&context.same_cluster, watches);
        }
        Mode::Etcd | Mode::Kubernetes(_) => {}
    }
    let mut registry = Registry {
        context,
        watches,
        refused,
        controllers: Vec::new(),
    };
    for name in &settings.enabled {
        match name {
            ControllerName::Node => registry.add_node_controllers(settings),
            ControllerName::Policy => registry.add::<PolicyController>(),
            ControllerName::Namespace => registry.add::<NamespaceController>(),
            ControllerName::ServiceAccount => registry.add::<ServiceAccountController>(),
            ControllerName::LoadBalancer => {
                registry.add_granted::<LoadBalancer>(RuleSet::LoadBalancer)
            }
            ControllerName::WorkloadEndpoint => registry.add::<WorkloadEndpoints>(),
        }
    }
    let serves = settings.enabled.contains(&ControllerName::LoadBalancer)
        && !refused.contains(&RuleSet::LoadBalancer);
    // Garbage collection watches Services and pools too, so the report causes no further watch.
    if !serves && settings.enabled.contains(&ControllerName::Node) {
        registry.add::<LoadBalancerReport>();
    }
    match context.mode {
        // With this group there is no API server of Calico's, so kube-controllers does the work of
        // that server. Names of policies are the names of their resources, so the migrator has no
        // work.
        Mode::Kubernetes(ApiGroup::V3) => {
            registry.add::<IpPools>();
            registry.add::<Tiers>();
        }
        Mode::Etcd | Mode::Kubernetes(ApiGroup::CrdV1) if settings.policy_name_migrator => {
            registry.add_granted::<PolicyNames>(RuleSet::PolicyNames)
        }
        Mode::Etcd | Mode::Kubernetes(ApiGroup::CrdV1) => {}
    }
    registry.controllers
}

struct Registry<'a> {
    context: &'a Context,
    watches: &'a mut Watches,
    refused: &'a BTreeSet<RuleSet>,
    controllers: Vec<NamedTask>,
}

impl Registry<'_> {
    fn add_node_controllers(&mut self, settings: &Settings) {
        self.add::<GarbageCollection>();
        // Created also if automatic host endpoints are turned off: this controller then deletes
        // those that it created.
        self.add_granted::<HostEndpoints>(RuleSet::HostEndpoints);
        if settings.sync_node_labels {
            self.add::<NodeLabels>();
        }
        if settings.delete_nodes {
            self.add::<NodeDeletion>();
        }
    }

    fn add_granted<C: Controller>(&mut self, rights: RuleSet) {
        if !self.refused.contains(&rights) {
            self.add::<C>();
        }
    }

    fn add<C: Controller>(&mut self) {
        let controller = C::new(self.context, self.watches);
        self.controllers
            .push((C::NAME, controller.run(self.context.clone()).boxed()));
    }
}
