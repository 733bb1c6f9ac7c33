//! [`LoadBalancerReport`]: reports why Services wait while kube-controllers gives no addresses to
//! Services. Writes nothing but Events.

use std::sync::Arc;

use libcalico::api::{IpPool, ObjectKey};
use libcalico::store::Entry;
use tokio::sync::watch;

use super::pools::LoadBalancerPool;
use super::reports::{WaitReports, publish, reset_on_standby};
use super::service::LoadBalancerService;
use super::wait_reason::{NotServed, Wait};
use super::waiting::WaitingServices;
use crate::context::Context;
use crate::controllers::cached::{CachedController, CachedReconcile, SharedCache};
use crate::runtime::{Controller, NextReconcile, Reconcile, ReconcileError};
use crate::settings::{ControllerName, Settings};
use crate::watched::Service;
use crate::watches::{Cache, Event, Watches};

/// The controller. Its keys are names of Services. It runs where
/// [`LoadBalancer`](super::LoadBalancer) does not.
pub struct LoadBalancerReport(CachedController<ReportReconciler>);

impl Controller for LoadBalancerReport {
    const NAME: &'static str = ReportReconciler::NAME;

    fn new(context: &Context, watches: &mut Watches) -> Self {
        let controller = CachedController::<ReportReconciler>::new(context, watches);
        publish(context, &controller.cache.lock().waiting);
        LoadBalancerReport(controller)
    }

    async fn run(self, context: Context) {
        let LoadBalancerReport(controller) = self;
        let waiting = controller.cache.lock().waiting.clone();
        let reset = reset_on_standby(
            context.leadership.clone(),
            waiting,
            controller.queue.clone(),
        );
        tokio::select! {
            () = controller.run(context) => {}
            () = reset => {}
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ReportCache {
    services: Cache<ObjectKey, LoadBalancerService>,
    pools: Cache<ObjectKey, LoadBalancerPool>,
    waiting: SharedCache<WaitingServices>,
}

impl ReportCache {
    /// Applies an event. Returns the Services to reconcile: none before the pools are listed.
    pub(super) fn apply_service(&mut self, event: &Event<'_, Service>) -> Vec<ObjectKey> {
        let changed = self.services.apply(event, LoadBalancerService::watched);
        if self.pools.is_synced() {
            changed
        } else {
            Vec::new()
        }
    }

    /// Applies an event. Returns the Services to reconcile: all, if the pools have just been listed
    /// or one changed.
    pub(super) fn apply_pool(&mut self, event: &Event<'_, Entry<IpPool>>) -> Vec<ObjectKey> {
        let was_synced = self.pools.is_synced();
        let changed = self
            .pools
            .apply(event, |entry| LoadBalancerPool::from_pool(&entry.value));
        let is_first = self.pools.is_synced() && !was_synced;
        if is_first || (was_synced && !changed.is_empty()) {
            self.services()
        } else {
            Vec::new()
        }
    }

    fn services(&self) -> Vec<ObjectKey> {
        self.services.iter().map(|(key, _)| key.clone()).collect()
    }
}

pub(super) struct ReportReconciler {
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    pub(super) cache: SharedCache<ReportCache>,
    pub(super) reports: WaitReports,
}

impl CachedReconcile for ReportReconciler {
    type Cache = ReportCache;
    const CONTROLLER: Option<ControllerName> = None;

    fn subscribe(controller: &CachedController<Self>, watches: &mut Watches) {
        controller.subscribe(&mut watches.services, ReportCache::apply_service);
        controller.subscribe(&mut watches.ip_pools, ReportCache::apply_pool);
    }

    fn new(context: &Context, controller: &CachedController<Self>) -> Self {
        let waiting = controller.cache.lock().waiting.clone();
        ReportReconciler {
            settings: context.settings.clone(),
            cache: controller.cache.clone(),
            reports: WaitReports::new(context, waiting, controller.queue.clone()),
        }
    }

    fn group_of(key: &ObjectKey) -> &str {
        key.namespace.as_deref().unwrap_or_default()
    }

    fn all_keys(cache: &ReportCache) -> Vec<ObjectKey> {
        cache.services()
    }
}

impl Reconcile for ReportReconciler {
    const NAME: &'static str = "load-balancer-report";
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let (service, pools): (_, Vec<_>) = {
            let cache = self.cache.lock();
            let pools = cache.pools.iter().map(|(_, pool)| pool.clone());
            (cache.services.get(key).cloned(), pools.collect())
        };
        let Some(service) = service else {
            self.reports.end(key);
            return Ok(NextReconcile::AwaitChange);
        };
        let wait = {
            let settings = self.settings.borrow();
            let is_enabled = settings.enabled.contains(&ControllerName::LoadBalancer);
            let cause = if is_enabled {
                NotServed::RoleMissing
            } else {
                NotServed::Disabled
            };
            Wait::not_enabled(
                cause,
                &service,
                &pools,
                settings.assign_ips.unwrap_or_default(),
            )
        };
        self.reports.report(key, &service, wait.as_ref()).await;
        Ok(NextReconcile::AwaitChange)
    }
}
