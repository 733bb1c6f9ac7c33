//! [`CallBatch`]: the objects that a call reads at the same time.

use futures::future::join;
use ipam_plugin::kubernetes_api::KubernetesApi;
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::store::{Answers, GetTicket, ReadBatch, Store, StoreError};

use crate::context::Context;
use crate::pod_lookup::{PendingPodLookup, PodLookup, PodLookupError};
use crate::world::World;

/// The reads of a call: from the datastore, and at the same time from a separate API server. The
/// ClusterInformation is one of them.
pub(super) struct CallBatch<'c, W: World> {
    cx: &'c Context<W>,
    /// The reads from the datastore.
    pub(super) datastore: ReadBatch,
    separate: ReadBatch,
    cluster: GetTicket<ClusterInformation>,
}

/// The answers to a [`CallBatch`].
pub(super) struct CallAnswers<'c, W: World> {
    cx: &'c Context<W>,
    /// The answers of the datastore.
    pub(super) datastore: Answers,
    /// The answers of a separate API server; `None` without one.
    separate: Option<Result<Answers, StoreError>>,
    cluster: GetTicket<ClusterInformation>,
}

impl<'c, W: World> CallBatch<'c, W> {
    pub(super) fn new(cx: &'c Context<W>) -> Self {
        let mut datastore = ReadBatch::new();
        let cluster = datastore.get(&ObjectKey::global("default"));
        CallBatch {
            cx,
            datastore,
            separate: ReadBatch::new(),
            cluster,
        }
    }

    /// Adds the lookup of the call's pod, as far as the call needs it.
    pub(super) fn add_pod_lookup(&mut self) -> PendingPodLookup {
        let cx = self.cx;
        let batch = match &cx.api {
            KubernetesApi::Unused => return PendingPodLookup::default(),
            KubernetesApi::Datastore => &mut self.datastore,
            KubernetesApi::Separate(_) => &mut self.separate,
        };
        PendingPodLookup::add_to(batch, &cx.call, &cx.datastore_config, &cx.workload.node)
    }

    pub(super) async fn read(self) -> Result<CallAnswers<'c, W>, StoreError> {
        let store = &self.cx.store;
        let (answers, ()) = self
            .read_by(async |batch| (store.read(batch).await, ()))
            .await;
        answers
    }

    /// Reads the objects of the datastore with `read`, which also returns something else.
    pub(super) async fn read_by<T>(
        self,
        read: impl AsyncFnOnce(&ReadBatch) -> (Result<Answers, StoreError>, T),
    ) -> (Result<CallAnswers<'c, W>, StoreError>, T) {
        let CallBatch {
            cx,
            datastore,
            separate,
            cluster,
        } = self;
        let separate = cx.api.read_separate(&separate);
        let ((answers, other), separate) = join(read(&datastore), separate).await;
        let answers = answers.map(|datastore| CallAnswers {
            cx,
            datastore,
            separate,
            cluster,
        });
        (answers, other)
    }
}

impl<W: World> CallAnswers<'_, W> {
    pub(super) fn cluster_information(&self) -> Result<Option<ClusterInformation>, StoreError> {
        Ok(self.datastore.get(&self.cluster)?.map(|entry| entry.value))
    }

    pub(super) fn pod_lookup(
        &self,
        pending: &PendingPodLookup,
    ) -> Result<PodLookup, PodLookupError> {
        let answers = match &self.separate {
            None => Ok(&self.datastore),
            Some(separate) => separate.as_ref().map_err(Clone::clone),
        };
        pending.resolve(&self.cx.call, answers)
    }
}
