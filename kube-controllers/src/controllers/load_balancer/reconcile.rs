use std::net::IpAddr;
use std::time::Duration;

use datastore::kubernetes::ObjectRequest;
use k8s_openapi::api::core::v1::{Namespace, Service as K8sService};
use libcalico::api::ObjectKey;
use libcalico::ipam::{HandleId, Labels};
use libcalico::kubernetes::{Location, NAMESPACES, SERVICES};
use serde_json::json;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::addresses::{AssignFailure, ServiceAddresses};
use super::decision::{Decision, HeldAddress, MissingAddress, Plan, decide, status_differs};
use super::pools::{LoadBalancerPool, stored_pools};
use super::reports::WaitReports;
use super::service::{LoadBalancerService, publish_addresses, withdraw_addresses};
use super::service_cache::{ServiceCache, ServiceState};
use super::status_writes::StatusWrites;
use super::wait_reason::{NotServed, Wait};
use crate::api_reads;
use crate::context::Context;
use crate::controllers::cached::{CachedController, CachedReconcile, SharedCache};
use crate::controllers::custom_resource::reconcile_error;
use crate::controllers::same_cluster::hold_and_report;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::{AssignIps, ControllerName};
use crate::watches::Watches;

/// Delay before the next look when the cache lags behind the API server or the datastore.
pub(super) const CACHE_LAG: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusWrite {
    /// The status was written, based on the version that was read.
    Sent,
    /// The status that was read is the desired one already.
    Unchanged,
    /// The Service was deleted before the write.
    Deleted,
}

/// A Service in the API server, and its parts on which its addresses depend.
type LiveService = (K8sService, LoadBalancerService);

pub(super) struct ServiceReconciler {
    pub(super) context: Context,
    pub(super) addresses: ServiceAddresses,
    pub(super) cache: SharedCache<ServiceCache>,
    pub(super) reports: WaitReports,
    pub(super) status_writes: SharedCache<StatusWrites>,
}

impl CachedReconcile for ServiceReconciler {
    type Cache = ServiceCache;
    const CONTROLLER: Option<ControllerName> = None;

    fn subscribe(controller: &CachedController<Self>, watches: &mut Watches) {
        controller.subscribe(&mut watches.services, ServiceCache::apply_service);
        controller.subscribe(&mut watches.ip_pools, ServiceCache::apply_pool);
        controller.subscribe(&mut watches.blocks, ServiceCache::apply_block);
    }

    fn new(context: &Context, controller: &CachedController<Self>) -> Self {
        let waiting = controller.cache.lock().waiting.clone();
        ServiceReconciler {
            context: context.clone(),
            addresses: ServiceAddresses {
                store: context.calico.clone(),
            },
            cache: controller.cache.clone(),
            reports: WaitReports::new(context, waiting, controller.queue.clone()),
            status_writes: SharedCache::default(),
        }
    }

    /// Returns the namespace: its number of Services, and the number of their changes, must not
    /// delay other namespaces.
    fn group_of(key: &ObjectKey) -> &str {
        key.namespace.as_deref().unwrap_or_default()
    }

    fn all_keys(cache: &ServiceCache) -> Vec<ObjectKey> {
        cache.services()
    }
}

impl Reconcile for ServiceReconciler {
    const NAME: &'static str = "load-balancer";
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let outcome = self.reconcile_service(key).await;
        // Also after a failure, so that no Service keeps an address from the others.
        let next = self.cache.lock().pass_on(key);
        next.into_iter().for_each(|key| self.reports.queue.add(key));
        outcome
    }
}

