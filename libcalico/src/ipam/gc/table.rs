//! [`Table`]: rows with an index by key. The key is stored only in the row.

use std::hash::{BuildHasher, Hash, RandomState};

use hashbrown::HashTable;

/// The index of a row, valid until the row is removed.
pub(super) type RowId = u32;
/// The value for no row.
pub(super) const NONE: RowId = RowId::MAX;

/// Rows by index. The rows are stored in pieces, so that growth does not move them or double the
/// memory.
#[derive(Debug)]
pub(super) struct Slots<T> {
    pieces: Vec<Vec<Option<T>>>,
    free: Vec<RowId>,
}

/// The number of rows in a piece.
const PIECE: usize = 1024;

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            pieces: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    pub(super) fn insert(&mut self, value: T) -> RowId {
        if let Some(row) = self.free.pop() {
            if let Some(slot) = self.slot(row) {
                *slot = Some(value);
            }
            return row;
        }
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            // A small cluster does not fill the first piece.
            let room = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(room));
        }
        let before = (self.pieces.len() - 1) * PIECE;
        let piece = &mut self.pieces[before / PIECE];
        piece.push(Some(value));
        // Four billion rows do not fit into memory.
        RowId::try_from(before + piece.len() - 1).unwrap_or(NONE)
    }

    pub(super) fn remove(&mut self, row: RowId) -> Option<T> {
        let value = self.slot(row)?.take()?;
        self.free.push(row);
        Some(value)
    }

    pub(super) fn get(&self, row: RowId) -> Option<&T> {
        self.pieces
            .get(row as usize / PIECE)?
            .get(row as usize % PIECE)?
            .as_ref()
    }

    pub(super) fn get_mut(&mut self, row: RowId) -> Option<&mut T> {
        self.slot(row)?.as_mut()
    }

    fn slot(&mut self, row: RowId) -> Option<&mut Option<T>> {
        self.pieces
            .get_mut(row as usize / PIECE)?
            .get_mut(row as usize % PIECE)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RowId, &T)> {
        let rows = self.pieces.iter().flatten().enumerate();
        rows.filter_map(|(row, value)| Some((row as RowId, value.as_ref()?)))
    }

    pub(super) fn rows(&self) -> Vec<RowId> {
        self.iter().map(|(row, _)| row).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum::<usize>() - self.free.len()
    }
}

/// A row with a key.
pub(super) trait Keyed {
    type Key<'k>: Hash + Eq
    where
        Self: 'k;
    fn key(&self) -> Self::Key<'_>;
}

#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Slots<T>,
    index: HashTable<RowId>,
    state: RandomState,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table {
            slots: Slots::default(),
            index: HashTable::new(),
            state: RandomState::new(),
        }
    }
}

impl<T: Keyed> Table<T> {
    pub(super) fn find<'k>(&'k self, key: T::Key<'k>) -> Option<RowId> {
        let hash = self.state.hash_one(&key);
        self.index
            .find(hash, |&row| {
                self.slots.get(row).is_some_and(|value| value.key() == key)
            })
            .copied()
    }

    /// Inserts a row whose key is not in the table.
    pub(super) fn insert(&mut self, value: T) -> RowId {
        let hash = self.state.hash_one(value.key());
        let row = self.slots.insert(value);
        let (slots, state) = (&self.slots, &self.state);
        self.index.insert_unique(hash, row, |&row| {
            slots
                .get(row)
                .map_or(0, |value| state.hash_one(value.key()))
        });
        row
    }

    pub(super) fn remove(&mut self, row: RowId) -> Option<T> {
        let hash = self.state.hash_one(self.slots.get(row)?.key());
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == row) {
            entry.remove();
        }
        self.slots.remove(row)
    }

    pub(super) fn get(&self, row: RowId) -> Option<&T> {
        self.slots.get(row)
    }

    /// Returns a row for changes, which must not change the key.
    pub(super) fn get_mut(&mut self, row: RowId) -> Option<&mut T> {
        self.slots.get_mut(row)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RowId, &T)> {
        self.slots.iter()
    }

    pub(super) fn rows(&self) -> Vec<RowId> {
        self.slots.rows()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// Strings that many rows share, each removed with its last use.
#[derive(Debug, Default)]
pub(super) struct NameTable(Table<Name>);

#[derive(Debug)]
struct Name {
    text: Box<str>,
    uses: u32,
}

impl Keyed for Name {
    type Key<'k> = &'k str;

    fn key(&self) -> &str {
        &self.text
    }
}

impl NameTable {
    /// Returns the row of `text`, which is added if it is missing. Call `release` once for each
    /// call.
    pub(super) fn intern(&mut self, text: &str) -> RowId {
        let row = self.0.find(text).unwrap_or_else(|| {
            self.0.insert(Name {
                text: text.into(),
                uses: 0,
            })
        });
        if let Some(name) = self.0.get_mut(row) {
            name.uses += 1;
        }
        row
    }

    pub(super) fn release(&mut self, row: RowId) {
        let Some(name) = self.0.get_mut(row) else {
            return;
        };
        name.uses -= 1;
        if name.uses == 0 {
            self.0.remove(row);
        }
    }

    pub(super) fn find(&self, text: &str) -> Option<RowId> {
        self.0.find(text)
    }

    pub(super) fn text(&self, row: RowId) -> &str {
        self.0.get(row).map_or("", |name| &name.text)
    }
}

#[cfg(test)]
mod size {
    use super::*;

    impl<T> Slots<T> {
        pub(in super::super) fn bytes(&self) -> usize {
            let rows: usize = self.pieces.iter().map(Vec::capacity).sum();
            rows * size_of::<Option<T>>() + self.free.capacity() * size_of::<RowId>()
        }
    }

    impl<T: Keyed> Table<T> {
        pub(in super::super) fn bytes(&self) -> usize {
            // A bucket has a control byte and a row index, and an eighth of the buckets stays
            // empty.
            self.slots.bytes() + self.index.capacity() * 8 / 7 * (size_of::<RowId>() + 1)
        }
    }

    impl NameTable {
        pub(in super::super) fn len(&self) -> usize {
            self.0.len()
        }

        pub(in super::super) fn bytes(&self) -> usize {
            self.0.bytes()
                + self
                    .0
                    .iter()
                    .map(|(_, name)| name.text.len())
                    .sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interned_name_is_freed_with_its_last_use() {
        let mut names = NameTable::default();
        let (a, b) = (names.intern("a"), names.intern("b"));
        assert_eq!(
            (names.intern("a"), names.find("b"), names.text(a)),
            (a, Some(b), "a")
        );
        names.release(a);
        assert_eq!(names.find("a"), Some(a));
        names.release(a);
        assert_eq!((names.find("a"), names.len()), (None, 1));
        assert_eq!(names.intern("c"), a, "the slot is reused");
        assert_eq!((names.find("c"), names.find("b")), (Some(a), Some(b)));
    }

    #[test]
    fn interned_names_are_found_among_thousands() {
        let mut names = NameTable::default();
        let rows: Vec<RowId> = (0..5000).map(|n| names.intern(&n.to_string())).collect();
        for row in rows.iter().step_by(3) {
            names.release(*row);
        }
        for (n, row) in rows.iter().enumerate() {
            assert_eq!(names.find(&n.to_string()), (n % 3 != 0).then_some(*row));
        }
    }
}
