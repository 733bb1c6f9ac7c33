//! The lists that contain an address: those of its handle, its owner and its node. Only this module changes them, so
//! that adding and removing an address stay symmetric.

use super::super::rows::{CalicoNode, CompactHandle, HandleRow, NodeRow, Tracked};
use super::super::table::{NONE, Row};
use super::Index;

impl Index {
    /// Adds an address, and sets its links.
    pub(in super::super) fn track(&mut self, mut tracked: Tracked) -> Row {
        tracked.handle_next = self.handles.get(tracked.handle).map_or(NONE, |handle| handle.tracked);
        tracked.subject_next = self.subjects.get(tracked.subject).map_or(NONE, |subject| subject.tracked);
        let (handle, subject, node) = (tracked.handle, tracked.subject, tracked.node);
        tracked.set(Tracked::DIRTY, false);
        let row = self.tracked.insert(tracked);
        if let Some(handle) = self.handles.get_mut(handle) {
            handle.tracked = row;
        }
        if let Some(subject) = self.subjects.get_mut(subject) {
            subject.tracked = row;
        }
        self.file(row, node);
        self.count(row, 1);
        // An address of a container can be the reason to keep another one.
        self.mark_subject(subject);
        self.mark(row);
        row
    }

    /// Removes an address, and the entries that only this address used.
    pub(in super::super) fn untrack(&mut self, row: Row) {
        self.clear_leak(row);
        self.count(row, -1);
        self.holder_went(row);
        self.owners.remove(&row);
        let Some(tracked) = self.tracked.get(row).cloned() else { return };
        self.unlink_handle(row, &tracked);
        self.unlink_subject(row, &tracked);
        self.unfile(row);
        self.tracked.remove(row);
        self.mark_subject(tracked.subject);
    }

    fn unlink_handle(&mut self, row: Row, tracked: &Tracked) {
        let Some(head) = self.handles.get(tracked.handle).map(|handle| handle.tracked) else { return };
        if head != row {
            let before = self.before(head, row, |other| other.handle_next);
            if let Some(before) = self.tracked.get_mut(before) {
                before.handle_next = tracked.handle_next;
            }
        } else if tracked.handle_next != NONE {
            if let Some(handle) = self.handles.get_mut(tracked.handle) {
                handle.tracked = tracked.handle_next;
            }
        } else {
            self.leaks.unpark(tracked.handle);
            if let Some(HandleRow { id: CompactHandle::Container { network, .. }, .. }) =
                self.handles.remove(tracked.handle)
            {
                self.networks.give_back(network);
            }
        }
    }

    fn unlink_subject(&mut self, row: Row, tracked: &Tracked) {
        let Some(head) = self.subjects.get(tracked.subject).map(|subject| subject.tracked) else { return };
        if head != row {
            let before = self.before(head, row, |other| other.subject_next);
            if let Some(before) = self.tracked.get_mut(before) {
                before.subject_next = tracked.subject_next;
            }
        } else if let Some(subject) = self.subjects.get_mut(tracked.subject) {
            subject.tracked = tracked.subject_next;
            self.drop_unused_subject(tracked.subject);
        }
    }

    /// Returns the row whose `next` is `row`.
    fn before(&self, head: Row, row: Row, next: fn(&Tracked) -> Row) -> Row {
        let mut at = head;
        while let Some(other) = self.tracked.get(at) {
            if next(other) == row {
                return at;
            }
            at = next(other);
        }
        NONE
    }

    /// Files an address under a node.
    pub(in super::super) fn file(&mut self, row: Row, node: Row) {
        let at = self.nodes.get_mut(node).map_or(0, |node| append(&mut node.tracked, row));
        if let Some(tracked) = self.tracked.get_mut(row) {
            (tracked.node, tracked.in_node) = (node, at);
        }
        self.node_changed(node);
    }

    /// Removes an address from its node.
    pub(in super::super) fn unfile(&mut self, row: Row) {
        let Some((node, at)) = self.tracked.get(row).map(|tracked| (tracked.node, tracked.in_node)) else { return };
        let moved = self.nodes.get_mut(node).and_then(|node| swap_remove(&mut node.tracked, at));
        if let Some(moved) = moved.and_then(|moved| self.tracked.get_mut(moved)) {
            moved.in_node = at;
        }
        if let Some(tracked) = self.tracked.get_mut(row) {
            tracked.node = NONE;
        }
        self.node_changed(node);
        self.drop_unused_node(node);
    }

    /// Marks a deleted node whose addresses or blocks changed. Its tunnel addresses and affinities may now be ready
    /// for release.
    pub(super) fn node_changed(&mut self, node: Row) {
        if self.is_gone(node) {
            self.mark_node(node);
        }
    }

    /// Files a block under its owner.
    pub(in super::super) fn own(&mut self, block: Row, owner: Row) {
        let at = self.nodes.get_mut(owner).map_or(0, |node| append(&mut node.blocks, block));
        if let Some(row) = self.blocks.get_mut(block) {
            (row.owner, row.in_node) = (owner, at);
        }
        self.unbalance(owner);
        self.node_changed(owner);
    }

    /// Removes a block from its owner.
    pub(in super::super) fn disown(&mut self, block: Row) {
        let Some((node, at)) = self.blocks.get(block).map(|row| (row.owner, row.in_node)) else { return };
        let moved = self.nodes.get_mut(node).and_then(|node| swap_remove(&mut node.blocks, at));
        if let Some(moved) = moved.and_then(|moved| self.blocks.get_mut(moved)) {
            moved.in_node = at;
        }
        if let Some(row) = self.blocks.get_mut(block) {
            row.owner = NONE;
        }
        self.unbalance(node);
        self.node_changed(node);
        self.drop_unused_node(node);
    }

    /// Returns the row of a node, and creates it if it is missing.
    pub(in super::super) fn node_row(&mut self, name: &str) -> Row {
        if let Some(row) = self.nodes.find(name) {
            return row;
        }
        self.nodes.insert(NodeRow {
            name: name.into(),
            calico: CalicoNode::Absent,
            kubernetes: false,
            migrating: false,
            tracked: Vec::new(),
            blocks: Vec::new(),
            references: 0,
            calico_names: Vec::new(),
            lists: [0; 2],
            dirty: false,
            unbalanced: false,
        })
    }

    /// Removes a node that is no longer referenced.
    pub(in super::super) fn drop_unused_node(&mut self, node: Row) {
        let Some(row) = self.nodes.get(node) else { return };
        let referred = row.references > 0 || !row.tracked.is_empty() || !row.blocks.is_empty();
        let there = row.kubernetes || row.calico != CalicoNode::Absent || !row.calico_names.is_empty();
        if referred || there || self.balance.is_departing(node) {
            return;
        }
        self.dirty_nodes.remove(&node);
        self.balance.forget_node(node);
        self.nodes.remove(node);
    }
}

/// Appends a row to a node's list, and returns its position.
fn append(rows: &mut Vec<Row>, row: Row) -> u32 {
    rows.push(row);
    rows.len() as u32 - 1
}

/// Removes a row from a node's list. Returns the row that moved to its position, if there is one. After many removals,
/// reduces the capacity of the list.
fn swap_remove(rows: &mut Vec<Row>, at: u32) -> Option<Row> {
    rows.swap_remove(at as usize);
    if rows.capacity() > 8 && rows.len() < rows.capacity() / 4 {
        rows.shrink_to(rows.len() * 2);
    }
    rows.get(at as usize).copied()
}
