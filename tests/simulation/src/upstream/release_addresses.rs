//! Releases single addresses, each with the conditions of a [`ReleaseRequest`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::ipam::{Block, Handle, HandleId, IpamConfig, ReleaseRequest, Released, any_pool_of};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError};

use super::client::Client;
use super::{ATTEMPTS, UpstreamError};

/// The number of addresses above which all handles of the cluster are listed first.
const WITHOUT_LIST: usize = 2;

/// The result of a release of single addresses.
#[derive(Debug, Default)]
pub(super) struct ReleasedAddresses {
    /// The requests that met no error, including those for addresses that are not allocated.
    pub(super) served: Vec<ReleaseRequest>,
    /// The first error.
    pub(super) error: Option<UpstreamError>,
}

type Handles = BTreeMap<HandleId, Entry<Handle>>;

impl<S: Store> Client<'_, S> {
    /// Releases addresses. A failure of one block does not affect the other blocks.
    pub(super) async fn release_addresses(
        &self,
        requests: &[ReleaseRequest],
    ) -> Result<ReleasedAddresses, UpstreamError> {
        let by_block = self.by_block(requests).await?;
        let config = self.config().await?;
        let mut handles = Handles::new();
        if requests.len() > WITHOUT_LIST {
            let listed = self.store.list::<Handle>(&Default::default()).await?;
            handles.extend(listed.into_iter().map(|entry| (entry.key.clone(), entry)));
        }
        let mut outcome = ReleasedAddresses::default();
        // Upstream processes some blocks at the same time.
        for (cidr, wanted) in by_block {
            match self.release_in(cidr, &wanted, &config, &handles).await {
                Ok(()) => outcome.served.extend(wanted),
                Err(error) => outcome.error = outcome.error.or(Some(error)),
            }
        }
        Ok(outcome)
    }

    /// Reads the pools, and returns the requests by block. An address outside all pools may be in
    /// any block; if it is in none, its request is left out (IPAM-141).
    async fn by_block(
        &self,
        requests: &[ReleaseRequest],
    ) -> Result<BTreeMap<Cidr, Vec<ReleaseRequest>>, UpstreamError> {
        let pools = self.pools().await?;
        let mut all_blocks: Option<Vec<Cidr>> = None;
        let mut by_block = BTreeMap::<Cidr, Vec<ReleaseRequest>>::new();
        for request in requests {
            let of_pool =
                any_pool_of(&pools, request.ip).and_then(|pool| pool.block_of(request.ip));
            let cidr = match of_pool {
                Some(cidr) => Some(cidr),
                None => {
                    let blocks = match all_blocks.take() {
                        Some(blocks) => blocks,
                        None => self.ranges().await?,
                    };
                    let found = range_of(&blocks, request.ip);
                    all_blocks = Some(blocks);
                    found
                }
            };
            if let Some(cidr) = cidr {
                by_block.entry(cidr).or_default().push(request.clone());
            }
        }
        Ok(by_block)
    }

    async fn ranges(&self) -> Result<Vec<Cidr>, StoreError> {
        let blocks = self.store.list::<Block>(&None).await?;
        Ok(blocks.into_iter().map(|entry| entry.key).collect())
    }

    /// Releases addresses of one block. A single mismatch rejects all of them (IPAM-144).
    async fn release_in(
        &self,
        cidr: Cidr,
        requests: &[ReleaseRequest],
        config: &IpamConfig,
        handles: &Handles,
    ) -> Result<(), UpstreamError> {
        for _ in 0..ATTEMPTS {
            let read = match self.get::<Block>(&cidr).await {
                Ok(read) => read,
                Err(StoreError::NotFound { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let mut block = self.collected(&read, config)?;
            let released = block.release(requests, config.ip_cooldown_seconds, (self.now)())?;
            if released.released.is_empty() {
                return Ok(());
            }
            // Unlike for a release by handle, a missing block is an error.
            let written = if block.affinity.is_none() && block.is_empty() {
                self.delete(read).await
            } else {
                self.update_block(&read, block.clone()).await.map(|_| ())
            };
            match written {
                Ok(()) => {
                    self.decrement_all(&released, cidr, handles).await;
                    _ = self.release_if_deselected(&block).await;
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(UpstreamError::TooManyAttempts)
    }

    async fn decrement_all(&self, released: &Released, cidr: Cidr, handles: &Handles) {
        for (id, &n) in &released.per_handle {
            self.decrement(id, cidr, n, handles.get(id).cloned()).await;
        }
    }
}

fn range_of(blocks: &[Cidr], ip: IpAddr) -> Option<Cidr> {
    blocks.iter().find(|cidr| cidr.contains(ip)).copied()
}
