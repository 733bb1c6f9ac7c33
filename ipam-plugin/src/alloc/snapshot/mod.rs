//! [`Snapshot`]: a snapshot of the objects that an operation has read so far. [`MissingReads`]: the objects that its plan
//! needs next.

mod missing_reads;
mod survey;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use futures::future::{try_join, try_join3};
use libcalico::ipam::{AffinityKey, AffinitySelect, Block, BlockAffinity, Handle, IpamConfig, Reservations, Room};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Answers, Entry, Kind, ReadBatch, Revision, Store, StoreError};
use time::OffsetDateTime;

pub(crate) use self::missing_reads::MissingReads;
use self::survey::{all_ranges, ask_ranges};
use crate::alloc::inputs::{AllocationInputs, BlockCounts, InputsQuery, ReadBlock, StoredHandle};
use crate::exhausted::SearchedPool;

/// The state of one block in the snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BlockRead {
    /// The block is missing.
    Absent,
    /// The block exists, but its content is invalid, so it gives no address and is not written.
    Corrupt,
    /// The block exists, and a survey of all blocks, or a note of an earlier one, found this room in it. The block has
    /// to be read before it gives an address.
    Surveyed(Room),
    /// The block exists and was read. Addresses whose cooldown has ended are in its free list again (IPAM-162).
    Present(Box<Entry<Block>>),
}

/// A block of which a survey kept the range only, because it can give no address.
static NOTHING_THERE: BlockRead =
    BlockRead::Surveyed(Room { in_use: 0, has_free: false, is_own: false, may_be_reclaimed: false });

/// A snapshot of the objects read so far.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) inputs: AllocationInputs,
    /// Addresses that automatic assignment skips: reserved ranges, and addresses that the request passes over.
    pub(crate) reservations: Reservations,
    /// Time of the read, which searches and claims use as the current time.
    pub(crate) now: OffsetDateTime,
    query: InputsQuery,
    passed_over: BTreeSet<IpAddr>,
    blocks: BTreeMap<Cidr, BlockRead>,
    listed: BTreeSet<IpVersion>,
    ranges: BTreeMap<IpVersion, BTreeSet<Cidr>>,
    affinities: HashMap<AffinityKey, Option<Entry<BlockAffinity>>>,
    /// Blocks that were read concurrently with the affinities, and may be older than these.
    read_with_affinities: BTreeSet<Cidr>,
    /// Blocks that were read before, or concurrently with, a later read of the affinities.
    read_before_affinities: BTreeSet<Cidr>,
    expected: BlockCounts,
    /// Blocks that differ from the note about them.
    changed: BTreeSet<Cidr>,
    /// The use of each pool of the families whose blocks were all surveyed.
    searched: BTreeMap<Cidr, SearchedPool>,
}

impl Snapshot {
    /// Creates the snapshot from `inputs`, the result of `query`.
    pub(crate) fn new(
        mut inputs: AllocationInputs,
        query: InputsQuery,
        now: OffsetDateTime,
    ) -> Result<Self, StoreError> {
        let blocks = std::mem::take(&mut inputs.blocks);
        let mut knowledge = Snapshot {
            reservations: reservations(&inputs),
            expected: std::mem::take(&mut inputs.expected),
            inputs,
            now,
            query,
            passed_over: BTreeSet::new(),
            blocks: BTreeMap::new(),
            listed: BTreeSet::new(),
            ranges: BTreeMap::new(),
            affinities: HashMap::new(),
            read_with_affinities: blocks.iter().map(|(cidr, _)| *cidr).collect(),
            read_before_affinities: BTreeSet::new(),
            changed: BTreeSet::new(),
            searched: BTreeMap::new(),
        };
        blocks.into_iter().try_for_each(|(cidr, answer)| knowledge.insert_block(cidr, answer))?;
        Ok(knowledge)
    }

