//! [`Inputs`]: the objects that the plugin reads before it chooses a block.

use std::collections::VecDeque;

use libcalico::api::{AllowedUse, IpPool, IpReservation, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{
    AffinityOwner, IpamConfig, Labels, NamedPools, Pool, PoolChoice, PoolRequest, Reservations,
    choose_pools,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::selector::Selector;
use libcalico::store::{Store, StoreError};

use super::affinity::Conditions;
use super::client::Client;
use super::{ATTEMPTS, AddRequest, UpstreamError};

/// The inputs of an assignment of one family. The other family reads them again.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) config: IpamConfig,
    pub(super) reservations: Reservations,
    /// The pools to use, in this order.
    pub(super) pools: Vec<Pool>,
    /// The node's blocks in these pools that have not been tried yet.
    pub(super) affine: VecDeque<Cidr>,
}

impl<S: Store> Client<'_, S> {
    /// Reads the inputs. Gives up empty blocks of pools that no longer select the node.
    pub(super) async fn inputs(
        &self,
        request: &AddRequest<'_>,
        version: IpVersion,
    ) -> Result<Inputs, UpstreamError> {
        let config = self.config().await?;
        let all = ObjectSelect::default();
        let reserved = self.store.list::<IpReservation>(&all).await?;
        let (reservations, _) = Reservations::of(reserved.iter().map(|entry| &entry.value));
        let node = ObjectKey::global(request.node);
        let node = self.store.get::<Node>(&node).await?;
        let labels = node.value.metadata.labels;
        let choice = choose_pools(
            &self.pools().await?,
            &PoolRequest {
                version,
                requested: &of_family(request.pools, version),
                purpose: AllowedUse::Workload,
                node: request.node,
                node_labels: &labels,
                namespace: request.namespace,
                named: NamedPools::default(),
            },
        )
        .map_err(|error| error.cause)?;
        let owner = request.owner();
        let owned = self.affine_blocks(&owner, version).await?;
        let (affine, other): (VecDeque<Cidr>, VecDeque<Cidr>) = owned
            .into_iter()
            .partition(|cidr| contain(&choice.chosen, cidr));
        for cidr in other {
            if is_deselected(&choice, &cidr, &labels) {
                self.release_deselected(&owner, cidr).await;
            }
        }
        Ok(Inputs {
            config,
            reservations,
            pools: choice.chosen,
            affine,
        })
    }

    pub(super) async fn pools(&self) -> Result<Vec<IpPool>, StoreError> {
        let pools = self.store.list::<IpPool>(&ObjectSelect::default()).await?;
        Ok(pools.into_iter().map(|entry| entry.value).collect())
    }

    /// Gives up an empty block. Repeats all other failures.
    async fn release_deselected(&self, owner: &AffinityOwner, cidr: Cidr) {
        for _ in 0..ATTEMPTS {
            match self.release_affinity(owner, cidr, Conditions::EMPTY).await {
                Ok(()) | Err(UpstreamError::ClaimConflict(_) | UpstreamError::NotEmpty(_)) => {
                    return;
                }
                Err(error) if error.is_missing() => return,
                Err(_) => {}
            }
        }
    }
}

fn of_family(cidrs: &[Cidr], version: IpVersion) -> Vec<Cidr> {
    let of_family = cidrs.iter().filter(|cidr| cidr.version() == version);
    of_family.copied().collect()
}

fn contain(pools: &[Pool], block: &Cidr) -> bool {
    pools.iter().any(|pool| pool.cidr.contains(block.network()))
}

/// Returns true if the block's pool is in service, but selects the node no longer.
fn is_deselected(choice: &PoolChoice, block: &Cidr, labels: &Labels) -> bool {
    if contain(&choice.selected, block) {
        return false;
    }
    let mut enabled = choice.enabled.iter();
    enabled
        .find(|pool| pool.cidr.contains(block.network()))
        .is_some_and(|pool| deselects(pool, labels))
}

/// Returns true if the pool's selector does not match the labels of a node.
pub(super) fn deselects(pool: &Pool, labels: &Labels) -> bool {
    Selector::parse(&pool.node_selector).is_ok_and(|selector| !selector.matches(labels))
}
