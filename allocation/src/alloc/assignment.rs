//! [`BlockAssignment`]: addresses assigned in memory. [`Assigned`]: the addresses assigned to a
//! request. [`WriteList`]: the writes of an allocation: the handle first, and each affinity before
//! its block.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;

use libcalico::api::IpPool;
use libcalico::ipam::{
    AffinityOwner, Allocation, AssignError, Block, BlockRequest, Handle, HandleId,
};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, StoreError, Write};
use time::OffsetDateTime;

use crate::alloc::block_hints::HintedBlocks;
use crate::alloc::request::AssignRequest;
use crate::alloc::snapshot::Snapshot;
use crate::block_writes::PriorAffinity;
use crate::error::{Result, Shortfall};
use crate::exhausted::{SearchNotes, SearchOutcome};
use crate::handle_refs;

/// An assigned address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length in the result: the block's, or the full length for a requested address or one
    /// assigned earlier (IPAM-40). An address of a list has the block's.
    pub prefix: u8,
}

/// Result of a request.
#[derive(Debug, Clone, Default)]
pub struct Assigned {
    /// The addresses, IPv4 first.
    pub addresses: Vec<Assignment>,
    /// The families with fewer addresses than requested. As in upstream, this is not an error here.
    pub shortfalls: Vec<Shortfall>,
    /// The blocks that the next call of the same network and namespace reads first.
    pub next_hints: HintedBlocks,
    /// The revision of the last block in the last commit without an error; `None` if there is none
    /// or it is not known.
    pub last_write: Option<Revision>,
    pub(crate) searches: Vec<SearchOutcome>,
    /// True if the node claimed a block for these addresses, or confirmed its affinity to one.
    pub has_claimed: bool,
}

impl Assigned {
    /// Stores the searches of this call that ended at `now` among the node's notes.
    pub fn store_searches(&mut self, notes: &SearchNotes, now: OffsetDateTime) {
        notes.store(mem::take(&mut self.searches), now);
    }
}

/// The way in which the block of an assigned address was chosen, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockSource {
    Own,
    Claimed,
    /// The node took over an empty block of another node.
    Reclaimed,
    /// The block has another owner or none.
    Borrowed,
}

