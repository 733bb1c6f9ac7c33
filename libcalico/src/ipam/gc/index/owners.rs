//! Changes of pods, VMIs and Services. A change marks the object's addresses for examination.

use super::super::rows::{OwnerRow, OwnerState};
use super::super::table::{NONE, RowId};
use super::{Index, OwnerPods, WatchedKind};
use crate::ipam::{OwnerKind, PodState};
use crate::kubernetes::may_be_virt_launcher;

impl Index {
    /// Adds or updates a pod.
    pub fn put_pod(&mut self, namespace: &str, name: &str, facts: &PodState<'_>) {
        let row = self.owner_row(OwnerKind::Pod, namespace, name);
        let node = if facts.node.is_empty() {
            NONE
        } else {
            self.node_row(facts.node)
        };
        let PodState {
            addresses,
            ended,
            runs,
            ..
        } = facts.clone();
        self.set_state(
            row,
            WatchedKind::Pods,
            OwnerState::Pod {
                node,
                addresses,
                ended,
                runs,
            },
        );
    }

    /// Removes a deleted pod.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        self.remove_owner(OwnerKind::Pod, namespace, name);
    }

    /// Adds a VirtualMachine.
    pub fn put_virtual_machine(&mut self, namespace: &str, name: &str) {
        self.set_vmi(WatchedKind::VirtualMachines, namespace, name, true);
    }

    /// Removes a deleted VirtualMachine.
    pub fn remove_virtual_machine(&mut self, namespace: &str, name: &str) {
        self.set_vmi(WatchedKind::VirtualMachines, namespace, name, false);
    }

    /// Adds a VirtualMachineInstance. Unlike in upstream, an instance keeps the address without its
    /// VirtualMachine (KC-436).
    pub fn put_vmi(&mut self, namespace: &str, name: &str) {
        self.set_vmi(WatchedKind::Vmis, namespace, name, true);
    }

    /// Removes a deleted VirtualMachineInstance.
    pub fn remove_vmi(&mut self, namespace: &str, name: &str) {
        self.set_vmi(WatchedKind::Vmis, namespace, name, false);
    }

    /// Adds a Service of type LoadBalancer.
    pub fn put_service(&mut self, namespace: &str, name: &str) {
        let row = self.owner_row(OwnerKind::Service, namespace, name);
        self.set_state(row, WatchedKind::Services, OwnerState::Service);
    }

    /// Removes a Service that was deleted or changed its type.
    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        self.remove_owner(OwnerKind::Service, namespace, name);
    }

    fn remove_owner(&mut self, kind: OwnerKind, namespace: &str, name: &str) {
        if let Some(row) = self.find_owner(kind, namespace, name) {
            self.set_state(row, WatchedKind::Pods, OwnerState::Absent);
        }
    }

    fn set_vmi(&mut self, watched: WatchedKind, namespace: &str, name: &str, exists: bool) {
        if exists {
            let row = self.owner_row(OwnerKind::Vmi, namespace, name);
            self.listed_vmis.entry(watched).or_default().insert(row);
            self.set_vmi_row(row, watched, true);
        } else if let Some(row) = self.find_owner(OwnerKind::Vmi, namespace, name) {
            self.set_vmi_row(row, watched, false);
        }
    }

    fn set_vmi_row(&mut self, row: RowId, watched: WatchedKind, exists: bool) {
        let (mut has_vm, mut has_vmi) = match self.owners.get(row).map(|owner| &owner.state) {
            Some(OwnerState::Vmi { has_vm, has_vmi }) => (*has_vm, *has_vmi),
            _ => (false, false),
        };
        *(if watched == WatchedKind::VirtualMachines {
            &mut has_vm
        } else {
            &mut has_vmi
        }) = exists;
        if !exists && let Some(listed) = self.listed_vmis.get_mut(&watched) {
            listed.remove(&row);
        }
        let state = if has_vm || has_vmi {
            OwnerState::Vmi { has_vm, has_vmi }
        } else {
            OwnerState::Absent
        };
        self.set_state(row, watched, state);
    }

    fn set_state(&mut self, row: RowId, watched: WatchedKind, state: OwnerState) {
        let list = self.list(watched);
        let Some(owner) = self.owners.get_mut(row) else {
            return;
        };
        owner.list = list;
        if owner.state != state {
            let node = |state: &OwnerState| {
                if let OwnerState::Pod { node, .. } = state {
                    *node
                } else {
                    NONE
                }
            };
            let new = node(&state);
            let old_state = std::mem::replace(&mut owner.state, state);
            let old = node(&old_state);
            if let Some(node) = self.nodes.get_mut(new) {
                node.references += 1;
            }
            if let Some(node) = self.nodes.get_mut(old) {
                node.references -= 1;
                self.drop_unused_node(old);
            }
            self.mark_owner_dirty(row);
            if let OwnerState::Pod { .. } = old_state {
                self.mark_vmi_of_pod(row);
            }
            self.pod_changed(row);
        }
        self.drop_unused_owner(row);
    }

    pub(super) fn drop_unlisted_owners(&mut self, watched: WatchedKind) {
        let list = self.list(watched);
        if matches!(watched, WatchedKind::VirtualMachines | WatchedKind::Vmis) {
            let listed = self.listed_vmis.get(&watched).cloned().unwrap_or_default();
            let exists = |owner: &OwnerRow| match watched {
                WatchedKind::VirtualMachines => {
                    matches!(owner.state, OwnerState::Vmi { has_vm: true, .. })
                }
                _ => matches!(owner.state, OwnerState::Vmi { has_vmi: true, .. }),
            };
            let unlisted = self
                .owners
                .iter()
                .filter(|(row, owner)| exists(owner) && !listed.contains(row));
            let gone: Vec<RowId> = unlisted.map(|(row, _)| row).collect();
            gone.into_iter()
                .for_each(|row| self.set_vmi_row(row, watched, false));
            return;
        }
        let kind = if watched == WatchedKind::Pods {
            OwnerKind::Pod
        } else {
            OwnerKind::Service
        };
        let is_gone = |owner: &OwnerRow| {
            owner.kind == kind && owner.list != list && owner.state != OwnerState::Absent
        };
        let gone: Vec<RowId> = self
            .owners
            .iter()
            .filter(|(_, owner)| is_gone(owner))
            .map(|(row, _)| row)
            .collect();
        gone.into_iter()
            .for_each(|row| self.set_state(row, watched, OwnerState::Absent));
    }

    pub(in super::super) fn find_owner(
        &self,
        kind: OwnerKind,
        namespace: &str,
        name: &str,
    ) -> Option<RowId> {
        self.owners
            .find((kind, self.namespaces.find(namespace)?, name))
    }

    pub(super) fn owner_row(&mut self, kind: OwnerKind, namespace: &str, name: &str) -> RowId {
        if let Some(row) = self.find_owner(kind, namespace, name) {
            return row;
        }
        let namespace = self.namespaces.intern(namespace);
        let (name, state) = (name.into(), OwnerState::Absent);
        self.owners.insert(OwnerRow {
            kind,
            namespace,
            name,
            state,
            first_address: NONE,
            list: 0,
        })
    }

    pub(super) fn mark_owner_dirty(&mut self, owner: RowId) {
        let mut at = self
            .owners
            .get(owner)
            .map_or(NONE, |owner| owner.first_address);
        while let Some(next) = self.addresses.get(at).map(|tracked| tracked.next_of_owner) {
            self.mark_dirty(at);
            at = next;
        }
    }

    /// Marks the VMIs' addresses whose allocations name this pod, if it may be a launcher. A new
    /// pod cannot make an address a leak.
    fn mark_vmi_of_pod(&mut self, pod: RowId) {
        let Some(owner) = self
            .owners
            .get(pod)
            .filter(|owner| may_be_virt_launcher(&owner.name))
        else {
            return;
        };
        let (namespace, name) = (self.namespaces.text(owner.namespace), &*owner.name);
        let is_named = |owners: &OwnerPods| {
            owners
                .iter()
                .any(|(of, owner)| (&**of, &**owner) == (namespace, name))
        };
        let rows: Vec<_> = self
            .owner_pods
            .iter()
            .filter(|(_, owners)| is_named(owners))
            .map(|(row, _)| *row)
            .collect();
        rows.into_iter().for_each(|row| self.mark_dirty(row));
    }

    pub(super) fn drop_unused_owner(&mut self, row: RowId) {
        let is_unused =
            |owner: &&OwnerRow| owner.first_address == NONE && owner.state == OwnerState::Absent;
        if self.owners.get(row).filter(is_unused).is_some()
            && let Some(owner) = self.owners.remove(row)
        {
            self.namespaces.release(owner.namespace);
        }
    }
}
