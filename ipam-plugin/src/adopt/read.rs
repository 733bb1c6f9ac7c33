//! [`Workloads`]: the users of addresses. [`ReadObjects`]: the stored objects from which an
//! adoption is planned.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, Node, ObjectSelect};
use libcalico::ipam::{
    AdoptionInputs, Block, Claimant, HandleId, IpamConfig, IpamConfigKey, tunnels_of,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{ReadBatch, Store, StoreError};
use time::OffsetDateTime;

use super::pods::{self, ClusterPods};
use super::{AdoptRequest, ClaimSource, FoundClaim, endpoints};

/// The claims of a node, and the users of addresses in the whole cluster.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    pub(super) claims: Vec<FoundClaim>,
    pub(super) users: BTreeMap<IpAddr, BTreeSet<Claimant>>,
}

impl Workloads {
    pub(super) async fn read<S: Store, A: Store>(
        store: &S,
        api: Option<&A>,
        pods: Option<&ClusterPods>,
        request: &AdoptRequest<'_>,
    ) -> Result<Self, StoreError> {
        let AdoptRequest {
            node,
            source,
            evidence,
            ..
        } = request;
        let mut users = BTreeMap::<IpAddr, BTreeSet<Claimant>>::new();
        for node in store.list::<Node>(&ObjectSelect::default()).await? {
            let tunnel = Claimant::Tunnel(node.key.name);
            tunnels_of(&node.value)
                .for_each(|(ip, _)| _ = users.entry(ip).or_default().insert(tunnel.clone()));
        }
        if let Some(pods) = pods {
            pods.add_users(&mut users);
        }
        let claims = match (source, pods) {
            (ClaimSource::Pods, Some(pods)) => pods::claims(store, pods, node, evidence).await,
            (ClaimSource::Pods, None) => Vec::new(),
            (ClaimSource::Endpoints, _) => {
                let stored = endpoints::read(store).await?;
                endpoints::add_users(&stored, pods, &mut users);
                endpoints::claims(store, api, (&stored, pods), node, evidence).await
            }
        };
        Ok(Workloads { claims, users })
    }
}

#[derive(Debug)]
pub(super) struct ReadObjects {
    pools: Vec<IpPool>,
    ranges: BTreeSet<Cidr>,
    blocks: BTreeMap<Cidr, Block>,
    cooldown_seconds: i64,
}

impl ReadObjects {
    /// Reads pools and settings, the ranges of all blocks, and the blocks that contain a claimed
    /// address.
    pub(super) async fn read(
        store: &impl Store,
        claims: &[FoundClaim],
    ) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let pools = batch.list::<IpPool>(&ObjectSelect::default());
        let config = batch.get::<IpamConfig>(&IpamConfigKey);
        let keys =
            [IpVersion::V4, IpVersion::V6].map(|version| batch.list_keys::<Block>(&Some(version)));
        let answers = store.read(&batch).await?;
        let ranges: BTreeSet<Cidr> = keys
            .iter()
            .flat_map(|ticket| answers.listed_keys(ticket))
            .collect();
        let config = answers
            .get(&config)?
            .map_or_else(IpamConfig::absent, |entry| entry.value);
        let pools = answers
            .list(&pools)
            .into_iter()
            .map(|entry| entry.value)
            .collect();

        let is_claimed = |range: &&Cidr| {
            claims
                .iter()
                .any(|found| range.contains(found.claim.address))
        };
        let mut batch = ReadBatch::new();
        let tickets: Vec<_> = ranges
            .iter()
            .filter(is_claimed)
            .map(|range| batch.get::<Block>(range))
            .collect();
        let mut blocks = BTreeMap::new();
        if !tickets.is_empty() {
            // A missing block is a conflict here, as an unreadable one is: another process is just
            // deleting it.
            let readable = store.read(&batch).await?.readable(&tickets, |_, _| {})?;
            blocks.extend(readable.into_iter().map(|block| (block.key, block.value)));
        }
        Ok(ReadObjects {
            pools,
            ranges,
            blocks,
            cooldown_seconds: config.ip_cooldown_seconds,
        })
    }

    /// Returns true if the block existed.
    pub(super) fn exists(&self, block: &Cidr) -> bool {
        self.ranges.contains(block)
    }

    /// Returns the number of addresses of a handle in a block, or `None` if the block is
    /// unreadable.
    pub(super) fn addresses_of(&self, handle: &HandleId, block: &Cidr) -> Option<usize> {
        let read = self
            .blocks
            .get(block)
            .map(|block| block.addresses_of(handle).len());
        read.or_else(|| (!self.exists(block)).then_some(0))
    }

    pub(super) fn inputs<'a>(
        &'a self,
        users: &'a BTreeMap<IpAddr, BTreeSet<Claimant>>,
        now: OffsetDateTime,
    ) -> AdoptionInputs<'a> {
        let ReadObjects {
            pools,
            ranges,
            blocks,
            cooldown_seconds,
        } = self;
        AdoptionInputs {
            users,
            pools,
            ranges,
            blocks,
            cooldown_seconds: *cooldown_seconds,
            now,
        }
    }
}