    /// Treats these addresses as reserved.
    pub(crate) fn passing_over(mut self, addresses: BTreeSet<IpAddr>) -> Self {
        if !addresses.is_empty() {
            let busy = addresses.iter().map(|ip| Cidr::host(*ip));
            self.reservations = Reservations::new(self.reservations.ranges().iter().copied().chain(busy));
            self.passed_over = addresses;
        }
        self
    }

    /// Stops treating passed-over addresses as reserved. Returns false if there were none.
    pub(crate) fn pass_over_no_more(&mut self) -> bool {
        if self.passed_over.is_empty() {
            return false;
        }
        self.passed_over.clear();
        self.reservations = reservations(&self.inputs);
        true
    }

    pub(crate) fn config(&self) -> &IpamConfig {
        &self.inputs.config
    }

    /// Returns the handle, if it was read and exists.
    pub(crate) fn handle(&self) -> Option<&Entry<Handle>> {
        match &self.inputs.handle {
            StoredHandle::There(entry) => Some(entry),
            StoredHandle::Unread | StoredHandle::Absent => None,
        }
    }

    pub(crate) fn handle_is_unread(&self) -> bool {
        self.inputs.handle == StoredHandle::Unread
    }

    /// Returns the part of [`Snapshot::handle`] that counts for this operation's blocks, which are not written yet.
    pub(crate) fn expected(&self) -> &BlockCounts {
        &self.expected
    }

    /// Returns the state of a block, or `None` if the block was not read yet.
    pub(crate) fn block(&self, cidr: &Cidr) -> Option<&BlockRead> {
        match self.blocks.get(cidr) {
            None if self.listed.contains(&cidr.version()) => {
                let is_there = self.ranges(cidr.version()).is_some_and(|ranges| ranges.contains(cidr));
                Some(if is_there { &NOTHING_THERE } else { &BlockRead::Absent })
            }
            snapshot => snapshot,
        }
    }

    /// Returns the block if it was read and is valid.
    pub(crate) fn readable_block(&self, cidr: &Cidr) -> Option<&Entry<Block>> {
        match self.blocks.get(cidr) {
            Some(BlockRead::Present(entry)) => Some(entry),
            _ => None,
        }
    }

    /// Returns true if the block is snapshot to differ from the note about it.
    pub(crate) fn has_changed(&self, cidr: &Cidr) -> bool {
        self.changed.contains(cidr)
    }

    /// Returns the number of allocated addresses in the block, or 0 if that is unknown.
    pub(crate) fn in_use(&self, cidr: &Cidr) -> u32 {
        self.blocks.get(cidr).and_then(|block| self.room(block)).map_or(0, |room| room.in_use)
    }

    /// Returns the room in a block that exists and is usable, as far as it was read.
    pub(crate) fn room(&self, block: &BlockRead) -> Option<Room> {
        match block {
            BlockRead::Present(entry) => Some(Room::of(&entry.value, &self.reservations, &self.query.owner, self.now)),
            BlockRead::Surveyed(room) => Some(*room),
            BlockRead::Absent | BlockRead::Corrupt => None,
        }
    }

    /// Returns true if a block may be older than the affinities read. A contradiction between both may then be
    /// outdated.
    pub(crate) fn may_predate_affinities(&self, cidr: &Cidr) -> bool {
        self.read_with_affinities.contains(cidr) || self.read_before_affinities.contains(cidr)
    }

    /// Returns the blocks of a family that may have more room than the snapshot shows.
    pub(crate) fn lagging_blocks(&self, version: IpVersion) -> impl Iterator<Item = Cidr> {
        self.read_with_affinities.iter().filter(move |cidr| self.lags(cidr) && cidr.version() == version).copied()
    }

    /// Returns true if a block may have changed before it was read, because a cache answered.
    pub(crate) fn lags(&self, cidr: &Cidr) -> bool {
        self.inputs.blocks_may_lag && self.read_with_affinities.contains(cidr)
    }

