//! [`SearchNotes`]: a file with the searches of this node that found no free address, so that the
//! next ADDs need not search again.
//!
//! A search reads all blocks of a family, and kubelet repeats a failed ADD. A note is valid as long
//! as no pool, reservation or setting changes and this node's plugins release no address, for a
//! minute at most, because other nodes may release addresses. The note does not cover the node's
//! own blocks: each ADD reads their revisions.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::{fs, process};

use libcalico::ipam::Room;
use libcalico::net::Cidr;
use os::node_files::NodeFiles;
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

use crate::hint_file;

/// The file with the notes. A reboot deletes it.
pub const FILE: &str = "/var/run/calico/cni/no_free_address";

/// The validity of the first note of a search, in seconds. Each further note is valid for twice as
/// long, up to [`LONGEST_VALIDITY`].
const FIRST_VALIDITY: i64 = Duration::seconds(5).whole_seconds();
const LONGEST_VALIDITY: i64 = Duration::MINUTE.whole_seconds();

/// Maximum number of notes; the oldest are removed first.
const MAX_NOTES: usize = 32;

/// Maximum size of a file that is read, in bytes. The plugin writes no larger file.
const MAX_FILE_SIZE: u64 = 1 << 18;

/// The pools of a search, and the state of the cluster at its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Search {
    /// Owner, family, whether affinity is strict, and the pools in the order in which they were
    /// searched.
    pub(crate) key: String,
    /// A digest of the revisions of all pools, all reservations and the configuration.
    pub(crate) state: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    #[serde(flatten)]
    pub(crate) search: Search,
    /// The number of the last release of this node when the search began.
    release: u64,
    /// The end of the search, in seconds since 1970. `holds` is the validity in seconds.
    made: i64,
    holds: i64,
    pub(crate) pools: Vec<SearchedPool>,
    pub(crate) own: BTreeMap<Cidr, FullBlock>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SearchedPool {
    pub(crate) cidr: Cidr,
    pub(crate) in_use: u64,
    /// True if a block of the pool had a free address. In a note, such a block is one that this
    /// node was not allowed to use (strict affinity).
    pub(crate) has_room: bool,
}

impl SearchedPool {
    pub(crate) fn empty(cidr: Cidr) -> Self {
        SearchedPool {
            cidr,
            in_use: 0,
            has_room: false,
        }
    }