impl ServiceReconciler {
    async fn reconcile_service(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let state = self.cache.lock().state_of(key);
        let Some(ServiceState {
            service,
            held,
            pools,
        }) = state
        else {
            return Ok(NextReconcile::AwaitChange);
        };
        let is_own = |held: &HeldAddress| {
            service
                .as_ref()
                .is_some_and(|service| service.handle == held.handle)
        };
        let (own, others): (Vec<_>, Vec<_>) = held.into_iter().partition(is_own);
        if !others.is_empty() {
            // In the API server of another cluster every Service is missing.
            if let Some(wait) = hold_and_report(&self.context).await {
                return Ok(NextReconcile::After(wait));
            }
            if !self.release_handles(key, &others).await? {
                return Ok(NextReconcile::After(CACHE_LAG));
            }
        }
        let Some(service) = service else {
            self.reports.end(key);
            return Ok(NextReconcile::AwaitChange);
        };
        let assign = self.context.settings.borrow().assign_ips;
        let wait = match assign.map(|assign| (assign, decide(Some(&service), &own, &pools, assign)))
        {
            // With an unknown value of `assignIPs`, the Service neither gets nor loses an address.
            None => Wait::not_enabled(
                NotServed::UnknownAssignIps,
                &service,
                &pools,
                AssignIps::default(),
            ),
            Some((_, Err(error))) => Some(Wait::invalid_request(&error)),
            Some((_, Ok(Decision::Nothing))) => Wait::class(&service),
            // A new pool queues all Services again. A missing pool is a reason only for a Service
            // that requests an address: in a cluster that never had a pool, another implementation
            // may serve the other Services.
            Some((_, Ok(Decision::NoPool))) => {
                service.request.requests_address().then(Wait::no_pool)
            }
            Some((assign, Ok(Decision::Withdraw))) => {
                return self.withdraw(key, &service.handle, &own, assign).await;
            }
            Some((
                _,
                Ok(Decision::Serve(Plan {
                    assign,
                    keep,
                    release,
                })),
            )) if assign.is_empty()
                && release.is_empty()
                && !status_differs(&service.published, &keep) =>
            {
                None
            }
            Some((assign, Ok(Decision::Serve(_)))) => {
                return self.serve(key, &service.handle, &pools, assign).await;
            }
        };
        self.reports.report(key, &service, wait.as_ref()).await;
        Ok(NextReconcile::AwaitChange)
    }

    /// Releases the addresses of a Service that was deleted, has another type now, or was replaced
    /// by a new Service of the same name. Returns false, without releasing, if the live Service has
    /// the handle of one of the addresses.
    async fn release_handles(
        &self,
        key: &ObjectKey,
        held: &[HeldAddress],
    ) -> Result<bool, ReconcileError> {
        let live = self
            .live(key)
            .await?
            .as_ref()
            .and_then(LoadBalancerService::live);
        let mut handles: Vec<&HandleId> = held.iter().map(|held| &held.handle).collect();
        handles.dedup();
        if live.is_some_and(|live| handles.contains(&&live.handle)) {
            return Ok(false);
        }
        for handle in handles {
            self.addresses.release_all(handle).await?;
        }
        Ok(true)
    }

    /// Removes the Service's addresses from the status, then releases them. After a crash in
    /// between, the next run releases the addresses.
    async fn withdraw(
        &self,
        key: &ObjectKey,
        handle: &HandleId,
        cached: &[HeldAddress],
        assign: AssignIps,
    ) -> Result<NextReconcile, ReconcileError> {
        // The watch will deliver that the Service is missing, was replaced, or has another type.
        let Some((mut live, service)) = self.live_owner(key, handle).await? else {
            return Ok(NextReconcile::After(CACHE_LAG));
        };
        // The pools are listed again, because the cache omits unreadable pools.
        let is_managed = service.request.is_managed(assign);
        let pools = if is_managed {
            stored_pools(&self.context.calico).await?
        } else {
            Vec::new()
        };
        if decide(Some(&service), cached, &pools, assign) != Ok(Decision::Withdraw) {
            return Ok(NextReconcile::After(CACHE_LAG));
        }
        let held = self.addresses.held(handle).await?;
        let hidden: Vec<IpAddr> = cached.iter().chain(&held).map(|held| held.ip).collect();
        let written = self
            .write_status(key, &mut live, |service| {
                withdraw_addresses(service, &hidden)
            })
            .await?;
        if !self.is_current(key, &live, written).await? {
            return Ok(NextReconcile::After(CACHE_LAG));
        }
        self.addresses.release_all(handle).await?;
        self.status_writes.lock().forget(key);
        Ok(NextReconcile::AwaitChange)
    }

