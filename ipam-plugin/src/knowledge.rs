//! [`Knowledge`]: a snapshot of the objects that an operation has read so far. [`Wants`]: the objects that its plan
//! needs next.

mod survey;
mod wants;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use futures::future::{try_join, try_join3};
use libcalico::ipam::{AffinityKey, AffinitySelect, Block, BlockAffinity, Handle, IpamConfig, Reservations, Room};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Answers, Entry, Kind, ReadBatch, Revision, Store, StoreError};
use time::OffsetDateTime;

use self::survey::{all_ranges, ask_ranges};
pub(crate) use self::wants::Wants;
use crate::exhausted::SearchedPool;
use crate::prelude::{Counts, HandleState, Prelude, PreludeQuery, ReadBlock};

/// The state of one block in the snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Known {
    /// The block is missing.
    Absent,
    /// The block exists, but its content is invalid, so it gives no address and is not written.
    Corrupt,
    /// The block exists, and a survey of all blocks, or a note of an earlier one, found this room in it. The block has
    /// to be read before it gives an address.
    Seen(Room),
    /// The block exists and was read. Addresses whose cooldown has ended are in its free list again (IPAM-162).
    There(Box<Entry<Block>>),
}

/// A block of which a survey kept the range only, because it can give no address.
static NOTHING_THERE: Known = Known::Seen(Room { in_use: 0, has_free: false, is_own: false, may_be_reclaimed: false });

/// A snapshot of the objects read so far.
#[derive(Debug, Clone)]
pub(crate) struct Knowledge {
    pub(crate) prelude: Prelude,
    /// Addresses that automatic assignment skips: reserved ranges, and addresses that the request passes over.
    pub(crate) reservations: Reservations,
    /// Time of the read, which searches and claims use as the current time.
    pub(crate) now: OffsetDateTime,
    query: PreludeQuery,
    passed_over: BTreeSet<IpAddr>,
    blocks: BTreeMap<Cidr, Known>,
    listed: BTreeSet<IpVersion>,
    ranges: BTreeMap<IpVersion, BTreeSet<Cidr>>,
    affinities: HashMap<AffinityKey, Option<Entry<BlockAffinity>>>,
    /// Blocks that were read concurrently with the affinities, and may be older than these.
    beside_claims: BTreeSet<Cidr>,
    /// Blocks that were read before, or concurrently with, a later read of the affinities.
    before_claims: BTreeSet<Cidr>,
    expected: Counts,
    /// Blocks that differ from the note about them.
    changed: BTreeSet<Cidr>,
    /// The use of each pool of the families whose blocks were all surveyed.
    searched: BTreeMap<Cidr, SearchedPool>,
}

impl Knowledge {
    /// Creates the snapshot from `prelude`, the result of `query`.
    pub(crate) fn new(mut prelude: Prelude, query: PreludeQuery, now: OffsetDateTime) -> Result<Self, StoreError> {
        let blocks = std::mem::take(&mut prelude.blocks);
        let mut knowledge = Knowledge {
            reservations: reservations(&prelude),
            expected: std::mem::take(&mut prelude.expected),
            prelude,
            now,
            query,
            passed_over: BTreeSet::new(),
            blocks: BTreeMap::new(),
            listed: BTreeSet::new(),
            ranges: BTreeMap::new(),
            affinities: HashMap::new(),
            beside_claims: blocks.iter().map(|(cidr, _)| *cidr).collect(),
            before_claims: BTreeSet::new(),
            changed: BTreeSet::new(),
            searched: BTreeMap::new(),
        };
        blocks.into_iter().try_for_each(|(cidr, answer)| knowledge.learn_block(cidr, answer))?;
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
        self.reservations = reservations(&self.prelude);
        true
    }

    pub(crate) fn config(&self) -> &IpamConfig {
        &self.prelude.config
    }

    /// Returns the handle, if it was read and exists.
    pub(crate) fn handle(&self) -> Option<&Entry<Handle>> {
        match &self.prelude.handle {
            HandleState::There(entry) => Some(entry),
            HandleState::Unread | HandleState::Absent => None,
        }
    }

    pub(crate) fn handle_is_unread(&self) -> bool {
        self.prelude.handle == HandleState::Unread
    }

    /// Returns the part of [`Knowledge::handle`] that counts for this operation's blocks, which are not written yet.
    pub(crate) fn expected(&self) -> &Counts {
        &self.expected
    }