    pub(crate) fn add(&mut self, room: Room) {
        self.in_use = self.in_use.saturating_add(room.in_use.into());
        self.has_room |= room.has_free;
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FullBlock {
    /// The revision of the block. As long as it is unchanged, no address of the block is free.
    pub(crate) revision: String,
    pub(crate) in_use: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SearchOutcome {
    Found(Search),
    Exhausted {
        search: Search,
        /// The result of [`SearchNotes::begin_search`].
        release: Option<u64>,
        pools: Vec<SearchedPool>,
        own: BTreeMap<Cidr, FullBlock>,
    },
    /// A note saved the search. The blocks are the node's own full blocks now.
    Noted(Note, BTreeMap<Cidr, FullBlock>),
}

/// The notes of this node at one moment. Without a file, there are no notes and none are written.
#[derive(Debug, Clone, Default)]
pub struct SearchNotes {
    file: Option<PathBuf>,
    now: i64,
    notes: Vec<Note>,
}

impl SearchNotes {
    /// Reads the notes of `file` as of `now`.
    pub fn read(file: &Path, now: OffsetDateTime) -> Self {
        SearchNotes {
            file: Some(file.to_owned()),
            now: now.unix_timestamp(),
            notes: notes_in(file),
        }
    }

    /// Returns the note of `search`, if it is valid.
    pub(crate) fn note_of(&self, search: &Search) -> Option<&Note> {
        let note = self.notes.iter().find(|note| note.search == *search)?;
        // Setting the clock back does not prolong a note.
        let is_in_time = (note.made..note.made.saturating_add(note.holds.min(LONGEST_VALIDITY)))
            .contains(&self.now);
        (is_in_time && self.file.as_deref().and_then(last_release) == Some(note.release))
            .then_some(note)
    }

    /// Begins a search. Returns the number of the last release of this node, or `None` if the
    /// search cannot write a note.
    pub(crate) fn begin_search(&self) -> Option<u64> {
        let file = self.file.as_deref()?;
        last_release(file).or_else(|| {
            let releases = releases_of(file);
            if let Err(error) = hint_file::write(&releases, &new_number()) {
                tracing::debug!(
                    file = %releases.display(), %error,
                    "cannot write the number of the last release"
                );
                return None;
            }
            last_release(file)
        })
    }

    /// Stores the outcomes of searches that ended at `now`. Without the node's lock, a note of
    /// another process may be lost.
    pub(crate) fn store(&self, outcomes: Vec<SearchOutcome>, now: OffsetDateTime) {
        let Some(file) = self.file.as_deref().filter(|_| !outcomes.is_empty()) else {
            return;
        };
        let before = notes_in(file);
        let mut notes = before.clone();
        for outcome in outcomes {
            let key = match &outcome {
                SearchOutcome::Found(search) | SearchOutcome::Exhausted { search, .. } => {
                    &search.key
                }
                SearchOutcome::Noted(note, _) => &note.search.key,
            };
            let earlier = notes
                .iter()
                .position(|note| note.search.key == *key)
                .map(|place| notes.remove(place));
            notes.extend(self.next_note(outcome, earlier, now.unix_timestamp()));
        }
        notes.drain(..notes.len().saturating_sub(MAX_NOTES));
        if notes == before {
            return;
        }
        if let Err(error) = hint_file::write(file, &notes) {
            tracing::debug!(
                file = %file.display(), %error,
                "cannot store the results of searches; the next ADD may search again"
            );
        }
    }

    fn next_note(&self, outcome: SearchOutcome, earlier: Option<Note>, made: i64) -> Option<Note> {
        match outcome {
            SearchOutcome::Found(_) => None,
            SearchOutcome::Exhausted {
                search,
                release,
                pools,
                own,
            } => {
                let release = release?;
                // After a note that expired long ago, there may have been room in between.
                let is_recent = |note: &Note| {
                    self.now
                        < note
                            .made
                            .saturating_add(note.holds)
                            .saturating_add(LONGEST_VALIDITY)
                };
                let is_same = |note: &Note| {
                    note.search == search && note.release == release && is_recent(note)
                };
                let holds = earlier
                    .filter(is_same)
                    .map_or(FIRST_VALIDITY, |note| note.holds.saturating_mul(2));
                // An address that was released after the search passed its block is found about a
                // minute later at most.
                let longest = LONGEST_VALIDITY.saturating_sub(made.saturating_sub(self.now));
                let holds = holds.clamp(
                    FIRST_VALIDITY,
                    longest.clamp(FIRST_VALIDITY, LONGEST_VALIDITY),
                );
                Some(Note {
                    search,
                    release,
                    made,
                    holds,
                    pools,
                    own,
                })
            }
            SearchOutcome::Noted(note, own) => Some(Note { own, ..note }),
        }
    }

    /// Begins a release, see [`ReleaseGuard`].
    pub(crate) fn begin_release(&self) -> ReleaseGuard {
        ReleaseGuard::on(self.file.as_deref())
    }
}

/// A release of addresses by this node. It invalidates the notes of earlier searches and of
/// searches that overlap with it.
#[derive(Debug)]
pub struct ReleaseGuard(Option<PathBuf>);

impl ReleaseGuard {
    /// Begins a release on the node whose notes are in `file`. With `None`, there are no notes to
    /// invalidate.
    pub fn on(file: Option<&Path>) -> Self {
        file.into_iter().for_each(invalidate);
        ReleaseGuard(file.map(Path::to_owned))
    }

    /// Begins a release on the node with these files.
    pub fn of_node(files: &NodeFiles) -> Self {
        ReleaseGuard::on(Some(&files.path(FILE)))
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| invalidate(file));
    }
}

/// Invalidates all notes. Before the first search, there are none.
fn invalidate(file: &Path) {
    let releases = releases_of(file);
    if fs::symlink_metadata(&releases).is_err() {
        return;
    }
    if let Err(error) = hint_file::write(&releases, &new_number()) {
        tracing::debug!(
            file = %releases.display(), %error,
            "cannot invalidate the notes of full pools; deleting the notes"
        );
        _ = fs::remove_file(releases);
        _ = fs::remove_file(file);
    }
}

fn notes_in(file: &Path) -> Vec<Note> {
    hint_file::read(file, MAX_FILE_SIZE).unwrap_or_default()
}

fn last_release(file: &Path) -> Option<u64> {
    hint_file::read(&releases_of(file), MAX_FILE_SIZE)
}

fn releases_of(file: &Path) -> PathBuf {
    file.with_extension("release")
}

fn new_number() -> u64 {
    RandomState::new().hash_one(process::id())
}

#[cfg(test)]
mod tests;