    /// Assigns the missing addresses, publishes those that stay, and then releases the others.
    async fn serve(
        &self,
        key: &ObjectKey,
        handle: &HandleId,
        pools: &[LoadBalancerPool],
        assign: AssignIps,
    ) -> Result<NextReconcile, ReconcileError> {
        let Some((mut live, service)) = self.live_owner(key, handle).await? else {
            return Ok(NextReconcile::After(CACHE_LAG));
        };
        let plan = async || {
            let held = self.addresses.held(handle).await?;
            Ok::<_, ReconcileError>(decide(Some(&service), &held, pools, assign))
        };
        let mut planned = match plan().await? {
            Ok(Decision::Serve(plan)) => plan,
            Ok(_) => return Ok(NextReconcile::After(CACHE_LAG)),
            Err(error) => {
                self.reports
                    .report(key, &service, Some(&Wait::invalid_request(&error)))
                    .await;
                return Ok(NextReconcile::AwaitChange);
            }
        };
        // Read before the assignment, so that a cooldown that ends during the assignment counts.
        let begin = OffsetDateTime::now_utc();
        let mut assigned = Ok(());
        if !planned.assign.is_empty() {
            assigned = match self.labels(key).await {
                Ok(labels) => {
                    self.addresses
                        .assign(key, handle, &planned.assign, labels)
                        .await
                }
                Err(error) => Err(AssignFailure::from(error)),
            };
            let Ok(Decision::Serve(replanned)) = plan().await? else {
                return Ok(NextReconcile::After(CACHE_LAG));
            };
            planned = replanned;
            // Another replica may have assigned the address meanwhile.
            if planned.assign.is_empty() {
                assigned = Ok(());
            }
        }
        // Before the other requests, whose failures would delay the Event.
        match &assigned {
            Ok(()) => self.reports.report(key, &service, None).await,
            // The reason, if there was one, is unknown.
            Err(AssignFailure {
                error: Some(ReconcileError::Retry(_)),
                wait: None,
            }) => {}
            Err(AssignFailure { wait, .. }) => {
                self.reports.report(key, &service, wait.as_ref()).await;
                if wait
                    .as_ref()
                    .is_some_and(|wait| wait.reason.may_end_with_a_release())
                {
                    self.await_cooldown(key, &planned.assign, pools, begin)
                        .await?;
                }
            }
        }
        let shown: Vec<IpAddr> = planned.keep.iter().map(|held| held.ip).collect();
        self.cache.lock().took(key, &shown);
        // While the status is another program's, addresses that the status may still show are not
        // released.
        if let Some(left) = self
            .status_pause(key, &service, &planned.keep, &shown)
            .await
        {
            return match assigned {
                Err(AssignFailure {
                    error: Some(ReconcileError::Retry(text)),
                    ..
                }) => Err(ReconcileError::Retry(text)),
                _ => Ok(NextReconcile::After(left)),
            };
        }
        let written = self
            .write_status(key, &mut live, |service| publish_addresses(service, &shown))
            .await?;
        match written {
            StatusWrite::Sent => {
                self.status_writes
                    .lock()
                    .record(key, &service.uid, &shown, Instant::now())
            }
            StatusWrite::Unchanged => {}
            StatusWrite::Deleted => return Ok(NextReconcile::After(CACHE_LAG)),
        }
        if !planned.release.is_empty() {
            if !self.is_current(key, &live, written).await? {
                return Ok(NextReconcile::After(CACHE_LAG));
            }
            // Before the request, because the watch may deliver the release before its response.
            self.cache
                .lock()
                .set_releasing(key, planned.release.iter().map(|held| held.ip).collect());
            let released = self.addresses.release(&planned.release).await;
            released.inspect_err(|_| self.cache.lock().set_releasing(key, Vec::new()))?;
        }
        match assigned.err().and_then(|failure| failure.error) {
            None => Ok(NextReconcile::AwaitChange),
            Some(ReconcileError::Retry(text)) => {
                Err(ReconcileError::Retry(format!("Service {key}: {text}")))
            }
            Some(ReconcileError::Permanent(text)) => {
                Err(ReconcileError::Permanent(format!("Service {key}: {text}")))
            }
        }
    }

    /// Returns the time for which the status must not be written, because another program
    /// overwrites it again and again. Reports that program once.
    async fn status_pause(
        &self,
        key: &ObjectKey,
        service: &LoadBalancerService,
        keep: &[HeldAddress],
        shown: &[IpAddr],
    ) -> Option<Duration> {
        if !status_differs(&service.published, keep) {
            return None;
        }
        let pause = self
            .status_writes
            .lock()
            .pause(key, &service.uid, shown, Instant::now())?;
        if pause.is_new {
            self.reports.report_overwritten(key, service, shown).await;
        }
        Some(pause.left)
    }

