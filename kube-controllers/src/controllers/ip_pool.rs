//! Conditions and finalizers of IP pools, for `projectcalico.org/v3` only. Of two overlapping pools
//! at most one is in use. A pool in use whose deletion is requested stays until its blocks are
//! gone.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use allocation::affinity::release_pool_affinities;
use datastore::Datastore;
use libcalico::api::{IP_POOL_FINALIZER as FINALIZER, IpPool, IpPoolSpec, ObjectKey};
use libcalico::ipam::{AffinityOwner, AffinitySelect, Block, BlockAffinity};
use libcalico::kubernetes::{IPV4_POOLS, IPV6_POOLS};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store};
use os::clock::SystemClock;
use serde_json::Value;
use time::OffsetDateTime;

use super::cached::{CachedController, CachedReconcile, SharedCache};
use super::custom_resource::{
    CustomResources, StatusCondition, condition_is_true, with_finalizer, without_finalizer,
};
use crate::context::Context;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::ControllerName;
use crate::watches::{Cache, Event, Watches};

/// The only key. All pools are reconciled together, because the condition of a pool depends on the
/// others.
const ALL_POOLS: &str = "all";

/// Delay before the next look at a pool that is being deleted, if no event of its blocks comes
/// before.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Delay after an event of a block. Blocks are deleted one after the other, so this combines their
/// events.
const EVENT_DELAY: Duration = Duration::from_secs(5);

/// Maximum number of Services that the condition of a pool names.
const NAMED: usize = 8;

type PoolCache = Cache<ObjectKey, Entry<IpPool>>;

/// The controller.
pub type IpPools = CachedController<IpPoolReconciler>;

/// The reconciler of all pools.
pub struct IpPoolReconciler {
    store: Arc<Datastore>,
    objects: CustomResources,
    pools: SharedCache<PoolCache>,
}

impl CachedReconcile for IpPoolReconciler {
    type Cache = PoolCache;
    const CONTROLLER: Option<ControllerName> = None;

    fn subscribe(controller: &IpPools, watches: &mut Watches) {
        controller.subscribe(&mut watches.ip_pools, apply_pool);
        let (queue, pools) = (controller.queue.clone(), controller.cache.clone());
        watches
            .blocks
            .subscribe(move |event: &Event<'_, Entry<Block>>| {
                if may_be_empty(&pools.lock(), event) {
                    queue.add_after(ALL_POOLS, EVENT_DELAY);
                }
            });
    }

    fn new(context: &Context, controller: &IpPools) -> Self {
        let objects = CustomResources::new::<IpPoolSpec>(context.kubernetes.clone());
        IpPoolReconciler {
            store: context.calico.clone(),
            objects,
            pools: controller.cache.clone(),
        }
    }

    fn all_keys(_: &PoolCache) -> Vec<&'static str> {
        vec![ALL_POOLS]
    }
}

