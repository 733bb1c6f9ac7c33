//! Changes of pods, VMIs and Services. A change marks the object's addresses for examination.

use super::super::rows::{Subject, SubjectState};
use super::super::table::{NONE, Row};
use super::{Feed, Index, Owners};
use crate::ipam::{ClaimKind, PodState};
use crate::kubernetes::may_be_machine;

impl Index {
    /// Adds or updates a pod.
    pub fn put_pod(&mut self, namespace: &str, name: &str, facts: &PodState<'_>) {
        let row = self.subject_row(ClaimKind::Pod, namespace, name);
        let node = if facts.node.is_empty() { NONE } else { self.node_row(facts.node) };
        let PodState { addresses, ended, runs, .. } = facts.clone();
        let state = SubjectState::Pod { node, addresses, ended, runs };
        self.set_state(row, Feed::Pods, state);
    }

    /// Removes a deleted pod.
    pub fn pod_gone(&mut self, namespace: &str, name: &str) {
        self.subject_gone(ClaimKind::Pod, namespace, name);
    }

    /// Adds a VirtualMachine.
    pub fn put_machine(&mut self, namespace: &str, name: &str) {
        self.set_machine(Feed::Machines, namespace, name, true);
    }

    /// Removes a deleted VirtualMachine.
    pub fn machine_gone(&mut self, namespace: &str, name: &str) {
        self.set_machine(Feed::Machines, namespace, name, false);
    }

    /// Adds a VirtualMachineInstance. An instance may outlive the VirtualMachine that owns it and then keeps the
    /// address; upstream ignores such an instance (KC-436).
    pub fn put_instance(&mut self, namespace: &str, name: &str) {
        self.set_machine(Feed::Instances, namespace, name, true);
    }

    /// Removes a deleted VirtualMachineInstance.
    pub fn instance_gone(&mut self, namespace: &str, name: &str) {
        self.set_machine(Feed::Instances, namespace, name, false);
    }

    /// Adds a Service of type LoadBalancer.
    pub fn put_service(&mut self, namespace: &str, name: &str) {
        let row = self.subject_row(ClaimKind::Service, namespace, name);
        self.set_state(row, Feed::Services, SubjectState::Service);
    }

    /// Removes a Service that was deleted or changed its type.
    pub fn service_gone(&mut self, namespace: &str, name: &str) {
        self.subject_gone(ClaimKind::Service, namespace, name);
    }

    fn subject_gone(&mut self, kind: ClaimKind, namespace: &str, name: &str) {
        if let Some(row) = self.find_subject(kind, namespace, name) {
            self.set_state(row, Feed::Pods, SubjectState::Absent);
        }
    }

    fn set_machine(&mut self, feed: Feed, namespace: &str, name: &str, there: bool) {
        let row = match self.find_subject(ClaimKind::Machine, namespace, name) {
            Some(row) => row,
            None if !there => return,
            None => self.subject_row(ClaimKind::Machine, namespace, name),
        };
        if there {
            self.named.entry(feed).or_default().insert(row);
        }
        self.set_machine_row(row, feed, there);
    }

    fn set_machine_row(&mut self, row: Row, feed: Feed, there: bool) {
        let (mut machine, mut instance) = match self.subjects.get(row).map(|subject| &subject.state) {
            Some(SubjectState::Machine { machine, instance }) => (*machine, *instance),
            _ => (false, false),
        };
        *(if feed == Feed::Machines { &mut machine } else { &mut instance }) = there;
        if !there && let Some(named) = self.named.get_mut(&feed) {
            named.remove(&row);
        }
        let state =
            if machine || instance { SubjectState::Machine { machine, instance } } else { SubjectState::Absent };
        self.set_state(row, feed, state);
    }

