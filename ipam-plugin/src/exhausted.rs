//! [`Notes`]: searches on this node that found no free address, noted in a file so that the next ADDs need not search
//! again.
//!
//! A search looks at every block of the cluster, and kubelet repeats an ADD that failed. A note counts for the pools
//! that were searched, as long as no pool, reservation or setting changes and this node releases no address. What other
//! nodes release is found when the note ends, which is after a minute at most. The node's own blocks are no part of it:
//! whether they have changed is looked at each time.
//!
//! A file that is missing, broken or of another program is no note.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::{fs, io, process};

use libcalico::ipam::Room;
use libcalico::net::Cidr;
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

/// The file with the notes; it is gone when the node starts anew.
pub const FILE: &str = "/var/run/calico/cni/no_free_address";

/// The time that the first note of a search counts, in seconds. Each further one, while nothing changes, counts twice
/// as long.
const FIRST: i64 = Duration::seconds(5).whole_seconds();
const LONGEST: i64 = Duration::MINUTE.whole_seconds();

/// Most notes that are kept; the oldest go first.
const MOST: usize = 32;

/// No file of ours is larger, in bytes.
const LARGEST: u64 = 1 << 18;

/// The pools of a search, and the state of the cluster then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Search {
    /// Owner, family, strict affinity or not, and the pools in the order they were searched.
    pub(crate) key: String,
    /// A digest of the revisions of all pools, all reservations and the configuration.
    pub(crate) state: u64,
}

/// A search that found no free address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    #[serde(flatten)]
    pub(crate) search: Search,
    /// The last release of this node when the search began.
    release: u64,
    /// When the search was over, in seconds since 1970, and for how many seconds it counts.
    made: i64,
    holds: i64,
    /// The use of the pools, for the error.
    pub(crate) pools: Vec<SearchedPool>,
    /// The node's own blocks that were full.
    pub(crate) own: BTreeMap<Cidr, FullBlock>,
}

/// A pool without a free address for this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SearchedPool {
    pub(crate) cidr: Cidr,
    /// Addresses of its blocks that were not in their free lists.
    pub(crate) in_use: u64,
    /// True if blocks of other nodes had room.
    pub(crate) has_room: bool,
}

impl SearchedPool {
    pub(crate) fn empty(cidr: Cidr) -> Self {
        SearchedPool { cidr, in_use: 0, has_room: false }
    }

    /// Counts a block of the pool.
    pub(crate) fn add(&mut self, room: Room) {
        self.in_use = self.in_use.saturating_add(room.in_use.into());
        self.has_room |= room.has_free;
    }
}

/// A block without a free address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FullBlock {
    /// Its revision then. As long as it has this one, no address of it is free.
    pub(crate) revision: String,
    /// Addresses that were taken.
    pub(crate) in_use: u32,
}

/// The end of a search.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// There was an address.
    Found(Search),
    /// There was none, in a search that began after the release of this number.
    Exhausted {
        /// The search.
        search: Search,
        /// The number that [`Notes::begin`] returned.
        release: Option<u64>,
        /// As in the note.
        pools: Vec<SearchedPool>,
        /// As in the note.
        own: BTreeMap<Cidr, FullBlock>,
    },
    /// There was none by a note, and these are the node's own blocks now.
    Noted(Note, BTreeMap<Cidr, FullBlock>),
}

/// The notes of this node at one moment. Without a file there are none, and none is left.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    file: Option<PathBuf>,
    now: i64,
    notes: Vec<Note>,
}

impl Notes {
    /// Reads the notes of `file` as of `now`.
    pub fn read(file: &Path, now: OffsetDateTime) -> Self {
        Notes { file: Some(file.to_owned()), now: now.unix_timestamp(), notes: notes_in(file) }
    }

    /// Returns the note of `search`, if it counts.
    pub(crate) fn of(&self, search: &Search) -> Option<&Note> {
        let note = self.notes.iter().find(|note| note.search == *search)?;
        // A clock that was set back makes no note last longer.
        let is_in_time = (note.made..note.made.saturating_add(note.holds.min(LONGEST))).contains(&self.now);
        (is_in_time && self.file.as_deref().and_then(last_release) == Some(note.release)).then_some(note)
    }

    /// Begins a search. Returns the number of the last release of this node; `None` if the search can leave no note.
    pub(crate) fn begin(&self) -> Option<u64> {
        let file = self.file.as_deref()?;
        last_release(file).or_else(|| {
            let begun = write(&releases_of(file), &new_number());
            begun.inspect_err(|error| tracing::debug!(%error, "this search leaves no note")).ok()?;
            last_release(file)
        })
    }