    /// Returns true if the list of the owner's affinities may be stale.
    pub(crate) fn affinities_may_lag(&self) -> bool {
        self.inputs.affinities_may_lag
    }

    /// Returns all blocks of the snapshot.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (&Cidr, &BlockRead)> {
        self.blocks.iter()
    }

    /// Returns true if every block of the family was read.
    pub(crate) fn knows_all_blocks(&self, version: IpVersion) -> bool {
        self.listed.contains(&version)
    }

    /// Returns the ranges of all blocks of the family, or `None` if they were not read yet.
    pub(crate) fn ranges(&self, version: IpVersion) -> Option<&BTreeSet<Cidr>> {
        self.ranges.get(&version)
    }

    /// Returns a snapshot block of another size that shares addresses with `cidr`.
    pub(crate) fn overlapping(&self, cidr: &Cidr) -> Option<Cidr> {
        let ranges = self.ranges(cidr.version())?;
        ranges.iter().find(|range| range.clashes_with(cidr)).copied()
    }

    /// Returns the owner's affinities of one family, in the order in which their blocks are tried (IPAM-112).
    pub(crate) fn own_affinities(&self, version: IpVersion) -> impl Iterator<Item = &Entry<BlockAffinity>> {
        self.inputs.affinities.iter().filter(move |entry| {
            entry.key.cidr.version() == version && !entry.value.deleted && entry.key.owner == self.query.owner
        })
    }

    /// Returns one affinity, or `None` if it was not read yet. An affinity of this owner that the inputs lacks is not
    /// snapshot to be missing, because another process may be claiming the block at the same time.
    pub(crate) fn affinity(&self, key: &AffinityKey) -> Option<Option<&Entry<BlockAffinity>>> {
        match self.inputs.affinities.iter().find(|entry| entry.key == *key) {
            Some(entry) => Some(Some(entry)),
            None => self.affinities.get(key).map(Option::as_ref),
        }
    }

    /// Records the handle from a separate read, and the counts in it that belong to this operation.
    pub(crate) fn insert_handle(&mut self, found: StoredHandle, expected: BlockCounts) {
        self.inputs.handle = found;
        self.expected = expected;
    }

    /// Reads the wanted objects in one batch, concurrently with a survey of all blocks where one is wanted.
    pub(crate) async fn read<S: Store>(&mut self, store: &S, missing: &MissingReads) -> Result<(), StoreError> {
        let mut batch = ReadBatch::new();
        let blocks: Vec<_> = missing.blocks.iter().map(|cidr| (*cidr, batch.get::<Block>(cidr))).collect();
        let full: Vec<_> =
            missing.full.iter().map(|(cidr, full)| (*cidr, full, batch.get_revision::<Block>(cidr))).collect();
        let affinities: Vec<_> =
            missing.affinities.iter().map(|key| (key.clone(), batch.get::<BlockAffinity>(key))).collect();
        let handle = missing.handle.then(|| batch.get::<Handle>(&self.query.handle));
        let claims = missing.claims.then(|| batch.list::<BlockAffinity>(&AffinitySelect::of(self.query.owner.clone())));
        let ranges_only: BTreeSet<IpVersion> = missing.ranges.difference(&missing.lists).copied().collect();
        let (ranges, surveyed) = ask_ranges(&mut batch, store, ranges_only);
        let answers = async {
            match batch.ranges().is_empty() {
                true => Ok(Answers::new(Vec::new())),
                false => store.read(&batch).await,
            }
        };
        let (answers, ranges_found, rooms) =
            try_join3(answers, all_ranges(store, surveyed), self.all_rooms(store, &missing.lists)).await?;
        tracing::debug!(
            blocks = blocks.len(),
            lists = missing.lists.len() + missing.ranges.len(),
            "read address blocks"
        );
        if let Some(ticket) = claims {
            self.inputs.affinities = answers.list(&ticket);
            self.inputs.affinities_may_lag = false;
        }
        if let Some(ticket) = handle {
            self.inputs.handle = answers.get(&ticket)?.into();
        }
        for (cidr, ticket) in blocks {
            self.insert_block(cidr, answers.get(&ticket))?;
            self.note_fresh_read(&cidr);
        }
        for (cidr, full, ticket) in full {
            match answers.revision(&ticket) {
                Some(now) if now.resource_version() == full.revision => {
                    self.blocks.insert(cidr, BlockRead::Surveyed(Room::none(full.in_use)));
                }
                _ => _ = self.changed.insert(cidr),
            }
        }
        self.ranges.extend(ranges.into_iter().map(|(v, ticket)| (v, answers.listed_keys(&ticket).collect())));
        self.ranges.extend(ranges_found);
        self.insert_survey(&missing.lists, rooms);
        for (key, ticket) in affinities {
            self.insert_affinity(key, answers.get(&ticket))?;
        }
        if missing.claims {
            self.read_before_affinities = self.blocks.keys().copied().collect();
        }
        Ok(())
    }

    fn note_fresh_read(&mut self, block: &Cidr) {
        self.read_with_affinities.remove(block);
        self.read_before_affinities.remove(block);
    }

    /// Reads again in one batch after a lost race. This includes the inputs, since a pool may be disabled by now
    /// (IPAM-100), the blocks `touched`, affinities to these that the inputs lacked, and the ranges that were snapshot.
    /// All other blocks and affinities are removed from the snapshot.
    pub(crate) async fn refresh<S: Store>(
        &mut self,
        store: &S,
        now: OffsetDateTime,
        touched: impl IntoIterator<Item = Cidr>,
    ) -> Result<(), StoreError> {
        let mut batch = ReadBatch::new();
        let inputs = AllocationInputs::ask(&mut batch, &self.query);
        let (mut blocks, mut claims) = (Vec::new(), Vec::new());
        for cidr in touched {
            blocks.push((cidr, batch.get::<Block>(&cidr)));
            let key = AffinityKey { owner: self.query.owner.clone(), cidr };
            // The list omits an affinity that cannot be read.
            if !self.inputs.affinities.iter().any(|entry| entry.key == key) {
                claims.push((batch.get::<BlockAffinity>(&key), key));
            }
        }
        let (ranges, surveyed) = ask_ranges(&mut batch, store, self.ranges.keys().copied().collect());
        let (answers, surveyed) = try_join(store.read(&batch), all_ranges(store, surveyed)).await?;
        let (expected, passed_over) = (std::mem::take(&mut self.expected), std::mem::take(&mut self.passed_over));
        let inputs = AllocationInputs::from_answers(&answers, &inputs)?;
        let fresh = Snapshot::new(inputs, self.query.clone(), now)?.passing_over(passed_over);
        *self = Snapshot { expected, ..fresh };
        self.limit_reserved_to_counted();
        self.ranges = ranges.into_iter().map(|(v, ticket)| (v, answers.listed_keys(&ticket).collect())).collect();
        self.ranges.extend(surveyed);
        for (cidr, ticket) in blocks {
            self.insert_block(cidr, answers.get(&ticket))?;
        }
        for (ticket, key) in claims {
            self.insert_affinity(key, answers.get(&ticket))?;
        }
        Ok(())
    }

    fn insert_block(&mut self, cidr: Cidr, answer: ReadBlock) -> Result<(), StoreError> {
        let snapshot = match answer {
            Ok(None) => BlockRead::Absent,
            // A tombstone is an object that a deletion in progress has marked; the block is unusable.
            Ok(Some(entry)) if entry.value.deleted => BlockRead::Corrupt,
            Ok(Some(entry)) => self.with_cooled_addresses(entry),
            Err(StoreError::Corrupt { key, reason }) => {
                tracing::warn!(block = %key, %reason, "leaving a block alone that cannot be read");
                BlockRead::Corrupt
            }
            Err(error) => return Err(error),
        };
        self.blocks.insert(cidr, snapshot);
        Ok(())
    }

    /// Records an affinity. An unreadable one makes only its own block unusable.
    fn insert_affinity(
        &mut self,
        key: AffinityKey,
        answer: Result<Option<Entry<BlockAffinity>>, StoreError>,
    ) -> Result<(), StoreError> {
        match answer {
            Ok(found) => _ = self.affinities.insert(key, found.filter(|entry| !entry.value.deleted)),
            Err(StoreError::Corrupt { key: path, reason }) => {
                tracing::warn!(affinity = %path, %reason, "leaving a block alone whose claim cannot be read");
                self.blocks.insert(key.cidr, BlockRead::Corrupt);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn with_cooled_addresses(&self, mut entry: Entry<Block>) -> BlockRead {
        match entry.value.collect_garbage(self.config().ip_cooldown_seconds, self.now) {
            Ok(_) => BlockRead::Present(Box::new(entry)),
            Err(problem) => {
                tracing::warn!(%problem, "leaving a block alone");
                BlockRead::Corrupt
            }
        }
    }

    // Writes of this operation.

    /// Records the stored handle and the counts in it that belong to this operation and are not used yet.
    pub(crate) fn record_handle(&mut self, value: Handle, revision: Revision, expected: BlockCounts) {
        self.inputs.handle = StoredHandle::There(Entry { key: self.query.handle.clone(), value, revision });
        self.expected = expected;
    }

    /// Records that the operation took `n` addresses that the handle counted beforehand.
    pub(crate) fn consume_reserved(&mut self, block: &Cidr, n: usize) {
        if let Some(count) = self.expected.get_mut(block) {
            *count = count.saturating_sub(n);
        }
        self.expected.retain(|_, count| *count > 0);
    }

    /// Removes and returns the counts that the operation did not use.
    pub(crate) fn take_reserved(&mut self) -> BlockCounts {
        std::mem::take(&mut self.expected)
    }

    /// Limits the expected counts to the handle as read, because another process may have changed or deleted it.
    fn limit_reserved_to_counted(&mut self) {
        let StoredHandle::There(entry) = &self.inputs.handle else { return self.expected.clear() };
        let counted = |block: &Cidr| entry.value.block.get(block).and_then(|count| usize::try_from(*count).ok());
        self.expected.iter_mut().for_each(|(block, n)| *n = (*n).min(counted(block).unwrap_or_default()));
        self.expected.retain(|_, n| *n > 0);
    }

    pub(crate) fn record_block(&mut self, block: Block, revision: Revision) {
        let key = block.cidr;
        self.note_fresh_read(&key);
        self.ranges.entry(key.version()).and_modify(|ranges| _ = ranges.insert(key));
        self.blocks.insert(key, BlockRead::Present(Box::new(Entry { key, value: block, revision })));
    }

    pub(crate) fn record_affinity(&mut self, written: Entry<BlockAffinity>) {
        let snapshot = &mut self.inputs.affinities;
        match snapshot.iter_mut().find(|entry| entry.key == written.key) {
            Some(entry) => *entry = written,
            None => {
                snapshot.push(written);
                snapshot.sort_by_cached_key(|entry| BlockAffinity::path(&entry.key));
            }
        }
    }

    pub(crate) fn remove_affinity(&mut self, key: &AffinityKey) {
        self.inputs.affinities.retain(|entry| entry.key != *key);
        self.affinities.insert(key.clone(), None);
    }

    pub(crate) fn remove_block(&mut self, cidr: Cidr) {
        self.note_fresh_read(&cidr);
        self.ranges.entry(cidr.version()).and_modify(|ranges| _ = ranges.remove(&cidr));
        self.blocks.insert(cidr, BlockRead::Absent);
    }
}

fn reservations(inputs: &AllocationInputs) -> Reservations {
    let (reservations, malformed) = Reservations::of(inputs.reservations.iter().map(|entry| &entry.value));
    for problem in malformed {
        tracing::warn!(%problem, "reservation");
    }
    reservations
}
