//! Reads the objects by their kinds, as an API server lists them.

use libcalico::api::{ClusterInformation, ObjectKey, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{
    AffinityOwner, AffinitySelect, Block, BlockAffinity, Handle, Lookup, PackedEndpoint,
    PackedHandle,
};
use libcalico::kubernetes::Pod;
use libcalico::store::{Answers, Entry, Kind, ListTicket, ReadBatch, Store, StoreError};

use super::pairs::insert_if_kind;
use super::{ClusterRead, UnreadableObject, audited_endpoint};
use allocation::affinity::may_lack_labels;

impl ClusterRead {
    /// The definitions on an API server allow invalid values, such as a block's `cidr` of any text.
    /// An unreadable pod is [`Lookup::Unknown`].
    pub(super) async fn read_objects(store: &impl Store) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let information = batch.get::<ClusterInformation>(&ObjectKey::global("default"));
        let pools = batch.list(&ObjectSelect::default());
        let blocks = batch.list(&None);
        let handles = batch.list(&());
        let affinities = batch.list::<BlockAffinity>(&AffinitySelect::default());
        let of_services =
            batch.list::<BlockAffinity>(&AffinitySelect::of(AffinityOwner::of_services()));
        // Versions before the labels wrote affinities that a list by owner does not contain
        // (DS-70).
        let unlabeled = may_lack_labels(store)
            .then(|| batch.list::<BlockAffinity>(&AffinitySelect::without_labels()));
        let endpoints = batch.list(&ObjectSelect::default());
        // This takes no further request, because endpoints are derived from the same response.
        let pods = batch.list::<Pod>(&ObjectSelect::default());
        let answers = store.read(&batch).await?;
        let mut unreadable = Vec::new();
        let mut affinities = readable(&answers, &affinities, &mut unreadable);
        affinities.extend(readable(&answers, &of_services, &mut unreadable));
        if let Some(unlabeled) = &unlabeled {
            // The list of all hosts' affinities contains those without labels.
            let unlabeled = readable(&answers, unlabeled, &mut unreadable).into_iter();
            affinities.extend(
                unlabeled
                    .filter(|affinity| matches!(affinity.key.owner, AffinityOwner::Virtual(_))),
            );
        }
        let pools = readable(&answers, &pools, &mut unreadable);
        let mut cluster = ClusterRead::default();
        for_each_readable::<Block>(&answers, &blocks, &mut unreadable, |entry| {
            cluster.add_block(entry)
        });
        let keep = |entry: Entry<Handle>| cluster.handles.push(PackedHandle::of(&entry));
        for_each_readable(&answers, &handles, &mut unreadable, keep);
        // Several lists of affinities contain the same object.
        unreadable.sort_by(|a, b| a.key.cmp(&b.key));
        unreadable.dedup();
        let packed =
            |entry: Entry<WorkloadEndpoint>| PackedEndpoint::of(&audited_endpoint(&entry.value));
        Ok(ClusterRead {
            information: answers.get(&information)?,
            pools,
            affinities,
            unreadable,
            endpoints: answers
                .each(&endpoints)
                .filter_map(|(_, endpoint)| endpoint.ok())
                .map(packed)
                .collect(),
            pods: answers
                .each(&pods)
                .map(|(key, pod)| {
                    (
                        key,
                        pod.map_or(Lookup::Unknown, |pod| Lookup::Present(pod.value)),
                    )
                })
                .collect(),
            ..cluster
        })
    }
}

/// Returns the objects of a list that can be decoded, and adds the others to `unreadable`.
fn readable<K: Kind>(
    answers: &Answers,
    list: &ListTicket<K>,
    unreadable: &mut Vec<UnreadableObject>,
) -> Vec<Entry<K>> {
    let mut objects = Vec::new();
    for_each_readable(answers, list, unreadable, |object| objects.push(object));
    objects
}

/// Passes the objects of [`readable`] to `on_object`, each before the next one is decoded.
fn for_each_readable<K: Kind>(
    answers: &Answers,
    list: &ListTicket<K>,
    unreadable: &mut Vec<UnreadableObject>,
    mut on_object: impl FnMut(Entry<K>),
) {
    for pair in answers.raw_entries(list) {
        let mut decoded = Vec::new();
        insert_if_kind(pair, &mut decoded, unreadable);
        decoded.into_iter().for_each(&mut on_object);
    }
}
