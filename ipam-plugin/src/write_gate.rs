//! `GatedStore`: a store that asks a [`WriteGate`] before each write.

use std::sync::atomic::{AtomicBool, Ordering};

use libcalico::store::{
    Answers, EndpointForm, ProfileOrigin, ReadBatch, Revision, Sharing, Store, StoreError, Write,
    WriteError, WriteModel,
};

/// A gate that each write has to pass.
pub trait WriteGate: Sync {
    /// Waits until this number of writes may be sent, and returns true, or returns `false` if they
    /// may not be sent at all.
    fn admit(&self, writes: usize) -> impl Future<Output = bool> + Send;
}

/// Sends a write through the gate. Returns `None` if the gate refuses it.
pub(crate) async fn write_admitted<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    write: Write,
) -> Option<Result<Revision, StoreError>> {
    if gate.admit(1).await {
        Some(store.write_one(write).await)
    } else {
        None
    }
}

/// A gate that admits every write.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenGate;

impl WriteGate for OpenGate {
    async fn admit(&self, _writes: usize) -> bool {
        true
    }
}

/// A store whose every write, retries included, has to pass the gate.
pub(crate) struct GatedStore<'a, S, G> {
    store: &'a S,
    gate: &'a G,
    refused: AtomicBool,
}

impl<'a, S: Store, G: WriteGate> GatedStore<'a, S, G> {
    pub(crate) fn new(store: &'a S, gate: &'a G) -> Self {
        GatedStore {
            store,
            gate,
            refused: AtomicBool::new(false),
        }
    }

    pub(crate) fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    async fn send(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        if self.gate.admit(writes.len()).await {
            return self.store.write(writes).await;
        }
        self.refused.store(true, Ordering::Relaxed);
        // The error equals that of an unreachable store: the writer stops, and no write has an
        // unknown outcome.
        let reason = "writes are no longer allowed".to_owned();
        let cause = StoreError::Unavailable {
            datastore: "for writes".into(),
            reason,
            outcome_unknown: false,
        };
        Err(WriteError {
            index: 0,
            applied: 0,
            cause,
        })
    }
}

impl<S: Store, G: WriteGate> Store for GatedStore<'_, S, G> {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        self.store.read(batch).await
    }

    fn write_model(&self) -> WriteModel {
        self.store.write_model()
    }

    fn endpoint_form(&self) -> EndpointForm {
        self.store.endpoint_form()
    }

    fn profile_origin(&self) -> ProfileOrigin {
        self.store.profile_origin()
    }

    fn sharing(&self) -> Sharing {
        self.store.sharing()
    }

    fn has_given_up(&self) -> bool {
        self.store.has_given_up()
    }

    /// Without transactions, each write passes the gate separately.
    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        if self.store.write_model() == WriteModel::Transactional {
            return self.send(writes).await;
        }
        let mut revisions = Vec::with_capacity(writes.len());
        for (index, write) in writes.iter().enumerate() {
            let sent = self.send(std::slice::from_ref(write)).await;
            revisions.extend(sent.map_err(|error| WriteError {
                index,
                applied: index,
                ..error
            })?);
        }
        Ok(revisions)
    }
}
