//! Assigns a requested address.

use std::net::IpAddr;

use libcalico::api::AllowedUse;
use libcalico::ipam::{
    AffinityKey, AssignError, Block, BlockRequest, IpamConfig, Pool, enabled_pool,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Store, StoreError};

use super::client::Client;
use super::{ATTEMPTS, AddRequest, UpstreamError};

impl<S: Store> Client<'_, S> {
    /// Assigns a requested address. Selectors, reservations and limits do not count (IPAM-134,
    /// IPAM-137).
    pub(super) async fn assign_address(
        &self,
        request: &AddRequest<'_>,
        ip: IpAddr,
    ) -> Result<(), UpstreamError> {
        let pool = self.enabled_pool_of(ip).await?;
        let pool = pool.ok_or(UpstreamError::NotInPool)?;
        if !pool.allows(AllowedUse::Workload) {
            return Err(UpstreamError::NotForWorkloads(pool.name));
        }
        let config = self.config().await?;
        let cidr = pool.block_of(ip).ok_or(UpstreamError::NotInPool)?;
        for _ in 0..ATTEMPTS {
            let block = match self.block_for_address(request, cidr).await {
                Ok(block) => block,
                Err(error) if error.is_conflict() => continue,
                Err(error) => return Err(error),
            };
            match self.take_address(request, &config, &block, ip).await {
                Err(error) if error.is_conflict() => {}
                outcome => return outcome,
            }
        }
        Err(UpstreamError::TooManyAttempts)
    }

    /// Reads the pools, and returns the one in service that contains the address.
    pub(super) async fn enabled_pool_of(&self, ip: IpAddr) -> Result<Option<Pool>, StoreError> {
        let pools = self.pools().await?;
        let mut enabled = pools
            .iter()
            .filter_map(|pool| enabled_pool(pool, IpVersion::of(ip)).ok());
        Ok(enabled.find(|pool| pool.cidr.contains(ip)))
    }

    /// Reads the block, or claims the block for the node.
    async fn block_for_address(
        &self,
        request: &AddRequest<'_>,
        cidr: Cidr,
    ) -> Result<Entry<Block>, UpstreamError> {
        match self.get::<Block>(&cidr).await {
            Ok(block) => Ok(block),
            Err(StoreError::NotFound { .. }) => {
                self.config().await?;
                let owner = request.owner();
                let key = AffinityKey { owner, cidr };
                let affinity = self.pending_affinity(&key).await?;
                self.claim(affinity).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the address. After a lost race, the handle counts too much (IPAM-140).
    async fn take_address(
        &self,
        request: &AddRequest<'_>,
        config: &IpamConfig,
        read: &Entry<Block>,
        ip: IpAddr,
    ) -> Result<(), UpstreamError> {
        let mut block = self.collected(read, config)?;
        let block_request = BlockRequest {
            handle: Some(request.handle),
            attributes: request.attributes,
            requester: &request.owner(),
            check_affinity: config.strict_affinity,
        };
        let assigned: Result<(), AssignError> = block.assign_address(ip, &block_request);
        assigned?;
        self.increment(request.handle, read.key).await?;
        let written = self.update_block(read, block).await;
        let Err(error) = written.map_err(UpstreamError::from) else {
            return Ok(());
        };
        if !error.is_conflict() {
            self.decrement(request.handle, read.key, 1, None).await;
        }
        Err(error)
    }
}
