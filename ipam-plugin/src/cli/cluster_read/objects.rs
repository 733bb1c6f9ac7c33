//! Reads the objects by their kinds, as an API server lists them.

use libcalico::api::{ClusterInformation, ObjectKey, ObjectSelect};
use libcalico::ipam::{AffinityOwner, AffinitySelect, BlockAffinity, LOAD_BALANCER_HOST, Lookup};
use libcalico::kubernetes::Pod;
use libcalico::store::{ReadBatch, Store, StoreError, WriteModel};

use super::{ClusterRead, audited_endpoint};

impl ClusterRead {
    /// The API server rejects objects that do not fit their definition, so no unreadable ones are reported.
    pub(super) async fn read_objects(store: &impl Store) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let information = batch.get::<ClusterInformation>(&ObjectKey::global("default"));
        let pools = batch.list(&ObjectSelect::default());
        let blocks = batch.list(&None);
        let handles = batch.list(&());
        let affinities = batch.list::<BlockAffinity>(&AffinitySelect::default());
        let of_services =
            batch.list::<BlockAffinity>(&AffinitySelect::of(AffinityOwner::Virtual(LOAD_BALANCER_HOST.into())));
        // Versions before the labels wrote affinities that a list by owner does not contain (DS-70).
        let unlabeled = (store.write_model() == WriteModel::PerObject)
            .then(|| batch.list::<BlockAffinity>(&AffinitySelect::without_labels()));
        let endpoints = batch.list(&ObjectSelect::default());
        // This takes no further request, because endpoints are derived from the same response.
        let pods = batch.list::<Pod>(&ObjectSelect::default());
        let answers = store.read(&batch).await?;
        let mut affinities = [answers.list(&affinities), answers.list(&of_services)].concat();
        let unlabeled = unlabeled.iter().flat_map(|ticket| answers.list(ticket));
        // The list of all hosts' affinities contains those without labels.
        affinities.extend(unlabeled.filter(|affinity| matches!(affinity.key.owner, AffinityOwner::Virtual(_))));
        Ok(ClusterRead {
            information: answers.get(&information)?,
            pools: answers.list(&pools),
            blocks: answers.list(&blocks),
            handles: answers.list(&handles),
            affinities,
            endpoints: answers.list(&endpoints).iter().map(|entry| audited_endpoint(&entry.value)).collect(),
            pods: answers
                .each(&pods)
                .map(|(key, pod)| (key, pod.map_or(Lookup::Unknown, |pod| Lookup::Present(pod.value))))
                .collect(),
            ..ClusterRead::default()
        })
    }
}
