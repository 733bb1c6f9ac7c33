//! [`Snapshot`]: the objects that an operation has read so far, and its own writes.

mod read;
mod survey;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use libcalico::ipam::{
    AffinityKey, Block, BlockAffinity, Handle, Reservations, Room, conflicting_range,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Kind, Revision, StoreError};
use time::OffsetDateTime;

use crate::alloc::inputs::{AllocationInputs, BlockCounts, InputsQuery, ReadBlock, StoredHandle};
use crate::exhausted::SearchedPool;
use crate::reads::FoundEntry;

pub(crate) use self::read::MissingReads;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BlockRead {
    Absent,
    /// The block gives no address and is not written, because it or its affinity is unusable.
    Corrupt,
    /// A survey of all blocks, or a note of an earlier one, found this room in the block. The block
    /// has to be read before it gives an address.
    Surveyed(Room),
    /// The block was read. Addresses whose cooldown has ended are in its free list again
    /// (IPAM-162).
    Present(Box<Entry<Block>>),
}

/// A block of which a survey kept the range only, because it can give no address.
static UNUSABLE_BLOCK: BlockRead = BlockRead::Surveyed(Room {
    in_use: 0,
    has_free: false,
    is_own: false,
    may_be_reclaimed: false,
});

#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) inputs: AllocationInputs,
    /// Addresses that automatic assignment does not take: reserved ones, and those that the request
    /// skips.
    pub(crate) reservations: Reservations,
    /// Time of the read, which searches and claims use as the current time.
    pub(crate) now: OffsetDateTime,
    pub(crate) query: InputsQuery,
    skipped: BTreeSet<IpAddr>,
    pub(crate) blocks: BTreeMap<Cidr, BlockRead>,
    surveyed_families: BTreeSet<IpVersion>,
    ranges: BTreeMap<IpVersion, BTreeSet<Cidr>>,
    affinities: HashMap<AffinityKey, Option<Entry<BlockAffinity>>>,
    /// Blocks that were read concurrently with the affinities, and may be older than these.
    read_with_affinities: BTreeSet<Cidr>,
    /// Blocks that were read before, or concurrently with, a later read of the affinities.
    read_before_affinities: BTreeSet<Cidr>,
    /// The counts of the handle that belong to this operation, for addresses that it has not
    /// assigned yet.
    pub(crate) reserved: BlockCounts,
    pub(crate) changed: BTreeSet<Cidr>,
    /// The use of each pool of the families whose blocks were all surveyed.
    pool_uses: BTreeMap<Cidr, SearchedPool>,
}

impl Snapshot {
    pub(crate) fn new(
        mut inputs: AllocationInputs,
        query: InputsQuery,
        now: OffsetDateTime,
    ) -> Result<Self, StoreError> {
        let blocks = std::mem::take(&mut inputs.blocks);
        let mut snapshot = Snapshot {
            reservations: reservations(&inputs),
            reserved: std::mem::take(&mut inputs.reserved),
            inputs,
            now,
            query,
            skipped: BTreeSet::new(),
            blocks: BTreeMap::new(),
            surveyed_families: BTreeSet::new(),
            ranges: BTreeMap::new(),
            affinities: HashMap::new(),
            read_with_affinities: blocks.iter().map(|(cidr, _)| *cidr).collect(),
            read_before_affinities: BTreeSet::new(),
            changed: BTreeSet::new(),
            pool_uses: BTreeMap::new(),
        };
        blocks
            .into_iter()
            .try_for_each(|(cidr, answer)| snapshot.insert_block(cidr, answer))?;
        Ok(snapshot)
    }

    pub(crate) fn with_skipped(mut self, addresses: BTreeSet<IpAddr>) -> Self {
        if !addresses.is_empty() {
            let busy = addresses.iter().map(|ip| Cidr::host(*ip));
            self.reservations =
                Reservations::new(self.reservations.ranges().iter().copied().chain(busy));
            self.skipped = addresses;
        }
        self
    }

    /// Returns true if the request skips addresses.
    pub(crate) fn is_skipping(&self) -> bool {
        !self.skipped.is_empty()
    }

    /// Makes the skipped addresses available again.
    pub(crate) fn stop_skipping(&mut self) {
        tracing::debug!(reason = "exhausted", "allowing possibly busy addresses");
        self.skipped.clear();
        self.reservations = reservations(&self.inputs);
    }

    pub(crate) fn handle(&self) -> Option<&Entry<Handle>> {
        let StoredHandle::Existing(entry) = &self.inputs.handle else {
            return None;
        };
        Some(entry)
    }

    pub(crate) fn is_handle_unread(&self) -> bool {
        self.inputs.handle == StoredHandle::Unread
    }

    /// Returns the state of a block, or `None` if it was not read yet.
    pub(crate) fn block(&self, cidr: &Cidr) -> Option<&BlockRead> {
        match self.blocks.get(cidr) {
            None if self.surveyed_families.contains(&cidr.version()) => {
                let is_surveyed = self
                    .ranges(cidr.version())
                    .is_some_and(|ranges| ranges.contains(cidr));
                Some(if is_surveyed {
                    &UNUSABLE_BLOCK
                } else {
                    &BlockRead::Absent
                })
            }
            block => block,
        }
    }

