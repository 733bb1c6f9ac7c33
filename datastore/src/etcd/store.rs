//! [`Etcd`]: an etcd cluster as a [`Store`].

use std::sync::atomic::{AtomicU64, Ordering};

use etcd_client::{Txn, TxnResponse};
use libcalico::ipam::ListedBlock;
use libcalico::store::{
    Answers, EndpointForm, Kind, ProfileOrigin, Range, RawEntry, ReadBatch, Revision, Sharing,
    Store, StoreError, Survey, Write, WriteError, WriteModel, listed_block,
};
use tokio::time::Instant;

use super::connection::{Connection, MAX_RESPONSE_BYTES};
use super::error::{alarm_of_status, await_response};
use super::txn::{self, RequestKind};
use super::watch::EtcdSource;
use crate::config::{ConfigError, EtcdConfig};
use crate::deadline::Deadline;
use crate::pairs::write_in_transaction;
use crate::watch::PageSize;

/// An etcd cluster as a datastore.
#[derive(Debug)]
pub struct Etcd {
    pub(super) connection: Connection,
    pub(crate) deadline: Deadline,
    requests: AtomicU64,
}

impl Etcd {
    /// Creates a client. Reads certificates and keys, but sends no request.
    pub fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        let (connection, deadline) = (Connection::new(config)?, Deadline::new(config.deadline));
        Ok(Etcd {
            connection,
            deadline,
            requests: AtomicU64::new(0),
        })
    }

    /// Returns the number of transactions, authentications and reads of the status sent so far,
    /// without those of watches.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
            + self.connection.authentications.load(Ordering::Relaxed)
    }

    /// Returns the source of a watch. It has its own connection, so the watch neither delays nor
    /// breaks other requests.
    pub fn source<K: Kind>(&self, select: &K::Select) -> EtcdSource<K> {
        EtcdSource::new(
            self.connection.for_watches(),
            self.deadline.limit(),
            K::prefix(select),
        )
    }

    /// Returns the error with which etcd refuses writes because of an alarm; `None` without an
    /// alarm, or if the status of the member cannot be read. etcd requires no permission for the
    /// status.
    pub(crate) async fn find_alarm(&self) -> Option<StoreError> {
        let (now, limit) = (Instant::now(), self.deadline.limit());
        let deadline = self.deadline.expiry(now);
        let (client, _) = self.connection.get(deadline).await.ok()?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        match await_response(deadline, limit, client.maintenance_client().status()).await {
            Ok(status) => {
                let datastore = self.connection.datastore();
                status
                    .errors()
                    .iter()
                    .find_map(|problem| alarm_of_status(&datastore, problem))
            }
            Err(failure) => {
                tracing::debug!(
                    ?failure,
                    "cannot read the status of etcd, so its alarms are unknown"
                );
                None
            }
        }
    }

    /// Reads ranges in parts. Later parts are read at the revision of the first, so that all ranges
    /// come from one snapshot.
    pub(crate) async fn read_ranges(
        &self,
        ranges: &[Range],
    ) -> Result<Vec<Vec<RawEntry>>, StoreError> {
        let mut answers = Vec::with_capacity(ranges.len());
        let mut snapshot = None;
        for part in ranges.chunks(txn::MAX_OPS) {
            let response = self
                .transact(txn::read_ranges(part, snapshot), RequestKind::Read)
                .await?;
            snapshot.get_or_insert(txn::revision(&response, RequestKind::Read)?);
            answers.extend(txn::decode_ranges(&response)?);
        }
        Ok(answers)
    }

    /// Sends one transaction within the deadline. A read may be repeated at another endpoint, a
    /// write only if it cannot have been sent. Either is repeated once after another login, because
    /// etcd has not applied it then.
    pub(super) async fn transact(
        &self,
        transaction: Txn,
        kind: RequestKind,
    ) -> Result<TxnResponse, StoreError> {
        let deadline = self.deadline.expiry(Instant::now());
        let mut attempts = self.connection.endpoint_count();
        let mut may_log_in_again = self.connection.has_credentials();
        while attempts > 0 {
            let (client, login) = self.connection.get(deadline).await?;
            let mut client = client
                .kv_client()
                .max_decoding_message_size(MAX_RESPONSE_BYTES);
            let remaining = deadline.saturating_duration_since(Instant::now());
            let time_limit = if kind == RequestKind::Read {
                remaining / attempts as u32
            } else {
                remaining
            };
            self.requests.fetch_add(1, Ordering::Relaxed);
            let answer = await_response(
                Instant::now() + time_limit,
                time_limit,
                client.txn(transaction.clone()),
            )
            .await;
            let failure = match answer {
                Ok(response) => {
                    self.deadline.record_response();
                    self.connection.record_response().await;
                    return Ok(response);
                }
                Err(failure) => failure,
            };
            if !failure.breaks_connection() {
                self.deadline.record_response();
            }
            let error = self
                .connection
                .handle_failure(&failure, kind == RequestKind::Write, login)
                .await;
            if failure.token_refusal().is_some() && std::mem::take(&mut may_log_in_again) {
                continue;
            }
            let is_repeatable = kind == RequestKind::Read && failure.breaks_connection();
            if attempts == 1 || !(failure.was_not_sent() || is_repeatable) {
                return Err(error);
            }
            attempts -= 1;
        }
        Err(StoreError::Other("no etcd endpoints specified".into()))
    }
}

impl Store for Etcd {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        self.read_ranges(batch.ranges()).await.map(Answers::new)
    }

    async fn survey(
        &self,
        survey: &Survey,
        on_block: &mut (dyn FnMut(ListedBlock) + Send),
    ) -> Result<(), StoreError> {
        for range in survey.ranges() {
            let (mut size, mut after) = (PageSize::default(), None::<Vec<u8>>);
            // The pages are not one snapshot, so etcd need not keep old revisions for this survey.
            loop {
                let page = txn::read_page(&range, after.as_deref(), size.get());
                let (pairs, has_more) =
                    txn::page_pairs(&self.transact(page, RequestKind::Read).await?)?;
                size.adjust(pairs.len(), txn::byte_size(&pairs));
                let blocks = pairs
                    .iter()
                    .filter_map(|kv| listed_block(str::from_utf8(kv.key()).ok()?, kv.value()));
                blocks.for_each(&mut *on_block);
                match pairs.last() {
                    Some(last) if has_more => after = Some(last.key().to_vec()),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    fn write_model(&self) -> WriteModel {
        WriteModel::Transactional
    }

    fn endpoint_form(&self) -> EndpointForm {
        EndpointForm::Object
    }

    fn profile_origin(&self) -> ProfileOrigin {
        ProfileOrigin::Stored
    }

    fn sharing(&self) -> Sharing {
        Sharing::Cluster
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        let transaction = async {
            let failed = |cause| WriteError {
                index: 0,
                applied: 0,
                cause,
            };
            let response = self
                .transact(txn::apply_writes(writes)?, RequestKind::Write)
                .await
                .map_err(failed)?;
            if !response.succeeded() {
                return Err(txn::failed_transaction_error(writes, &response));
            }
            txn::revision(&response, RequestKind::Write).map_err(failed)
        };
        write_in_transaction(writes, transaction).await
    }
}