    /// Returns the Service to the queue at the first end of a cooldown, after `begin`, that may end
    /// the wait for `missing`, unless another Service waits for the same address. No watch reports
    /// that end. The queue has at most one such time for each Service.
    async fn await_cooldown(
        &self,
        key: &ObjectKey,
        missing: &[MissingAddress],
        pools: &[LoadBalancerPool],
        begin: OffsetDateTime,
    ) -> Result<(), ReconcileError> {
        let cooling = self.cache.lock().cooling_for(missing, pools);
        let ends = self.addresses.cooldown_ends(&cooling, begin).await?;
        let (now, clock) = (Instant::now(), OffsetDateTime::now_utc());
        let left = |end: OffsetDateTime| Duration::try_from(end - clock).unwrap_or_default();
        // A cooldown that is longer than the clock can represent does not end.
        let ends = ends
            .into_iter()
            .filter_map(|(ip, end)| Some((ip, now.checked_add(left(end))?)))
            .collect::<Vec<_>>();
        if let Some(end) = self.cache.lock().reserve(key, &ends) {
            self.reports
                .queue
                .add_after(key.clone(), end.saturating_duration_since(now));
        }
        Ok(())
    }

    /// Returns the labels of the Service's namespace, by which pools may select.
    async fn labels(&self, key: &ObjectKey) -> Result<Labels, ReconcileError> {
        let name = key.namespace.as_deref().unwrap_or_default();
        let namespace: Namespace = ObjectRequest::get(&Location::global(NAMESPACES, name))
            .send(&self.context.kubernetes)
            .await
            .map_err(|error| reconcile_error(&format!("get namespace {name}"), &error))?;
        Ok(namespace.metadata.labels.unwrap_or_default())
    }

    async fn live(&self, key: &ObjectKey) -> Result<Option<K8sService>, ReconcileError> {
        api_reads::read_object(&self.context.kubernetes, SERVICES, key).await
    }

    /// Returns the live Service, if it is of type LoadBalancer and is the Service to which `handle`
    /// belongs.
    async fn live_owner(
        &self,
        key: &ObjectKey,
        handle: &HandleId,
    ) -> Result<Option<LiveService>, ReconcileError> {
        let Some(live) = self.live(key).await? else {
            return Ok(None);
        };
        let service = LoadBalancerService::live(&live).filter(|live| live.handle == *handle);
        Ok(service.map(|service| (live, service)))
    }

    /// Writes the status if `change` changes it, based on the version that was read.
    async fn write_status(
        &self,
        key: &ObjectKey,
        live: &mut K8sService,
        change: impl FnOnce(&mut K8sService),
    ) -> Result<StatusWrite, ReconcileError> {
        let shown = |service: &K8sService| {
            service
                .status
                .as_ref()
                .and_then(|status| status.load_balancer.clone())
        };
        let before = shown(live);
        change(live);
        if shown(live) == before {
            return Ok(StatusWrite::Unchanged);
        }
        let request =
            ObjectRequest::replace_status(&api_reads::location(SERVICES, key), &json!(live));
        match request.send(&self.context.kubernetes).await {
            Err(error) if error.is_missing() => Ok(StatusWrite::Deleted),
            Err(error) => Err(reconcile_error(
                &format!("write status of Service {key}"),
                &error,
            )),
            Ok(written) => {
                *live = written;
                Ok(StatusWrite::Sent)
            }
        }
    }

    /// Returns true if the Service is unchanged since its addresses were decided. A written status
    /// proves that. If the status needed no write, the Service is read again, because it may
    /// request an address by now that is about to be released.
    async fn is_current(
        &self,
        key: &ObjectKey,
        decided: &K8sService,
        written: StatusWrite,
    ) -> Result<bool, ReconcileError> {
        match written {
            StatusWrite::Sent => Ok(true),
            StatusWrite::Deleted => Ok(false),
            StatusWrite::Unchanged => {
                let version = |service: &K8sService| service.metadata.resource_version.clone();
                Ok(self
                    .live(key)
                    .await?
                    .is_some_and(|live| version(&live) == version(decided)))
            }
        }
    }
}