    pub(crate) fn readable_block(&self, cidr: &Cidr) -> Option<&Entry<Block>> {
        let Some(BlockRead::Present(entry)) = self.blocks.get(cidr) else {
            return None;
        };
        Some(entry)
    }

    /// Returns the number of addresses that are not in the block's free list, or 0 if that is
    /// unknown.
    pub(crate) fn in_use(&self, cidr: &Cidr) -> u32 {
        self.blocks
            .get(cidr)
            .and_then(|block| self.room(block))
            .map_or(0, |room| room.in_use)
    }

    /// Returns the room in a block; `None` for a missing or unusable block.
    pub(crate) fn room(&self, block: &BlockRead) -> Option<Room> {
        match block {
            BlockRead::Present(entry) => Some(Room::of(
                &entry.value,
                &self.reservations,
                &self.query.owner,
                self.now,
            )),
            BlockRead::Surveyed(room) => Some(*room),
            BlockRead::Absent | BlockRead::Corrupt => None,
        }
    }

    /// Returns true if a block may be older than the affinities read, so that a contradiction may
    /// be outdated.
    pub(crate) fn may_predate_affinities(&self, cidr: &Cidr) -> bool {
        self.read_with_affinities.contains(cidr) || self.read_before_affinities.contains(cidr)
    }

    pub(crate) fn lagging_blocks(&self, version: IpVersion) -> impl Iterator<Item = Cidr> {
        self.read_with_affinities
            .iter()
            .filter(move |cidr| self.may_lag(cidr) && cidr.version() == version)
            .copied()
    }

    /// Returns true if a block may have changed before it was read, because a cache answered.
    pub(crate) fn may_lag(&self, cidr: &Cidr) -> bool {
        self.inputs.blocks_may_lag && self.read_with_affinities.contains(cidr)
    }

    pub(crate) fn has_all_blocks(&self, version: IpVersion) -> bool {
        self.surveyed_families.contains(&version)
    }

    pub(crate) fn ranges(&self, version: IpVersion) -> Option<&BTreeSet<Cidr>> {
        self.ranges.get(&version)
    }

    /// Returns a block of another size that shares addresses with `cidr`, as far as the ranges were
    /// read.
    pub(crate) fn overlapping(&self, cidr: &Cidr) -> Option<Cidr> {
        conflicting_range(self.ranges(cidr.version())?, cidr)
    }

    /// Returns true if another block may overlap with the existing block `cidr`, as far as the
    /// ranges were read. Ranges that lack the block itself were read before its creation, and may
    /// lack the other block too.
    pub(crate) fn may_overlap(&self, cidr: &Cidr) -> bool {
        self.ranges(cidr.version())
            .is_some_and(|ranges| !ranges.contains(cidr))
            || self.overlapping(cidr).is_some()
    }

    /// Returns the block from which `ip` is assigned: `of_pool`, which has the block size of the
    /// pool, or an existing block of another size that contains `ip`, as far as the ranges were
    /// read.
    pub(crate) fn block_of(&self, ip: IpAddr, of_pool: Cidr) -> Cidr {
        let around: Vec<Cidr> = self.blocks_around(ip).collect();
        if around.contains(&of_pool) {
            of_pool
        } else {
            around.first().copied().unwrap_or(of_pool)
        }
    }

    /// Returns an existing block other than `cidr` that contains `ip`, as far as the ranges were
    /// read. The address may be allocated in each of them.
    pub(crate) fn other_block_of(&self, ip: IpAddr, cidr: &Cidr) -> Option<Cidr> {
        self.blocks_around(ip).find(|around| around != cidr)
    }

    /// Returns the existing blocks that contain `ip`, the smallest first, as far as the ranges were
    /// read.
    fn blocks_around(&self, ip: IpAddr) -> impl Iterator<Item = Cidr> {
        let version = IpVersion::of(ip);
        let exists = move |cidr: &Cidr| {
            let has_range = self
                .ranges(version)
                .is_some_and(|ranges| ranges.contains(cidr));
            has_range && self.blocks.get(cidr) != Some(&BlockRead::Absent)
        };
        (0..=version.bits())
            .rev()
            .filter_map(move |prefix| Cidr::new(ip, prefix))
            .filter(exists)
    }

    /// Returns the owner's affinities of one family, in the order in which their blocks are tried
    /// (IPAM-112).
    pub(crate) fn own_affinities(
        &self,
        version: IpVersion,
    ) -> impl Iterator<Item = &Entry<BlockAffinity>> {
        self.inputs.affinities.iter().filter(move |entry| {
            entry.key.cidr.version() == version
                && !entry.value.deleted
                && entry.key.owner == self.query.owner
        })
    }

    /// Returns one affinity: `Some(None)` if it is missing, `None` if it was not read yet.
    pub(crate) fn affinity(&self, key: &AffinityKey) -> Option<Option<&Entry<BlockAffinity>>> {
        match self
            .inputs
            .affinities
            .iter()
            .find(|entry| entry.key == *key)
        {
            Some(entry) => Some(Some(entry)),
            None => self.affinities.get(key).map(Option::as_ref),
        }
    }