    /// Replaces the state of an owner. If the state is unchanged, no address is marked.
    fn set_state(&mut self, row: Row, feed: Feed, state: SubjectState) {
        let list = self.list(feed);
        let Some(subject) = self.subjects.get_mut(row) else { return };
        subject.list = list;
        if subject.state != state {
            let node = |state: &SubjectState| if let SubjectState::Pod { node, .. } = state { *node } else { NONE };
            let new = node(&state);
            let old_state = std::mem::replace(&mut subject.state, state);
            let old = node(&old_state);
            if let Some(node) = self.nodes.get_mut(new) {
                node.references += 1;
            }
            if let Some(node) = self.nodes.get_mut(old) {
                node.references -= 1;
                self.drop_unused_node(old);
            }
            self.mark_subject(row);
            if let SubjectState::Pod { .. } = old_state {
                self.mark_machine_of(row);
            }
            self.pod_changed(row);
        }
        self.drop_unused_subject(row);
    }

    pub(super) fn drop_unlisted_subjects(&mut self, feed: Feed) {
        let list = self.list(feed);
        if matches!(feed, Feed::Machines | Feed::Instances) {
            let named = self.named.get(&feed).cloned().unwrap_or_default();
            let unnamed = |row: &Row, subject: &Subject| match subject.state {
                SubjectState::Machine { machine, instance } => {
                    (if feed == Feed::Machines { machine } else { instance }) && !named.contains(row)
                }
                _ => false,
            };
            let gone: Vec<Row> =
                self.subjects.iter().filter(|(row, subject)| unnamed(row, subject)).map(|(row, _)| row).collect();
            gone.into_iter().for_each(|row| self.set_machine_row(row, feed, false));
            return;
        }
        let kind = if feed == Feed::Pods { ClaimKind::Pod } else { ClaimKind::Service };
        let gone =
            |subject: &Subject| subject.kind == kind && subject.list != list && subject.state != SubjectState::Absent;
        let gone: Vec<Row> = self.subjects.iter().filter(|(_, subject)| gone(subject)).map(|(row, _)| row).collect();
        gone.into_iter().for_each(|row| self.set_state(row, feed, SubjectState::Absent));
    }

    pub(in super::super) fn find_subject(&self, kind: ClaimKind, namespace: &str, name: &str) -> Option<Row> {
        self.subjects.find((kind, self.namespaces.find(namespace)?, name))
    }

    /// Returns the row of an owner, and creates it if it is missing.
    pub(super) fn subject_row(&mut self, kind: ClaimKind, namespace: &str, name: &str) -> Row {
        if let Some(row) = self.find_subject(kind, namespace, name) {
            return row;
        }
        let namespace = self.namespaces.take(namespace);
        let (name, state) = (name.into(), SubjectState::Absent);
        self.subjects.insert(Subject { kind, namespace, name, state, tracked: NONE, list: 0 })
    }

    /// Marks every address of an owner.
    pub(super) fn mark_subject(&mut self, subject: Row) {
        let mut at = self.subjects.get(subject).map_or(NONE, |subject| subject.tracked);
        while let Some(next) = self.tracked.get(at).map(|tracked| tracked.subject_next) {
            self.mark(at);
            at = next;
        }
    }

    /// Marks the VMIs' addresses whose allocations name a pod that changed or was deleted. A new pod is not handled,
    /// because it cannot make an address a leak.
    fn mark_machine_of(&mut self, pod: Row) {
        let Some(subject) = self.subjects.get(pod).filter(|subject| may_be_machine(&subject.name)) else { return };
        let (namespace, name) = (self.namespaces.text(subject.namespace), &*subject.name);
        let is_named = |owners: &Owners| owners.iter().any(|(of, owner)| (&**of, &**owner) == (namespace, name));
        let rows: Vec<Row> = self.owners.iter().filter(|(_, owners)| is_named(owners)).map(|(row, _)| *row).collect();
        rows.into_iter().for_each(|row| self.mark(row));
    }

    /// Removes an owner that neither exists nor has an address.
    pub(super) fn drop_unused_subject(&mut self, row: Row) {
        let unused = |subject: &&Subject| subject.tracked == NONE && subject.state == SubjectState::Absent;
        if self.subjects.get(row).filter(unused).is_some()
            && let Some(subject) = self.subjects.remove(row)
        {
            self.namespaces.give_back(subject.namespace);
        }
    }
}
