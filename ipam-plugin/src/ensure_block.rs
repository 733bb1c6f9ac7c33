//! [`ensure_block`]: claims a block for a node before any address is requested.

use libcalico::ipam::{AffinityState, Block, Owner};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Store, Write};

use crate::budget::{Budget, OPERATION};
use crate::clock::Clock;
use crate::error::{Exhaustion, IpamError};
use crate::knowledge::{Knowledge, Known};
use crate::mend::{confirm, exactly};
use crate::plan::{FamilyPlan, Step};
use crate::prelude::{Prelude, PreludeQuery};
use crate::request::AssignRequest;
use crate::take::{ClaimFrom, Take};

/// Ensures that `node` owns a block of the family in the pools that `request` would use, and returns the block, which
/// may be full. Claims a block if necessary. The request's handle and numbers do not matter.
pub async fn ensure_block<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    version: IpVersion,
) -> Result<Cidr, IpamError> {
    let query = PreludeQuery { reads_handle: false, ..request.prelude_query() };
    let mut budget = Budget::new(clock, OPERATION);
    loop {
        let prelude = Prelude::read(store, &query).await?;
        let plan = FamilyPlan::new(request, &prelude, version)?;
        let mut known = Knowledge::new(prelude, query.clone(), clock.now())?;
        match find(store, &plan, &mut known).await {
            Err(IpamError::Store(error)) if error.is_race() => {
                if !budget.pause().await {
                    return Err(IpamError::Contention);
                }
            }
            outcome => return outcome,
        }
    }
}

/// Continues until the node owns a block, as long as the snapshot is current.
async fn find<S: Store>(store: &S, plan: &FamilyPlan<'_>, known: &mut Knowledge) -> Result<Cidr, IpamError> {
    loop {
        match plan.next(known, 1)? {
            Step::Read(wants) => known.read(store, &wants).await?,
            Step::Mend(mend) => mend.apply(store, known).await?,
            step => {
                if let Some(owned) = owned(plan, known) {
                    return Ok(owned);
                }
                return match step {
                    Step::Take(Take { block, claim: Some(from), .. }) => {
                        claim(store, &plan.request.owner(), known, block.cidr, &from).await
                    }
                    Step::Short(cause) => Err(plan.shortfall(known, 0, cause).into()),
                    // Only blocks of other nodes have room.
                    _ => Err(plan.shortfall(known, 0, Exhaustion::StrictAffinity).into()),
                };
            }
        }
    }
}

/// Returns the first block that the node owns with a confirmed affinity.
fn owned(plan: &FamilyPlan<'_>, known: &Knowledge) -> Option<Cidr> {
    let confirmed = known.own_affinities(plan.version).filter(|affinity| {
        matches!(affinity.value.state, AffinityState::Confirmed | AffinityState::Unset)
            && plan.is_allowed(&affinity.key.cidr)
    });
    confirmed.map(|affinity| affinity.key.cidr).find(|cidr| matches!(known.block(cidr), Some(Known::There(_))))
}

async fn claim<S: Store>(
    store: &S,
    owner: &Owner,
    known: &Knowledge,
    cidr: Cidr,
    from: &ClaimFrom,
) -> Result<Cidr, IpamError> {
    let block = match known.readable_block(&cidr) {
        // The rewrite makes a concurrent release of the block fail (IPAM-123).
        Some(read) => {
            let mut rewritten = read.value.clone();
            rewritten.count_write();
            Write::update::<Block>(&cidr, &rewritten, &read.revision)?
        }
        None => Write::create::<Block>(&cidr, &Block::new(cidr, owner, known.now)?)?,
    };
    let revisions = store.write(&[from.pending(owner, cidr)?, block]).await.map_err(|error| error.cause)?;
    let [pending, _]: [_; 2] = exactly(revisions)?;
    confirm(store, from.written(owner, cidr, pending)).await?;
    Ok(cidr)
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::BlockAffinity;

    use super::*;
    use crate::testing::{Cluster, assert_consistent, cidr};

    async fn ensure(cluster: &Cluster, node: &str, version: IpVersion) -> Result<Cidr, IpamError> {
        ensure_block(&cluster.store, &cluster.clock, &cluster.request(node, ""), version).await
    }

    #[tokio::test]
    async fn the_block_that_an_address_would_come_from_is_claimed_once() {
        let cluster = Cluster::new();
        cluster.pool("pool4", "10.65.0.0/16", 26);
        cluster.pool("pool6", "fd00:65::/64", 122);
        for (version, block) in
            [(IpVersion::V4, "10.65.166.128/26"), (IpVersion::V6, "fd00:65::c11:b42f:f17e:a680/122")]
        {
            assert_eq!(ensure(&cluster, "node1", version).await.unwrap(), cidr(block));
            assert_eq!(ensure(&cluster, "node1", version).await.unwrap(), cidr(block));
            assert_eq!(cluster.affinity("node1", block), Some(AffinityState::Confirmed));
            let stored = cluster.block(block).unwrap();
            assert_eq!((stored.allocated().count(), stored.sequence_number), (0, 1_787_360_523_123_400_000));
        }
        cluster.one("node1", "net.a").await.unwrap();
        assert_consistent(&cluster.store.pairs(), true);
    }

    #[tokio::test]
    async fn a_full_block_will_do_and_another_nodes_will_not() {
        let cluster = Cluster::new();
        cluster.pool("tiny", "10.66.0.0/32", 32);
        cluster.one("node1", "net.a").await.unwrap();
        assert_eq!(ensure(&cluster, "node1", IpVersion::V4).await.unwrap(), cidr("10.66.0.0/32"));
        let error = ensure(&cluster, "node2", IpVersion::V4).await.unwrap_err();
        assert!(matches!(error, IpamError::Shortfall(_)), "{error}");
    }

    #[tokio::test]
    async fn a_half_made_claim_is_finished() {
        for with_block in [false, true] {
            let cluster = Cluster::new();
            cluster.pool("pool4", "10.65.0.0/16", 26);
            ensure(&cluster, "node1", IpVersion::V4).await.unwrap();
            let pending = BlockAffinity { state: AffinityState::Pending, ..BlockAffinity::default() };
            cluster.store.put(&crate::testing::affinity_key("node1", "10.65.166.128/26"), &pending);
            if !with_block {
                cluster.store.delete::<Block>(&cidr("10.65.166.128/26"), None).await.unwrap();
            }
            assert_eq!(ensure(&cluster, "node1", IpVersion::V4).await.unwrap(), cidr("10.65.166.128/26"));
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}