impl BlockSource {
    pub(crate) fn of_existing(block: &Block, owner: &AffinityOwner) -> Self {
        if block.owner().as_ref() == Some(owner) {
            BlockSource::Own
        } else {
            BlockSource::Borrowed
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            BlockSource::Own => "own",
            BlockSource::Claimed => "claimed",
            BlockSource::Reclaimed => "reclaimed",
            BlockSource::Borrowed => "borrowed",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BlockAssignment {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) block: Block,
    /// The revision at which the block was read; `None` creates the block.
    pub(crate) revision: Option<Revision>,
    /// The affinity to write with the block: pending before the block, confirmed after it
    /// (IPAM-121). `None` if it stays as it is.
    pub(crate) prior_affinity: Option<PriorAffinity>,
}

impl BlockAssignment {
    pub(crate) fn new(
        block: Block,
        revision: Option<Revision>,
        prior_affinity: Option<PriorAffinity>,
    ) -> Self {
        BlockAssignment {
            addresses: Vec::new(),
            block,
            revision,
            prior_affinity,
        }
    }

    /// Returns `None` if the block gives no address to this owner.
    pub(crate) fn assign(
        mut self,
        request: &AssignRequest,
        owner: &AffinityOwner,
        snapshot: &Snapshot,
        n: usize,
    ) -> Result<Option<BlockAssignment>> {
        let from = block_request(request, owner, snapshot.inputs.config.strict_affinity);
        match self.block.assign(n, &from, &snapshot.reservations) {
            Ok(addresses) if addresses.is_empty() => return Ok(None),
            Ok(addresses) => self.addresses = addresses,
            Err(
                AssignError::AffinityMismatch { .. }
                | AssignError::NoAffinity(_)
                | AssignError::Corrupt(_),
            ) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
        self.block.count_write();
        Ok(Some(self))
    }

    pub(crate) fn assign_ip(
        mut self,
        request: &AssignRequest,
        strict: bool,
        ip: IpAddr,
    ) -> Result<Self, AssignError> {
        self.block
            .assign_address(ip, &block_request(request, &request.owner(), strict))?;
        self.addresses.push(ip);
        self.block.count_write();
        Ok(self)
    }

    pub(crate) fn cidr(&self) -> Cidr {
        self.block.cidr
    }

    /// `is_reclaimed` is true if this allocation released the block from another owner.
    pub(crate) fn source(&self, owner: &AffinityOwner, is_reclaimed: bool) -> BlockSource {
        match &self.revision {
            Some(_) => BlockSource::of_existing(&self.block, owner),
            None if is_reclaimed => BlockSource::Reclaimed,
            None => BlockSource::Claimed,
        }
    }

    /// Returns true if `stored` contains the addresses as this assignment writes them. The
    /// attributes of a container's address contain the time, so the allocations of another request
    /// differ.
    pub(crate) fn is_stored_in(&self, request: &AssignRequest, stored: &Block) -> bool {
        self.addresses.iter().all(|ip| {
            stored
                .allocation(*ip)
                .is_some_and(|held| is_from_request(request, &held))
        })
    }
}

/// Returns true if an allocation equals the one that `request` writes.
pub(crate) fn is_from_request(request: &AssignRequest, held: &Allocation<'_>) -> bool {
    held.handle().as_ref() == Some(&request.handle)
        && held.attributes() == Some(&request.attributes)
}

fn block_request<'a>(
    request: &'a AssignRequest,
    owner: &'a AffinityOwner,
    strict: bool,
) -> BlockRequest<'a> {
    let (handle, attributes) = (Some(&request.handle), &request.attributes);
    BlockRequest {
        handle,
        attributes,
        requester: owner,
        check_affinity: strict,
    }
}

pub(crate) fn log_assigned(
    handle: &HandleId,
    pools: &[Entry<IpPool>],
    addresses: impl IntoIterator<Item = (IpAddr, Cidr, BlockSource)>,
) {
    let (mut ips, mut blocks, mut names) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    for (ip, block, source) in addresses {
        let mut pools = pools.iter().map(|entry| &entry.value);
        let pool = pools.find(|pool| pool.spec.range().is_ok_and(|range| range.contains(ip)));
        names.extend(pool.map(|pool| pool.metadata.name.clone()));
        // After the claim, the block is the node's own for the later addresses.
        blocks.entry(block.to_string()).or_insert(source.name());
        ips.push(ip);
    }
    if ips.is_empty() {
        return;
    }
    let (blocks, sources): (Vec<String>, Vec<&str>) = blocks.into_iter().unzip();
    let (blocks, block_source, pools) = (
        blocks.join(","),
        sources.join(","),
        Vec::from_iter(names).join(","),
    );
    tracing::info!(
        addresses = comma_separated(&ips), blocks, %handle, pools, block_source,
        "assigned addresses",
    );
}

/// Returns the addresses in one text, for a log line.
pub fn comma_separated(ips: &[IpAddr]) -> String {
    ips.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

pub(crate) struct WriteList {
    pub(crate) writes: Vec<Write>,
    /// The handle, which is written first; `None` if its stored counts are already right.
    pub(crate) handle: Option<Handle>,
    /// For each assignment, the index of its affinity's write and of its block's write.
    pub(crate) assignments: Vec<(Option<usize>, usize)>,
}

pub(crate) fn write_list(
    snapshot: &Snapshot,
    request: &AssignRequest,
    owner: &AffinityOwner,
    assignments: &[BlockAssignment],
) -> Result<WriteList, StoreError> {
    let handle = handle_with_counts(snapshot, request, assignments);
    let mut writes = Vec::with_capacity(1 + 2 * assignments.len());
    match (snapshot.handle(), &handle) {
        (_, None) => {}
        (Some(read), Some(handle)) => writes.push(Write::update::<Handle>(
            &request.handle,
            handle,
            &read.revision,
        )?),
        (None, Some(handle)) => writes.push(Write::create::<Handle>(&request.handle, handle)?),
    }
    let mut positions = Vec::with_capacity(assignments.len());
    for assignment in assignments {
        let prior = assignment.prior_affinity.as_ref();
        let pending = prior
            .map(|prior| prior.pending_write(owner, assignment.cidr()))
            .transpose()?;
        let affinity = pending.as_ref().map(|_| writes.len());
        writes.extend(pending);
        writes.push(match &assignment.revision {
            Some(revision) => {
                Write::update::<Block>(&assignment.cidr(), &assignment.block, revision)?
            }
            None => Write::create::<Block>(&assignment.cidr(), &assignment.block)?,
        });
        positions.push((affinity, writes.len() - 1));
    }
    Ok(WriteList {
        writes,
        handle,
        assignments: positions,
    })
}

/// Returns the handle with the counts of `assignments` in place of the reserved counts, or `None`
/// if the handle does not change.
fn handle_with_counts(
    snapshot: &Snapshot,
    request: &AssignRequest,
    assignments: &[BlockAssignment],
) -> Option<Handle> {
    let before = snapshot.handle().map(|entry| &entry.value);
    let mut handle = before.cloned().unwrap_or_default();
    handle_refs::subtract(
        &mut handle,
        &request.handle,
        snapshot.reserved.iter().map(|(block, n)| (*block, *n)),
    );
    for assignment in assignments {
        handle.increment(assignment.cidr(), assignment.addresses.len());
    }
    (before != Some(&handle)).then_some(handle)
}

/// Records that `committed` took addresses that the handle counted beforehand.
pub(crate) fn consume_reserved(snapshot: &mut Snapshot, committed: &[BlockAssignment]) {
    committed.iter().for_each(|assignment| {
        snapshot.consume_reserved(&assignment.cidr(), assignment.addresses.len())
    });
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use tracing::subscriber::NoSubscriber;
    use tracing_subscriber::layer::SubscriberExt;

    use crate::alloc::one_address::assign_address;
    use crate::alloc::request::AssignRequest;
    use crate::testing::{Cluster, MemoryStore, cidr};
    use node_process::logging::line::{Fields, LineFormat};

    async fn logged(message: &str, allocations: impl Future<Output = ()>) -> Vec<String> {
        let log = tempfile::NamedTempFile::new().unwrap();
        let writer = Arc::new(log.reopen().unwrap());
        let lines = tracing_subscriber::fmt::layer()
            .fmt_fields(Fields)
            .event_format(LineFormat::new("ipam"));
        let subscriber = tracing_subscriber::registry().with(lines.with_writer(writer));
        // With a single subscriber, an event that another test's thread reaches first is disabled
        // for all threads.
        let _second = tracing::Dispatch::new(NoSubscriber::default());
        let guard = tracing::subscriber::set_default(subscriber);
        allocations.await;
        drop(guard);
        let text = fs::read_to_string(log.path()).unwrap();
        text.lines()
            .filter_map(|line| Some(line.split_once(message)?.1.to_owned()))
            .collect()
    }

    #[tokio::test]
    async fn log_line_names_the_source_of_each_block() {
        for store in [MemoryStore::transactional(), MemoryStore::sequential()] {
            let cluster = Cluster::on(store);
            cluster.pool("pool4", "10.0.0.0/30", 31);
            let mut is_first_block_own = false;
            let lines = logged(": assigned addresses ", async {
                let first = cluster.one("node1", "net.1").await.unwrap();
                is_first_block_own = cidr("10.0.0.0/31").contains(first);
                let second = cluster.one("node2", "net.2").await.unwrap();
                let request = AssignRequest {
                    num4: 2,
                    ..cluster.request("node1", "net.3")
                };
                assert_eq!(cluster.assign(&request).await.unwrap().addresses.len(), 2);
                cluster.release("net.2").await.unwrap();
                cluster.release("net.3").await.unwrap();
                cluster.one("node1", "net.4").await.unwrap();
                cluster.clock.advance(std::time::Duration::from_secs(61));
                assert!(
                    cidr(if is_first_block_own {
                        "10.0.0.2/31"
                    } else {
                        "10.0.0.0/31"
                    })
                    .contains(second)
                );
                assert_eq!(cluster.one("node3", "net.5").await.unwrap(), second);
                cluster.release("net.5").await.unwrap();
                for (node, handle) in [("node4", "net.6"), ("node3", "net.7")] {
                    let request = cluster.request(node, handle);
                    let inputs = cluster.inputs(&request).await.unwrap();
                    assign_address(&cluster.store, &cluster.clock, &request, second, inputs)
                        .await
                        .unwrap();
                    cluster.release(handle).await.unwrap();
                }
            });
            let lines = lines.await;
            let source = |line: &String| {
                let (_, rest) = line.split_once("block_source=").unwrap();
                rest.split(' ').next().unwrap().trim_matches('"').to_owned()
            };
            let sources: Vec<String> = lines.iter().map(source).collect();
            let both = if is_first_block_own {
                "own,borrowed"
            } else {
                "borrowed,own"
            };
            assert_eq!(
                sources,
                [
                    "claimed",
                    "claimed",
                    both,
                    "own",
                    "reclaimed",
                    "borrowed",
                    "own"
                ]
            );
        }
    }

    /// Upstream assigns from such a pool.
    #[tokio::test]
    async fn pool_of_multicast_beside_another_one_is_named_by_a_warning() {
        let cluster = Cluster::new();
        cluster.pool("multicast", "224.1.0.0/24", 26);
        cluster.pool("usable", "10.0.0.0/24", 26);
        let lines = logged(
            ": assigning no address from a pool of multicast or loopback",
            async {
                assert!(cidr("10.0.0.0/24").contains(cluster.one("node1", "net.1").await.unwrap()));
            },
        );
        let lines = lines.await;
        assert!(
            !lines.is_empty()
                && lines
                    .iter()
                    .all(|line| line.contains("multicast (224.1.0.0/24)")),
            "{lines:?}"
        );
    }

    #[tokio::test]
    async fn claim_of_a_range_is_logged_with_its_pool_and_reason() {
        let cluster = Cluster::new();
        cluster.pool("pool4", "10.0.0.0/31", 31);
        let lines = logged(": chose a range to claim ", async {
            cluster.one("node1", "net.1").await.unwrap();
        });
        assert_eq!(
            lines.await,
            ["block=10.0.0.0/31 pool=\"pool4\" reason=\"first free range\""]
        );
    }

    #[tokio::test]
    async fn log_line_names_the_reason_for_each_unused_block_of_the_node() {
        let cluster = Cluster::new();
        cluster.pool_with("gold", "10.1.0.0/31", 31, |spec| {
            spec.node_selector = "tier == 'gold'".into()
        });
        cluster.node("node1", &[("tier", "gold")]);
        cluster.one("node1", "net.1").await.unwrap();
        cluster.node("node1", &[]);
        cluster.pool("any", "10.2.0.0/30", 31);
        let lines = logged(": taking no address from a block of the node ", async {
            let request = AssignRequest {
                num4: 3,
                ..cluster.request("node1", "net.2")
            };
            assert_eq!(cluster.assign(&request).await.unwrap().addresses.len(), 3);
        });
        let first = cidr("10.2.0.0/31");
        let (not_chosen, full) = (
            "its pool is not chosen for this request",
            "it has no free address",
        );
        let lines = lines.await;
        let fields = |block, reason: &str| format!("block={block} reason=\"{reason}\"");
        let own = cidr("10.1.0.0/31");
        assert_eq!(
            lines[..2],
            [fields(own, not_chosen), fields(own, not_chosen)],
            "{lines:?}"
        );
        let claimed = [first, cidr("10.2.0.2/31")].map(|block| fields(block, full));
        assert!(lines.len() == 3 && claimed.contains(&lines[2]), "{lines:?}");
    }
}
