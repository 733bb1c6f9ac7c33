//! Assigns addresses from Calico's pools to Services of type LoadBalancer, in either datastore.
//!
//! The caches show if a Service needs work. The work itself is decided again from the live Service and the addresses
//! that are stored now. An address is released only after the Service's status no longer shows it. Because of missing
//! pools, addresses are released only if a list of the pools contains none. A published address stays until another
//! address is published. The blocks of these addresses belong to the virtual host `virtual:load-balancer`.

mod addresses;
mod claims;
mod decision;
mod memory;
mod pools;
mod request;
mod service;
mod status;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use datastore::Datastore;
use k8s_openapi::api::core::v1::{Namespace, Service as KubernetesService};
use kube::Api;
use kube::api::PostParams;
use libcalico::api::{IpPool, ObjectKey};
use libcalico::ipam::{Block, HandleId, Labels};
use libcalico::kubernetes::SERVICES;
use libcalico::store::Entry;
use tokio::sync::watch;

use self::addresses::Addresses;
use self::claims::label_claims;
use self::decision::{Decision, Held, Plan, decide, is_misstated};
use self::memory::{Memory, Seen};
use self::pools::{LoadBalancerPool, stored_pools};
use self::service::Balanced;
use super::refusal::{failure, is_not_found};
use super::rounds::rounds;
use crate::context::{Context, Controller};
use crate::feed::{Event, Feeds};
use crate::live;
use crate::runtime::{self, Failure, Next, Queue, Reconcile};
use crate::settings::{AssignIps, Settings};
use crate::watched::Service;

/// Delay before the next look when the cache lags behind.
const LAG: Duration = Duration::from_secs(1);

/// The controller. Its keys are names of Services.
pub struct LoadBalancer {
    queue: Queue<ObjectKey>,
    memory: Arc<Mutex<Memory>>,
}

impl Controller for LoadBalancer {
    const NAME: &'static str = "load-balancer";

    fn new(_: &Context, feeds: &mut Feeds) -> Self {
        let (queue, memory) = (Queue::default(), Arc::<Mutex<Memory>>::default());
        let services = (queue.clone(), memory.clone());
        feeds.services.subscribe(move |event: &Event<'_, Service>| {
            let touched = locked(&services.1).hear_service(event);
            touched.into_iter().for_each(|key| services.0.add(key));
        });
        let pools = (queue.clone(), memory.clone());
        feeds.ip_pools.subscribe(move |event: &Event<'_, Entry<IpPool>>| {
            let touched = locked(&pools.1).hear_pool(event);
            touched.into_iter().for_each(|key| pools.0.add(key));
        });
        let blocks = (queue.clone(), memory.clone());
        feeds.blocks.subscribe(move |event: &Event<'_, Entry<Block>>| {
            let touched = locked(&blocks.1).hear_block(event);
            touched.into_iter().for_each(|key| blocks.0.add(key));
        });
        LoadBalancer { queue, memory }
    }

    async fn run(self, context: Context) {
        tokio::select! {
            () = context.stop.cancelled() => return,
            () = label_claims(&context) => {}
        }
        let all = || {
            let keys = locked(&self.memory).all();
            keys.into_iter().for_each(|key| self.queue.add(key));
        };
        let balancer = Arc::new(Balancer {
            calico: context.calico.clone(),
            addresses: Addresses::new(context.calico.clone()),
            kubernetes: context.kubernetes.clone(),
            settings: context.settings.clone(),
            memory: self.memory.clone(),
        });
        tokio::join!(runtime::run(balancer, self.queue.clone(), 1, context.clone()), rounds(&context, all));
    }
}

fn locked(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outcome of writing a Service's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// The status was written, based on the version that was read.
    Sent,
    /// The status that was read is the desired one already.
    Unchanged,
    /// The Service was deleted meanwhile.
    Gone,
}

struct Balancer {
    calico: Arc<Datastore>,
    addresses: Addresses,
    kubernetes: kube::Client,
    settings: watch::Receiver<Arc<Settings>>,
    memory: Arc<Mutex<Memory>>,
}

