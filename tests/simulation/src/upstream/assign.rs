//! Assigns an address: from the node's blocks, then from a claimed block, then from the blocks of
//! other nodes (IPAM-110).

use std::net::IpAddr;

use libcalico::ipam::{Block, BlockRequest, BlockWalk};
use libcalico::net::IpVersion;
use libcalico::store::{Entry, Store};

use super::client::Client;
use super::pools::Inputs;
use super::{ATTEMPTS, AddRequest, UpstreamError};

impl<S: Store> Client<'_, S> {
    /// Assigns an address of one family. Returns `None` if no address is free.
    pub(super) async fn assign(
        &self,
        request: &AddRequest<'_>,
        version: IpVersion,
    ) -> Result<Option<IpAddr>, UpstreamError> {
        let mut inputs = self.inputs(request, version).await?;
        let (owner, limit) = (request.owner(), inputs.config.block_limit());
        let mut owned = inputs.affine.len() as u64;
        loop {
            let found = self.find_or_claim(&mut inputs, &owner, owned < limit).await;
            let found = match found {
                Ok(found) => found,
                Err(UpstreamError::NoFreeBlocks) => break,
                Err(error) => return Err(error),
            };
            owned += u64::from(found.is_claimed);
            let ip = self.take_own(request, &inputs, found.block).await;
            if ip.is_some() {
                return Ok(ip);
            }
        }
        if inputs.config.strict_affinity {
            Ok(None)
        } else {
            Ok(self.borrow(request, &inputs).await)
        }
    }

    /// Takes an address from a block of the node. Returns `None` if that is impossible for any
    /// reason.
    async fn take_own(
        &self,
        request: &AddRequest<'_>,
        inputs: &Inputs,
        mut block: Entry<Block>,
    ) -> Option<IpAddr> {
        let is_strict = inputs.config.strict_affinity;
        for _ in 0..ATTEMPTS {
            match self.take(request, inputs, &block, is_strict).await {
                Ok(ip) => return ip,
                Err(error) if error.is_conflict() => {}
                Err(_) => return None,
            }
            block = self.get::<Block>(&block.key).await.ok()?;
        }
        None
    }

    /// Takes an address from any block of the pools. Reads every range of the pools, even if it has
    /// no block (IPAM-120, IPAM-226).
    async fn borrow(&self, request: &AddRequest<'_>, inputs: &Inputs) -> Option<IpAddr> {
        for pool in &inputs.pools {
            let walk = BlockWalk::new(pool.cidr, pool.block_prefix, request.node, (self.now)());
            for cidr in walk.filter(|cidr| !inputs.reservations.covers(cidr)) {
                for _ in 0..ATTEMPTS {
                    let Ok(block) = self.get::<Block>(&cidr).await else {
                        break;
                    };
                    match self.take(request, inputs, &block, false).await {
                        Ok(Some(ip)) => return Some(ip),
                        Err(error) if error.is_conflict() => {}
                        Ok(None) | Err(_) => break,
                    }
                }
            }
        }
        None
    }

    /// Takes an address from a block. The handle is written first, and again if the block cannot be
    /// written, for any reason (IPAM-128, IPAM-184).
    async fn take(
        &self,
        request: &AddRequest<'_>,
        inputs: &Inputs,
        read: &Entry<Block>,
        check_affinity: bool,
    ) -> Result<Option<IpAddr>, UpstreamError> {
        let mut block = self.collected(read, &inputs.config)?;
        let block_request = BlockRequest {
            handle: Some(request.handle),
            attributes: request.attributes,
            requester: &request.owner(),
            check_affinity,
        };
        let assigned = block.assign(1, &block_request, &inputs.reservations)?;
        let Some(&ip) = assigned.first() else {
            return Ok(None);
        };
        self.increment(request.handle, read.key).await?;
        if let Err(error) = self.update_block(read, block).await {
            self.decrement(request.handle, read.key, 1, None).await;
            return Err(error.into());
        }
        Ok(Some(ip))
    }
}