    /// Returns the state of a block, or `None` if the block was not read yet.
    pub(crate) fn block(&self, cidr: &Cidr) -> Option<&Known> {
        match self.blocks.get(cidr) {
            None if self.listed.contains(&cidr.version()) => {
                let is_there = self.ranges(cidr.version()).is_some_and(|ranges| ranges.contains(cidr));
                Some(if is_there { &NOTHING_THERE } else { &Known::Absent })
            }
            known => known,
        }
    }

    /// Returns the block if it was read and is valid.
    pub(crate) fn readable_block(&self, cidr: &Cidr) -> Option<&Entry<Block>> {
        match self.blocks.get(cidr) {
            Some(Known::There(entry)) => Some(entry),
            _ => None,
        }
    }

    /// Returns true if the block is known to differ from the note about it.
    pub(crate) fn has_changed(&self, cidr: &Cidr) -> bool {
        self.changed.contains(cidr)
    }

    /// Returns the number of allocated addresses in the block, or 0 if that is unknown.
    pub(crate) fn in_use(&self, cidr: &Cidr) -> u32 {
        self.blocks.get(cidr).and_then(|block| self.room(block)).map_or(0, |room| room.in_use)
    }

    /// Returns the room in a block that exists and is usable, as far as it was read.
    pub(crate) fn room(&self, block: &Known) -> Option<Room> {
        match block {
            Known::There(entry) => Some(Room::of(&entry.value, &self.reservations, &self.query.owner, self.now)),
            Known::Seen(room) => Some(*room),
            Known::Absent | Known::Corrupt => None,
        }
    }

    /// Returns true if a block may be older than the affinities read. A contradiction between both may then be
    /// outdated.
    pub(crate) fn may_predate_claims(&self, cidr: &Cidr) -> bool {
        self.beside_claims.contains(cidr) || self.before_claims.contains(cidr)
    }

    /// Returns the blocks of a family that may have more room than the snapshot shows.
    pub(crate) fn lagging(&self, version: IpVersion) -> impl Iterator<Item = Cidr> {
        self.beside_claims.iter().filter(move |cidr| self.lags(cidr) && cidr.version() == version).copied()
    }

    /// Returns true if a block may have changed before it was read, because a cache answered.
    pub(crate) fn lags(&self, cidr: &Cidr) -> bool {
        self.prelude.blocks_lag && self.beside_claims.contains(cidr)
    }

    /// Returns true if the list of the owner's affinities may be stale.
    pub(crate) fn claims_lag(&self) -> bool {
        self.prelude.claims_lag
    }

    /// Returns all blocks of the snapshot.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (&Cidr, &Known)> {
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

    /// Returns a known block of another size that shares addresses with `cidr`.
    pub(crate) fn overlapping(&self, cidr: &Cidr) -> Option<Cidr> {
        let ranges = self.ranges(cidr.version())?;
        ranges.iter().find(|range| range.clashes_with(cidr)).copied()
    }

    /// Returns the owner's affinities of one family, in the order in which their blocks are tried (IPAM-112).
    pub(crate) fn own_affinities(&self, version: IpVersion) -> impl Iterator<Item = &Entry<BlockAffinity>> {
        self.prelude.affinities.iter().filter(move |entry| {
            entry.key.cidr.version() == version && !entry.value.deleted && entry.key.owner == self.query.owner
        })
    }

    /// Returns one affinity, or `None` if it was not read yet. An affinity of this owner that the prelude lacks is not
    /// known to be missing, because another process may be claiming the block at the same time.
    pub(crate) fn affinity(&self, key: &AffinityKey) -> Option<Option<&Entry<BlockAffinity>>> {
        match self.prelude.affinities.iter().find(|entry| entry.key == *key) {
            Some(entry) => Some(Some(entry)),
            None => self.affinities.get(key).map(Option::as_ref),
        }
    }

    /// Records the handle from a separate read, and the counts in it that belong to this operation.
    pub(crate) fn learn_handle(&mut self, found: HandleState, expected: Counts) {
        self.prelude.handle = found;
        self.expected = expected;
    }