impl Reconcile for Balancer {
    const NAME: &'static str = LoadBalancer::NAME;
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Next, Failure> {
        let seen = locked(&self.memory).of(key);
        let Some(Seen { service, held, pools }) = seen else { return Ok(Next::Done) };
        let is_own = |held: &Held| service.as_ref().is_some_and(|service| service.handle == held.handle);
        let (own, others): (Vec<_>, Vec<_>) = held.into_iter().partition(is_own);
        if !others.is_empty() && !self.release_handles(key, &others).await? {
            return Ok(Next::After(LAG));
        }
        let Some(service) = service else { return Ok(Next::Done) };
        // An unknown `assignIPs` neither assigns nor releases an address.
        let Some(assign) = self.settings.borrow().assign_ips else { return Ok(Next::Done) };
        match self.decide(key, &service, &own, &pools, assign)? {
            Decision::Leave => Ok(Next::Done),
            // A new pool queues all Services again. In a cluster that never had a pool, another implementation may
            // serve Services without a request, so this is no failure.
            Decision::NoPool if service.asks() => Err(Failure::Permanent(format!(
                "Service {key}: there is no pool for LoadBalancer to take an address from"
            ))),
            Decision::NoPool => Ok(Next::Done),
            Decision::Withdraw => self.withdraw(key, &service.handle, &own, assign).await,
            Decision::Serve(Plan { assign, keep, release })
                if assign.is_empty() && release.is_empty() && !is_misstated(&service.published, &keep) =>
            {
                locked(&self.memory).set_unserved(key, false);
                Ok(Next::Done)
            }
            Decision::Serve(_) => self.serve(key, &service.handle, &pools, assign).await,
        }
    }
}

impl Balancer {
    fn decide(
        &self,
        key: &ObjectKey,
        service: &Balanced,
        held: &[Held],
        pools: &[LoadBalancerPool],
        assign: AssignIps,
    ) -> Result<Decision, Failure> {
        decide(Some(service), held, pools, assign)
            .map_err(|error| Failure::Permanent(format!("Service {key}: {error}")))
    }

