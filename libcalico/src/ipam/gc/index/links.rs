//! The lists of addresses of a handle, an owner and a node, and of a node's blocks. Only this
//! module changes them, so that adding and removing stay symmetric.

use super::super::rows::{AddressRow, CalicoNode, CompactHandle, NodeRow};
use super::super::table::{NONE, RowId};
use super::Index;

impl Index {
    pub(in super::super) fn track(&mut self, mut tracked: AddressRow) -> RowId {
        tracked.next_of_handle = self
            .handles
            .get(tracked.handle)
            .map_or(NONE, |handle| handle.first_address);
        tracked.next_of_owner = self
            .owners
            .get(tracked.owner)
            .map_or(NONE, |owner| owner.first_address);
        let (handle, owner, node) = (tracked.handle, tracked.owner, tracked.node);
        tracked.set(AddressRow::DIRTY, false);
        let row = self.addresses.insert(tracked);
        if let Some(handle) = self.handles.get_mut(handle) {
            handle.first_address = row;
        }
        if let Some(owner) = self.owners.get_mut(owner) {
            owner.first_address = row;
        }
        self.add_to_node(row, node);
        self.count(row, 1);
        // An address can be the reason to keep another one of its container.
        self.mark_owner_dirty(owner);
        self.mark_dirty(row);
        row
    }

    /// Removes an address, and the entries that only this address used.
    pub(in super::super) fn untrack(&mut self, row: RowId) {
        self.clear_leak(row);
        self.count(row, -1);
        self.allocation_removed(row);
        self.owner_pods.remove(&row);
        let Some(tracked) = self.addresses.get(row).cloned() else {
            return;
        };
        self.unlink_handle(row, &tracked);
        self.unlink_owner(row, &tracked);
        self.remove_from_node(row);
        self.addresses.remove(row);
        self.mark_owner_dirty(tracked.owner);
    }

    fn unlink_handle(&mut self, row: RowId, tracked: &AddressRow) {
        let Some(head) = self
            .handles
            .get(tracked.handle)
            .map(|handle| handle.first_address)
        else {
            return;
        };
        if head != row {
            let before = self.before(head, row, |other| other.next_of_handle);
            if let Some(before) = self.addresses.get_mut(before) {
                before.next_of_handle = tracked.next_of_handle;
            }
        } else if tracked.next_of_handle != NONE {
            if let Some(handle) = self.handles.get_mut(tracked.handle) {
                handle.first_address = tracked.next_of_handle;
            }
        } else {
            self.leaks.end_postponement(tracked.handle);
            let id = self.handles.remove(tracked.handle).map(|handle| handle.id);
            if let Some(CompactHandle::Container { network, .. }) = id {
                self.networks.release(network);
            }
        }
    }

    fn unlink_owner(&mut self, row: RowId, tracked: &AddressRow) {
        let Some(head) = self
            .owners
            .get(tracked.owner)
            .map(|owner| owner.first_address)
        else {
            return;
        };
        if head != row {
            let before = self.before(head, row, |other| other.next_of_owner);
            if let Some(before) = self.addresses.get_mut(before) {
                before.next_of_owner = tracked.next_of_owner;
            }
        } else if let Some(owner) = self.owners.get_mut(tracked.owner) {
            owner.first_address = tracked.next_of_owner;
            self.drop_unused_owner(tracked.owner);
        }
    }

    /// Returns the row whose `next` is `row`, in the list that begins at `head`.
    fn before(&self, head: RowId, row: RowId, next: fn(&AddressRow) -> RowId) -> RowId {
        let mut at = head;
        while let Some(other) = self.addresses.get(at) {
            if next(other) == row {
                return at;
            }
            at = next(other);
        }
        NONE
    }

    pub(in super::super) fn add_to_node(&mut self, row: RowId, node: RowId) {
        let at = self
            .nodes
            .get_mut(node)
            .map_or(0, |node| append(&mut node.addresses, row));
        if let Some(tracked) = self.addresses.get_mut(row) {
            (tracked.node, tracked.in_node) = (node, at);
        }
        self.node_changed(node);
    }

    pub(in super::super) fn remove_from_node(&mut self, row: RowId) {
        let Some((node, at)) = self
            .addresses
            .get(row)
            .map(|tracked| (tracked.node, tracked.in_node))
        else {
            return;
        };
        let moved = self
            .nodes
            .get_mut(node)
            .and_then(|node| swap_remove(&mut node.addresses, at));
        if let Some(moved) = moved.and_then(|moved| self.addresses.get_mut(moved)) {
            moved.in_node = at;
        }
        if let Some(tracked) = self.addresses.get_mut(row) {
            tracked.node = NONE;
        }
        self.node_changed(node);
        self.drop_unused_node(node);
    }

    /// Marks a deleted node for examination, because its tunnel addresses and affinities may now be
    /// ready for release.
    pub(super) fn node_changed(&mut self, node: RowId) {
        if self.is_node_deleted(node) {
            self.mark_node_dirty(node);
        }
    }

    pub(in super::super) fn add_block_to_node(&mut self, block: RowId, owner: RowId) {
        let at = self
            .nodes
            .get_mut(owner)
            .map_or(0, |node| append(&mut node.blocks, block));
        if let Some(row) = self.blocks.get_mut(block) {
            (row.owner, row.in_node) = (owner, at);
        }
        self.mark_blocks_changed(owner);
        self.node_changed(owner);
    }

    pub(in super::super) fn remove_block_from_node(&mut self, block: RowId) {
        let Some((node, at)) = self.blocks.get(block).map(|row| (row.owner, row.in_node)) else {
            return;
        };
        let moved = self
            .nodes
            .get_mut(node)
            .and_then(|node| swap_remove(&mut node.blocks, at));
        if let Some(moved) = moved.and_then(|moved| self.blocks.get_mut(moved)) {
            moved.in_node = at;
        }
        if let Some(row) = self.blocks.get_mut(block) {
            row.owner = NONE;
        }
        self.mark_blocks_changed(node);
        self.node_changed(node);
        self.drop_unused_node(node);
    }

    pub(in super::super) fn node_row(&mut self, name: &str) -> RowId {
        if let Some(row) = self.nodes.find(name) {
            return row;
        }
        self.nodes.insert(NodeRow {
            name: name.into(),
            ..NodeRow::default()
        })
    }

    /// Removes a node that does not exist and to which nothing in the index refers.
    pub(in super::super) fn drop_unused_node(&mut self, node: RowId) {
        let Some(row) = self.nodes.get(node) else {
            return;
        };
        let is_referenced =
            row.references > 0 || !row.addresses.is_empty() || !row.blocks.is_empty();
        let exists =
            row.kubernetes || row.calico != CalicoNode::Absent || !row.calico_names.is_empty();
        if is_referenced || exists || self.reclaim.deleted_nodes.contains_key(&node) {
            return;
        }
        self.dirty_nodes.remove(&node);
        self.reclaim.changed_nodes.remove(&node);
        self.nodes.remove(node);
    }
}

fn append(rows: &mut Vec<RowId>, row: RowId) -> u32 {
    rows.push(row);
    rows.len() as u32 - 1
}

/// Removes a row from a node's list, and returns the row that moved to its position.
fn swap_remove(rows: &mut Vec<RowId>, at: u32) -> Option<RowId> {
    rows.swap_remove(at as usize);
    if rows.capacity() > 8 && rows.len() < rows.capacity() / 4 {
        rows.shrink_to(rows.len() * 2);
    }
    rows.get(at as usize).copied()
}