    /// Reads the wanted objects in one batch, concurrently with a survey of all blocks where one is wanted.
    pub(crate) async fn read<S: Store>(&mut self, store: &S, wants: &Wants) -> Result<(), StoreError> {
        let mut batch = ReadBatch::new();
        let blocks: Vec<_> = wants.blocks.iter().map(|cidr| (*cidr, batch.get::<Block>(cidr))).collect();
        let full: Vec<_> =
            wants.full.iter().map(|(cidr, full)| (*cidr, full, batch.get_revision::<Block>(cidr))).collect();
        let affinities: Vec<_> =
            wants.affinities.iter().map(|key| (key.clone(), batch.get::<BlockAffinity>(key))).collect();
        let handle = wants.handle.then(|| batch.get::<Handle>(&self.query.handle));
        let claims = wants.claims.then(|| batch.list::<BlockAffinity>(&AffinitySelect::of(self.query.owner.clone())));
        let ranges_only: BTreeSet<IpVersion> = wants.ranges.difference(&wants.lists).copied().collect();
        let (ranges, surveyed) = ask_ranges(&mut batch, store, ranges_only);
        let answers = async {
            match batch.ranges().is_empty() {
                true => Ok(Answers::new(Vec::new())),
                false => store.read(&batch).await,
            }
        };
        let (answers, ranges_found, rooms) =
            try_join3(answers, all_ranges(store, surveyed), self.all_rooms(store, &wants.lists)).await?;
        tracing::debug!(blocks = blocks.len(), lists = wants.lists.len() + wants.ranges.len(), "read address blocks");
        if let Some(ticket) = claims {
            self.prelude.affinities = answers.list(&ticket);
            self.prelude.claims_lag = false;
        }
        if let Some(ticket) = handle {
            self.prelude.handle = answers.get(&ticket)?.into();
        }
        for (cidr, ticket) in blocks {
            self.learn_block(cidr, answers.get(&ticket))?;
            self.was_read_anew(&cidr);
        }
        for (cidr, full, ticket) in full {
            match answers.revision(&ticket) {
                Some(now) if now.resource_version() == full.revision => {
                    self.blocks.insert(cidr, Known::Seen(Room::none(full.in_use)));
                }
                _ => _ = self.changed.insert(cidr),
            }
        }
        self.ranges.extend(ranges.into_iter().map(|(v, ticket)| (v, answers.listed_keys(&ticket).collect())));
        self.ranges.extend(ranges_found);
        self.learn_all(&wants.lists, rooms);
        for (key, ticket) in affinities {
            self.learn_affinity(key, answers.get(&ticket))?;
        }
        if wants.claims {
            self.before_claims = self.blocks.keys().copied().collect();
        }
        Ok(())
    }

    fn was_read_anew(&mut self, block: &Cidr) {
        self.beside_claims.remove(block);
        self.before_claims.remove(block);
    }

    /// Reads again in one batch after a lost race. This includes the prelude, since a pool may be disabled by now
    /// (IPAM-100), the blocks `touched`, affinities to these that the prelude lacked, and the ranges that were known.
    /// All other blocks and affinities are removed from the snapshot.
    pub(crate) async fn refresh<S: Store>(
        &mut self,
        store: &S,
        now: OffsetDateTime,
        touched: impl IntoIterator<Item = Cidr>,
    ) -> Result<(), StoreError> {
        let mut batch = ReadBatch::new();
        let prelude = Prelude::ask(&mut batch, &self.query);
        let (mut blocks, mut claims) = (Vec::new(), Vec::new());
        for cidr in touched {
            blocks.push((cidr, batch.get::<Block>(&cidr)));
            let key = AffinityKey { owner: self.query.owner.clone(), cidr };
            // The list omits an affinity that cannot be read.
            if !self.prelude.affinities.iter().any(|entry| entry.key == key) {
                claims.push((batch.get::<BlockAffinity>(&key), key));
            }
        }
        let (ranges, surveyed) = ask_ranges(&mut batch, store, self.ranges.keys().copied().collect());
        let (answers, surveyed) = try_join(store.read(&batch), all_ranges(store, surveyed)).await?;
        let (expected, passed_over) = (std::mem::take(&mut self.expected), std::mem::take(&mut self.passed_over));
        let prelude = Prelude::from_answers(&answers, &prelude)?;
        let fresh = Knowledge::new(prelude, self.query.clone(), now)?.passing_over(passed_over);
        *self = Knowledge { expected, ..fresh };
        self.expect_no_more_than_counted();
        self.ranges = ranges.into_iter().map(|(v, ticket)| (v, answers.listed_keys(&ticket).collect())).collect();
        self.ranges.extend(surveyed);
        for (cidr, ticket) in blocks {
            self.learn_block(cidr, answers.get(&ticket))?;
        }
        for (ticket, key) in claims {
            self.learn_affinity(key, answers.get(&ticket))?;
        }
        Ok(())
    }