    fn mark_fresh(&mut self, block: &Cidr) {
        self.read_with_affinities.remove(block);
        self.read_before_affinities.remove(block);
    }

    fn insert_block(&mut self, cidr: Cidr, answer: ReadBlock) -> Result<(), StoreError> {
        let cooldown = self.inputs.config.ip_cooldown_seconds;
        let block = match answer {
            Ok(None) => BlockRead::Absent,
            // A tombstone is an object that a deletion in progress has marked.
            Ok(Some(entry)) if entry.value.deleted => BlockRead::Corrupt,
            Ok(Some(mut entry)) => match entry.value.collect_garbage(cooldown, self.now) {
                Ok(_) => BlockRead::Present(Box::new(entry)),
                Err(problem) => {
                    tracing::warn!(%problem, "assigning no address from an inconsistent block");
                    BlockRead::Corrupt
                }
            },
            Err(StoreError::Corrupt { key, reason }) => {
                tracing::warn!(
                    block = %key, %reason, "assigning no address from a block that cannot be read",
                );
                BlockRead::Corrupt
            }
            Err(error) => return Err(error),
        };
        self.blocks.insert(cidr, block);
        Ok(())
    }

    /// Records an affinity. An unreadable one makes only its own block unusable.
    fn insert_affinity(
        &mut self,
        key: AffinityKey,
        answer: FoundEntry<BlockAffinity>,
    ) -> Result<(), StoreError> {
        match answer {
            Ok(found) => {
                _ = self
                    .affinities
                    .insert(key, found.filter(|entry| !entry.value.deleted))
            }
            Err(StoreError::Corrupt { key: path, reason }) => {
                tracing::warn!(
                    affinity = %path, %reason,
                    "assigning no address from a block whose affinity cannot be read"
                );
                self.blocks.insert(key.cidr, BlockRead::Corrupt);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn reservations(inputs: &AllocationInputs) -> Reservations {
    let (reservations, malformed) =
        Reservations::of(inputs.reservations.iter().map(|entry| &entry.value));
    for problem in malformed {
        tracing::warn!(%problem, "ignoring an invalid IPReservation entry");
    }
    reservations
}

impl Snapshot {
    /// The assigned addresses use all reserved counts.
    pub(crate) fn record_handle(&mut self, value: Handle, revision: Revision) {
        self.inputs.handle = StoredHandle::Existing(Entry {
            key: self.query.handle.clone(),
            value,
            revision,
        });
        self.reserved.clear();
    }

    /// Records that the operation took `n` addresses that the handle counted beforehand.
    pub(crate) fn consume_reserved(&mut self, block: &Cidr, n: usize) {
        if let Some(count) = self.reserved.get_mut(block) {
            *count = count.saturating_sub(n);
        }
        self.reserved.retain(|_, count| *count > 0);
    }

    pub(crate) fn take_reserved(&mut self) -> BlockCounts {
        std::mem::take(&mut self.reserved)
    }

    /// Limits the reserved counts to the handle as read, because another process may have changed
    /// or deleted it.
    fn limit_reserved_to_counted(&mut self) {
        let StoredHandle::Existing(entry) = &self.inputs.handle else {
            return self.reserved.clear();
        };
        let counted = |block: &Cidr| {
            entry
                .value
                .block
                .get(block)
                .and_then(|count| usize::try_from(*count).ok())
        };
        self.reserved
            .iter_mut()
            .for_each(|(block, n)| *n = (*n).min(counted(block).unwrap_or_default()));
        self.reserved.retain(|_, n| *n > 0);
    }

    pub(crate) fn record_block(&mut self, block: Block, revision: Revision) {
        let key = block.cidr;
        self.mark_fresh(&key);
        self.ranges
            .entry(key.version())
            .and_modify(|ranges| _ = ranges.insert(key));
        self.blocks.insert(
            key,
            BlockRead::Present(Box::new(Entry {
                key,
                value: block,
                revision,
            })),
        );
    }

    pub(crate) fn record_affinity(&mut self, written: Entry<BlockAffinity>) {
        let affinities = &mut self.inputs.affinities;
        match affinities.iter_mut().find(|entry| entry.key == written.key) {
            Some(entry) => *entry = written,
            None => {
                affinities.push(written);
                affinities.sort_by_cached_key(|entry| BlockAffinity::path(&entry.key));
            }
        }
    }

    pub(crate) fn remove_affinity(&mut self, key: &AffinityKey) {
        self.inputs.affinities.retain(|entry| entry.key != *key);
        self.affinities.insert(key.clone(), None);
    }

    pub(crate) fn remove_block(&mut self, cidr: Cidr) {
        self.mark_fresh(&cidr);
        self.ranges
            .entry(cidr.version())
            .and_modify(|ranges| _ = ranges.remove(&cidr));
        self.blocks.insert(cidr, BlockRead::Absent);
    }
}