    /// Notes what searches came to that were over at `now`. For processes that hold the node's lock; without it two may
    /// lose a note, and no more.
    pub(crate) fn keep(&self, outcomes: Vec<Outcome>, now: OffsetDateTime) {
        let Some(file) = self.file.as_deref().filter(|_| !outcomes.is_empty()) else { return };
        let before = notes_in(file);
        let mut notes = before.clone();
        for outcome in outcomes {
            let key = match &outcome {
                Outcome::Found(search) | Outcome::Exhausted { search, .. } => &search.key,
                Outcome::Noted(note, _) => &note.search.key,
            };
            let earlier = notes.iter().position(|note| note.search.key == *key).map(|place| notes.remove(place));
            notes.extend(self.note(outcome, earlier, now.unix_timestamp()));
        }
        notes.drain(..notes.len().saturating_sub(MOST));
        if notes == before {
            return;
        }
        if let Err(error) = write(file, &notes) {
            tracing::debug!(file = %file.display(), %error, "cannot note that there is no free address");
        }
    }

    fn note(&self, outcome: Outcome, earlier: Option<Note>, made: i64) -> Option<Note> {
        match outcome {
            Outcome::Found(_) => None,
            Outcome::Exhausted { search, release, pools, own } => {
                let release = release?;
                // There may have been room since a note that ended long ago.
                let is_recent = |note: &Note| self.now < note.made.saturating_add(note.holds).saturating_add(LONGEST);
                let is_same = |note: &Note| note.search == search && note.release == release && is_recent(note);
                let holds = earlier.filter(is_same).map_or(FIRST, |note| note.holds.saturating_mul(2));
                // An address that became free when the search had passed its block is found a minute later at most.
                let longest = LONGEST.saturating_sub(made.saturating_sub(self.now)).clamp(FIRST, LONGEST);
                Some(Note { search, release, made, holds: holds.clamp(FIRST, longest), pools, own })
            }
            Outcome::Noted(note, own) => Some(Note { own, ..note }),
        }
    }

    /// See [`Releasing`].
    pub(crate) fn releasing(&self) -> Releasing<'_> {
        Releasing::on(self.file.as_deref())
    }
}

/// A release of addresses by this node: notes of before it count no more. Those of searches during it neither, so that
/// it is noted when it begins and when it is over.
#[derive(Debug)]
pub struct Releasing<'f>(Option<&'f Path>);

impl<'f> Releasing<'f> {
    /// Begins a release on the node whose notes are in `file`.
    pub fn on(file: Option<&'f Path>) -> Self {
        file.into_iter().for_each(outdate);
        Releasing(file)
    }

    /// Begins a release on this node.
    pub fn here() -> Releasing<'static> {
        Releasing::on(Some(Path::new(FILE)))
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(outdate);
    }
}

/// Makes all notes count no more. Where no search has begun yet there is none.
fn outdate(file: &Path) {
    let releases = releases_of(file);
    if fs::symlink_metadata(&releases).is_err() {
        return;
    }
    if let Err(error) = write(&releases, &new_number()) {
        tracing::debug!(file = %releases.display(), %error, "forgetting the notes of full pools instead");
        _ = fs::remove_file(releases);
        _ = fs::remove_file(file);
    }
}

fn notes_in(file: &Path) -> Vec<Note> {
    read(file).unwrap_or_default()
}

fn last_release(file: &Path) -> Option<u64> {
    read(&releases_of(file))
}

fn releases_of(file: &Path) -> PathBuf {
    file.with_extension("release")
}

fn new_number() -> u64 {
    RandomState::new().hash_one(process::id())
}

fn read<T: for<'de> Deserialize<'de>>(file: &Path) -> Option<T> {
    let metadata = fs::symlink_metadata(file).ok()?;
    let is_ours = metadata.is_file() && metadata.len() <= LARGEST;
    serde_json::from_slice(&is_ours.then(|| fs::read(file).ok()).flatten()?).ok()
}

fn write<T: Serialize>(file: &Path, content: &T) -> io::Result<()> {
    // All processes use the same name, so that the next write replaces what a killed process has left. Of two writes at
    // the same time one may fail or be cut, and then there is no note.
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let written = fs::write(&new, serde_json::to_vec(content)?).and_then(|()| fs::rename(&new, file));
    written.inspect_err(|_| _ = fs::remove_file(&new))
}

#[cfg(test)]
mod tests;