/// Applies an event. Returns the key of all pools if a pool changed or a list is complete, and
/// otherwise no key.
fn apply_pool(pools: &mut PoolCache, event: &Event<'_, Entry<IpPool>>) -> Vec<&'static str> {
    let changed = pools.apply(event, |entry| Some(entry.clone()));
    if !changed.is_empty() || matches!(event, Event::ListEnd) {
        vec![ALL_POOLS]
    } else {
        Vec::new()
    }
}

/// Returns true if, by this event, a pool that is being deleted may have lost its last block, or
/// may lose it now because a block has become empty.
fn may_be_empty(pools: &PoolCache, event: &Event<'_, Entry<Block>>) -> bool {
    let mut deleting = pools
        .iter()
        .map(|(_, pool)| &pool.value)
        .filter(|pool| is_deleting(pool));
    let mut is_of_pool = |block: &Cidr| {
        deleting.any(|pool| {
            pool.spec
                .range()
                .is_ok_and(|cidr| cidr.contains(block.network()))
        })
    };
    match event {
        Event::Delete(block) => is_of_pool(block),
        Event::Upsert(block) => block.value.is_empty() && is_of_pool(&block.key),
        // Blocks that are missing from a new list have no event of their own.
        Event::ListEnd => deleting.next().is_some(),
        Event::ListStart => false,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum FinalizerChange {
    Keep,
    Write(Vec<String>),
    /// Release the blocks that can be released, and remove the finalizer when the pool has no block
    /// left.
    ReleaseBlocks,
}

impl Reconcile for IpPoolReconciler {
    const NAME: &'static str = "ip-pool";
    type Key = &'static str;

    /// A pool that cannot be written does not stop the others.
    async fn reconcile(&self, _: &&'static str) -> Result<NextReconcile, ReconcileError> {
        let Some(pools) = self.snapshot() else {
            return Ok(NextReconcile::AwaitChange);
        };
        let (mut failures, mut next) = (Vec::new(), NextReconcile::AwaitChange);
        for (key, verdict) in allocatable(pools.iter().map(|entry| &entry.value)) {
            let Some(entry) = pools.iter().find(|entry| entry.key == key) else {
                continue;
            };
            match self.reconcile_pool(entry, verdict).await {
                Ok(NextReconcile::AwaitChange) => {}
                Ok(later) => next = later,
                Err(failure) => failures.push(failure),
            }
        }
        let Some(_) = failures.first() else {
            return Ok(next);
        };
        let text = failures
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ");
        let permanent = failures
            .iter()
            .all(|failure| matches!(failure, ReconcileError::Permanent(_)));
        Err(if permanent {
            ReconcileError::Permanent(text)
        } else {
            ReconcileError::Retry(text)
        })
    }
}

impl IpPoolReconciler {
    fn snapshot(&self) -> Option<Vec<Entry<IpPool>>> {
        let pools = self.pools.lock();
        pools
            .is_synced()
            .then(|| pools.iter().map(|(_, entry)| entry.clone()).collect())
    }

    async fn reconcile_pool(
        &self,
        pool: &Entry<IpPool>,
        verdict: Verdict,
    ) -> Result<NextReconcile, ReconcileError> {
        let name = &pool.key.name;
        let mut version = pool.revision.resource_version().to_owned();
        let (condition, change) = (verdict.condition(), finalizer_change(&pool.value, verdict));
        // The condition of a pool that waits for its addresses has more text, which is known after
        // the release only.
        let has_begun = change == FinalizerChange::ReleaseBlocks
            && condition.is_beginning_in(pool.value.status.as_ref());
        let written = if has_begun { None } else { Some(&condition) };
        if let Some(conditions) = written.and_then(|condition| merged(condition, pool)) {
            version = self
                .objects
                .write_conditions(name, &version, &conditions)
                .await?;
        }
        let finalizers = match change {
            FinalizerChange::Keep => return Ok(NextReconcile::AwaitChange),
            FinalizerChange::Write(finalizers) => finalizers,
            FinalizerChange::ReleaseBlocks => {
                let Ok(range) = pool.value.spec.range() else {
                    return Ok(NextReconcile::AwaitChange);
                };
                if let Some(services) = self.release_blocks(name, &range).await? {
                    let waiting = waiting_for(&condition, &services);
                    if written != Some(&waiting)
                        && let Some(conditions) = merged(&waiting, pool)
                    {
                        self.objects
                            .write_conditions(name, &version, &conditions)
                            .await?;
                    }
                    return Ok(NextReconcile::After(RECHECK_INTERVAL));
                }
                without_finalizer(&pool.value, FINALIZER).unwrap_or_default()
            }
        };
        self.objects
            .write_finalizers(name, &version, &finalizers)
            .await?;
        Ok(NextReconcile::AwaitChange)
    }

    /// Releases the blocks in the range that can be released. Returns `None` if no block is left in
    /// the range, and otherwise the Services that have addresses in the range.
    async fn release_blocks(
        &self,
        name: &str,
        range: &Cidr,
    ) -> Result<Option<BTreeSet<ObjectKey>>, ReconcileError> {
        let clock = SystemClock::start();
        let problem = |error: allocation::error::IpamError| {
            ReconcileError::Retry(format!(
                "cannot release the blocks of IPPool {name}: {error}"
            ))
        };
        let hosts = AffinitySelect::default();
        release_pool_affinities(&*self.store, &clock, &hosts, range, false)
            .await
            .map_err(problem)?;
        // Of the blocks for Services, only the empty ones are released: Services find their
        // addresses by the owner of the block.
        let services = AffinitySelect::of(AffinityOwner::of_services());
        release_pool_affinities(&*self.store, &clock, &services, range, true)
            .await
            .map_err(problem)?;
        let mut batch = ReadBatch::new();
        let keys = batch.list_keys::<Block>(&Some(range.version()));
        let answers = self.store.read(&batch).await?;
        if !answers
            .listed_keys(&keys)
            .any(|block| range.contains(block.network()))
        {
            return Ok(None);
        }
        services_in(&*self.store, range).await.map(Some)
    }
}

/// Returns the Services that have addresses in the range.
async fn services_in(
    store: &impl Store,
    range: &Cidr,
) -> Result<BTreeSet<ObjectKey>, ReconcileError> {
    let of_services = AffinitySelect::of(AffinityOwner::of_services());
    let affinities = store.list::<BlockAffinity>(&of_services).await?;
    let mut batch = ReadBatch::new();
    let blocks = affinities
        .iter()
        .map(|entry| entry.key.cidr)
        .filter(|cidr| range.contains(cidr.network()));
    let tickets: Vec<_> = blocks.map(|cidr| batch.get::<Block>(&cidr)).collect();
    let answers = store.read(&batch).await?;
    let mut services = BTreeSet::new();
    for ticket in &tickets {
        // The Services of an unreadable block are unknown.
        let Ok(Some(block)) = answers.get(ticket) else {
            continue;
        };
        for held in block.value.allocated().filter(|held| !held.is_cooling()) {
            let attribute = |name| {
                held.attributes()
                    .and_then(|attributes| attributes.get(name))
            };
            if let (Some(namespace), Some(service)) = (attribute("namespace"), attribute("service"))
            {
                services.insert(ObjectKey::namespaced(namespace, service));
            }
        }
    }
    Ok(services)
}

/// Returns the condition of a pool that is deleted after these Services have other addresses.
fn waiting_for(condition: &StatusCondition, services: &BTreeSet<ObjectKey>) -> StatusCondition {
    let named: Vec<String> = services
        .iter()
        .take(NAMED)
        .map(ObjectKey::to_string)
        .collect();
    let more = services.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let mut waiting = condition.clone();
    if !services.is_empty() {
        waiting.message.push_str(&format!(
            "; Services have addresses of it: {}{more}; name another pool in their annotations \
             {IPV4_POOLS} or {IPV6_POOLS}, or delete them",
            named.join(", ")
        ));
    }
    waiting
}

/// Returns the conditions of a pool with `condition`, or `None` if the pool has this condition.
fn merged(condition: &StatusCondition, pool: &Entry<IpPool>) -> Option<Vec<Value>> {
    condition.merged_into(pool.value.status.as_ref(), OffsetDateTime::now_utc())
}

/// Returns the required change. A pool in use gets the finalizer. A pool that is being deleted
/// loses the finalizer after its blocks, and any other pool loses it at once (KC-533).
fn finalizer_change(pool: &IpPool, verdict: Verdict) -> FinalizerChange {
    let others = without_finalizer(pool, FINALIZER);
    match (is_deleting(pool), verdict == Verdict::Ok) {
        (true, _) => others.map_or(FinalizerChange::Keep, |_| FinalizerChange::ReleaseBlocks),
        (false, true) => {
            with_finalizer(pool, FINALIZER).map_or(FinalizerChange::Keep, FinalizerChange::Write)
        }
        (false, false) => others.map_or(FinalizerChange::Keep, FinalizerChange::Write),
    }
}

/// Type of the condition that publishes the decision.
const ALLOCATABLE: &str = "Allocatable";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Disabled,
    Terminating,
    /// Another pool, which is earlier in the order of [`allocatable`], contains addresses of this
    /// pool.
    Overlap,
}

impl Verdict {
    /// Returns the condition, with upstream's texts (KC-532).
    fn condition(self) -> StatusCondition {
        let (reason, message) = match self {
            Verdict::Ok => ("OK", "IPPool is available for IP allocation."),
            Verdict::Disabled => ("PoolDisabled", "IPPool.Spec.Disabled is true"),
            Verdict::Terminating => ("Terminating", "IPPool is being deleted"),
            Verdict::Overlap => (
                "CIDROverlap",
                "CIDR overlaps another pool; disabled to prevent IP allocation conflicts.",
            ),
        };
        StatusCondition {
            kind: ALLOCATABLE,
            is_true: self == Verdict::Ok,
            reason,
            message: message.into(),
        }
    }
}

/// Returns the decision for each pool with a valid range. A pool that is neither disabled nor being
/// deleted is in use, unless it overlaps an earlier pool that is in use, or is being deleted and
/// not disabled (KC-531). The order is: pools whose condition `Allocatable` is true, pools that are
/// being deleted, pools whose condition is false, pools without the condition; and in each of these
/// groups the oldest pool first.
fn allocatable<'p>(pools: impl IntoIterator<Item = &'p IpPool>) -> Vec<(ObjectKey, Verdict)> {
    let mut pools: Vec<&IpPool> = pools.into_iter().collect();
    pools.sort_by_key(|pool| {
        (
            precedence(pool),
            pool.metadata.creation_timestamp.clone(),
            pool.metadata.name.clone(),
        )
    });
    let mut ranges_in_use: Vec<Cidr> = Vec::new();
    let mut verdicts = Vec::new();
    for pool in pools {
        let Ok(range) = pool.spec.range() else {
            continue;
        };
        let verdict = if pool.spec.disabled {
            Verdict::Disabled
        } else if is_deleting(pool) {
            ranges_in_use.push(range);
            Verdict::Terminating
        } else if ranges_in_use.iter().any(|other| other.overlaps(&range)) {
            Verdict::Overlap
        } else {
            ranges_in_use.push(range);
            Verdict::Ok
        };
        verdicts.push((pool.key(), verdict));
    }
    verdicts
}

fn is_deleting(pool: &IpPool) -> bool {
    pool.metadata.deletion_timestamp.is_some()
}

fn precedence(pool: &IpPool) -> u8 {
    match (
        condition_is_true(pool.status.as_ref(), ALLOCATABLE),
        is_deleting(pool),
    ) {
        (_, true) => 1,
        (Some(true), false) => 0,
        (Some(false), false) => 2,
        (None, false) => 3,
    }
}