    fn learn_block(&mut self, cidr: Cidr, answer: ReadBlock) -> Result<(), StoreError> {
        let known = match answer {
            Ok(None) => Known::Absent,
            // A tombstone is an object that a deletion in progress has marked; the block is unusable.
            Ok(Some(entry)) if entry.value.deleted => Known::Corrupt,
            Ok(Some(entry)) => self.rested(entry),
            Err(StoreError::Corrupt { key, reason }) => {
                tracing::warn!(block = %key, %reason, "leaving a block alone that cannot be read");
                Known::Corrupt
            }
            Err(error) => return Err(error),
        };
        self.blocks.insert(cidr, known);
        Ok(())
    }

    /// Records an affinity. An unreadable one makes only its own block unusable.
    fn learn_affinity(
        &mut self,
        key: AffinityKey,
        answer: Result<Option<Entry<BlockAffinity>>, StoreError>,
    ) -> Result<(), StoreError> {
        match answer {
            Ok(found) => _ = self.affinities.insert(key, found.filter(|entry| !entry.value.deleted)),
            Err(StoreError::Corrupt { key: path, reason }) => {
                tracing::warn!(affinity = %path, %reason, "leaving a block alone whose claim cannot be read");
                self.blocks.insert(key.cidr, Known::Corrupt);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn rested(&self, mut entry: Entry<Block>) -> Known {
        match entry.value.collect_garbage(self.config().ip_cooldown_seconds, self.now) {
            Ok(_) => Known::There(Box::new(entry)),
            Err(problem) => {
                tracing::warn!(%problem, "leaving a block alone");
                Known::Corrupt
            }
        }
    }

    // Writes of this operation.

    /// Records the stored handle and the counts in it that belong to this operation and are not used yet.
    pub(crate) fn wrote_handle(&mut self, value: Handle, revision: Revision, expected: Counts) {
        self.prelude.handle = HandleState::There(Entry { key: self.query.handle.clone(), value, revision });
        self.expected = expected;
    }

    /// Records that the operation took `n` addresses that the handle counted beforehand.
    pub(crate) fn took_expected(&mut self, block: &Cidr, n: usize) {
        if let Some(count) = self.expected.get_mut(block) {
            *count = count.saturating_sub(n);
        }
        self.expected.retain(|_, count| *count > 0);
    }

    /// Removes and returns the counts that the operation did not use.
    pub(crate) fn take_expected(&mut self) -> Counts {
        std::mem::take(&mut self.expected)
    }

    /// Limits the expected counts to the handle as read, because another process may have changed or deleted it.
    fn expect_no_more_than_counted(&mut self) {
        let HandleState::There(entry) = &self.prelude.handle else { return self.expected.clear() };
        let counted = |block: &Cidr| entry.value.block.get(block).and_then(|count| usize::try_from(*count).ok());
        self.expected.iter_mut().for_each(|(block, n)| *n = (*n).min(counted(block).unwrap_or_default()));
        self.expected.retain(|_, n| *n > 0);
    }

    pub(crate) fn wrote_block(&mut self, block: Block, revision: Revision) {
        let key = block.cidr;
        self.was_read_anew(&key);
        self.ranges.entry(key.version()).and_modify(|ranges| _ = ranges.insert(key));
        self.blocks.insert(key, Known::There(Box::new(Entry { key, value: block, revision })));
    }

    pub(crate) fn wrote_affinity(&mut self, written: Entry<BlockAffinity>) {
        let known = &mut self.prelude.affinities;
        match known.iter_mut().find(|entry| entry.key == written.key) {
            Some(entry) => *entry = written,
            None => {
                known.push(written);
                known.sort_by_cached_key(|entry| BlockAffinity::path(&entry.key));
            }
        }
    }

    pub(crate) fn deleted_affinity(&mut self, key: &AffinityKey) {
        self.prelude.affinities.retain(|entry| entry.key != *key);
        self.affinities.insert(key.clone(), None);
    }

    pub(crate) fn deleted_block(&mut self, cidr: Cidr) {
        self.was_read_anew(&cidr);
        self.ranges.entry(cidr.version()).and_modify(|ranges| _ = ranges.remove(&cidr));
        self.blocks.insert(cidr, Known::Absent);
    }
}

fn reservations(prelude: &Prelude) -> Reservations {
    let (reservations, malformed) = Reservations::of(prelude.reservations.iter().map(|entry| &entry.value));
    for problem in malformed {
        tracing::warn!(%problem, "reservation");
    }
    reservations
}