    /// Releases the addresses of a Service that was deleted, has another type now, or was replaced by a new Service of
    /// the same name. Returns false, without releasing, if the live Service still has the handle.
    async fn release_handles(&self, key: &ObjectKey, held: &[Held]) -> Result<bool, Failure> {
        let live = self.live(key).await?.as_ref().and_then(Balanced::live);
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

    /// Removes the Service's addresses from the status, then releases them. In this order the status never shows an
    /// address of another Service, and a crash in between leaves addresses that the next run releases.
    async fn withdraw(
        &self,
        key: &ObjectKey,
        handle: &HandleId,
        heard: &[Held],
        assign: AssignIps,
    ) -> Result<Next, Failure> {
        if let Some((mut live, service)) = self.live_holder(key, handle).await? {
            // The cache omits unreadable pools.
            let pools = if service.is_managed(assign) { stored_pools(&self.calico).await? } else { Vec::new() };
            if decide(Some(&service), heard, &pools, assign) != Ok(Decision::Withdraw) {
                return Ok(Next::After(LAG));
            }
            let held = self.addresses.held(handle).await?;
            let written = self.hide(key, &mut live, heard.iter().chain(&held)).await?;
            if !self.is_current(key, &live, written).await? {
                return Ok(Next::After(LAG));
            }
        }
        self.addresses.release_all(handle).await?;
        Ok(Next::Done)
    }

    /// Assigns the missing addresses, publishes those that stay, and then releases the others. Each step uses the
    /// stored state.
    async fn serve(
        &self,
        key: &ObjectKey,
        handle: &HandleId,
        pools: &[LoadBalancerPool],
        assign: AssignIps,
    ) -> Result<Next, Failure> {
        let Some((mut live, service)) = self.live_holder(key, handle).await? else {
            return Ok(Next::After(LAG));
        };
        let plan = async || {
            let held = self.addresses.held(handle).await?;
            match self.decide(key, &service, &held, pools, assign)? {
                Decision::Serve(plan) => Ok(Some(plan)),
                _ => Ok::<_, Failure>(None),
            }
        };
        let Some(mut planned) = plan().await? else { return Ok(Next::After(LAG)) };
        let mut assigned = Ok(());
        if !planned.assign.is_empty() {
            assigned = match self.labels(key).await {
                Ok(labels) => self.addresses.assign(key, handle, &planned.assign, labels).await,
                Err(failure) => Err(failure),
            };
            let Some(again) = plan().await? else { return Ok(Next::After(LAG)) };
            planned = again;
        }
        locked(&self.memory).set_unserved(key, assigned.is_err());
        let shown: Vec<IpAddr> = planned.keep.iter().map(|held| held.ip).collect();
        let written = self.write_status(key, &mut live, |service| status::show(service, &shown)).await?;
        if written == Written::Gone {
            return Ok(Next::After(LAG));
        }
        if !planned.release.is_empty() {
            if !self.is_current(key, &live, written).await? {
                return Ok(Next::After(LAG));
            }
            self.addresses.release(&planned.release).await?;
        }
        match assigned {
            Ok(()) => Ok(Next::Done),
            Err(Failure::Retry(text)) => Err(Failure::Retry(format!("Service {key}: {text}"))),
            Err(Failure::Permanent(text)) => Err(Failure::Permanent(format!("Service {key}: {text}"))),
        }
    }

    /// Returns the labels of the Service's namespace, by which pools may select.
    async fn labels(&self, key: &ObjectKey) -> Result<Labels, Failure> {
        let name = key.namespace.as_deref().unwrap_or_default();
        let namespace = Api::<Namespace>::all(self.kubernetes.clone()).get(name).await;
        let namespace = namespace.map_err(|error| failure(&format!("get namespace {name}"), &error))?;
        Ok(namespace.metadata.labels.unwrap_or_default())
    }

    async fn live(&self, key: &ObjectKey) -> Result<Option<KubernetesService>, Failure> {
        live::object(&self.kubernetes, SERVICES, key).await
    }

    /// Returns the live Service, if it has the type and is the Service to which `handle` belongs.
    async fn live_holder(
        &self,
        key: &ObjectKey,
        handle: &HandleId,
    ) -> Result<Option<(KubernetesService, Balanced)>, Failure> {
        let Some(live) = self.live(key).await? else { return Ok(None) };
        let balanced = Balanced::live(&live).filter(|live| live.handle == *handle);
        Ok(balanced.map(|balanced| (live, balanced)))
    }

    async fn hide(
        &self,
        key: &ObjectKey,
        live: &mut KubernetesService,
        held: impl Iterator<Item = &Held>,
    ) -> Result<Written, Failure> {
        let addresses: Vec<IpAddr> = held.map(|held| held.ip).collect();
        self.write_status(key, live, |service| status::hide(service, &addresses)).await
    }

    /// Writes the status if `change` changes it, based on the version that was read. Afterwards, `live` is the Service
    /// as written.
    async fn write_status(
        &self,
        key: &ObjectKey,
        live: &mut KubernetesService,
        change: impl FnOnce(&mut KubernetesService),
    ) -> Result<Written, Failure> {
        let before = live.status.clone();
        change(live);
        if live.status.as_ref().and_then(|status| status.load_balancer.as_ref())
            == before.as_ref().and_then(|status| status.load_balancer.as_ref())
        {
            return Ok(Written::Unchanged);
        }
        match self.services(key).replace_status(&key.name, &PostParams::default(), live).await {
            Err(error) if is_not_found(&error) => Ok(Written::Gone),
            Err(error) => Err(failure(&format!("write status of Service {key}"), &error)),
            Ok(written) => {
                *live = written;
                Ok(Written::Sent)
            }
        }
    }

    /// Returns true if the Service is unchanged since its addresses were decided. If the status needed no write, the
    /// API server has not confirmed that: another writer may have given the Service an address that it now requests.
    async fn is_current(&self, key: &ObjectKey, judged: &KubernetesService, written: Written) -> Result<bool, Failure> {
        match written {
            Written::Sent => Ok(true),
            Written::Gone => Ok(false),
            Written::Unchanged => {
                let version = |service: &KubernetesService| service.metadata.resource_version.clone();
                Ok(self.live(key).await?.is_some_and(|live| version(&live) == version(judged)))
            }
        }
    }

    fn services(&self, key: &ObjectKey) -> Api<KubernetesService> {
        Api::namespaced(self.kubernetes.clone(), key.namespace.as_deref().unwrap_or_default())
    }
}
