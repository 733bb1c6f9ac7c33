//! Addresses of Services of type LoadBalancer out of Calico's pools (KC-500..KC-512), in either datastore.
//!
//! What was heard says whether there is anything to do; what is done is decided again for the live Service and what it holds
//! by now. An address is given back when the Service's status no longer shows it, and for lack of pools only when a list of
//! them has none. An address that the status shows stays until the status shows its successor. The addresses are in blocks of
//! nobody's host, `virtual:load-balancer`.

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

/// How soon to look again when what was heard lags behind what is there.
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

/// What became of a Service whose status was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// Its status was written, at the version that was read.
    Sent,
    /// Its status said it already, as it was read.
    Unchanged,
    /// It went meanwhile.
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
        // A word that nobody knows gives nothing and takes nothing.
        let Some(assign) = self.settings.borrow().assign_ips else { return Ok(Next::Done) };
        match self.decide(key, &service, &own, &pools, assign)? {
            Decision::Leave => Ok(Next::Done),
            // A pool that appears brings all Services again. Where nobody ever made one others serve them, and that is no
            // failure.
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

    /// Gives back what a Service held that is gone, is of another type by now, or was a namesake (B-30). Not if it is
    /// there after all and was not heard of yet; then false.
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

    /// No longer shows what the Service holds, then gives it back: in this order nobody is told an address that is
    /// another's, and a crash in between is seen.
    async fn withdraw(
        &self,
        key: &ObjectKey,
        handle: &HandleId,
        heard: &[Held],
        assign: AssignIps,
    ) -> Result<Next, Failure> {
        if let Some((mut live, service)) = self.live_holder(key, handle).await? {
            // What was heard leaves out pools that cannot be read.
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

    /// Assigns what the live Service lacks, shows what stays, and then gives back the rest, all as it is stored by now.
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

    /// Labels of the Service's namespace, which pools may select by.
    async fn labels(&self, key: &ObjectKey) -> Result<Labels, Failure> {
        let name = key.namespace.as_deref().unwrap_or_default();
        let namespace = Api::<Namespace>::all(self.kubernetes.clone()).get(name).await;
        let namespace = namespace.map_err(|error| failure(&format!("get namespace {name}"), &error))?;
        Ok(namespace.metadata.labels.unwrap_or_default())
    }

    async fn live(&self, key: &ObjectKey) -> Result<Option<KubernetesService>, Failure> {
        live::object(&self.kubernetes, SERVICES, key).await
    }

    /// The Service as it is now, if it is of the type and no namesake of the one that `handle` is for.
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

    /// Writes the status if `change` changed it, at the version that was read; `live` is then the Service as it was written.
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

    /// Tells whether the Service is as it was when its addresses were judged. Where its status needed no write, no answer of the
    /// API server has told so: another writer may have given the Service an address that it asks for since.
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
