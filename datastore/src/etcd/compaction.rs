//! Compacts etcd with the algorithm of the Kubernetes API server (KC-160). A compare-and-swap
//! elects one of several processes, and revisions that are younger than one period stay readable.

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp, TxnOpResponse};
use libcalico::store::StoreError;
use tokio::time::Instant;

use super::connection::MAX_RESPONSE_BYTES;
use super::error::{EtcdFailure, await_response};
use super::store::Etcd;
use super::txn::{self, RequestKind};

/// The key whose version counts the rounds of all processes.
const KEY: &str = "compact_rev_key";

/// The state of one compacting process between two rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compaction {
    /// The number of rounds of all processes, as far as this process knows.
    round: i64,
    /// The store's revision when this process last tried a round; 0 before the first try.
    revision: i64,
}

/// The outcome of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// The first round on this etcd. There is no earlier revision to compact to, so nothing was
    /// compacted.
    First,
    /// Another process did the round, or this process did not know the number of rounds, for
    /// example at its first call.
    ByAnotherProcess,
    /// This process did the round. The store is compacted to this revision or a later one.
    Compacted(i64),
}

impl Compaction {
    /// Compacts to the store's revision at the last call, unless another process has done a round
    /// since. Call this once per period.
    pub async fn round(&mut self, etcd: &Etcd) -> Result<Round, StoreError> {
        let version = Compare::version(KEY, CompareOp::Equal, self.round);
        let election = Txn::new()
            .when([version])
            .and_then([TxnOp::put(KEY, self.revision.to_string(), None)])
            .or_else([TxnOp::get(KEY, None)]);
        let response = etcd.transact(election, RequestKind::Write).await?;
        let (round, revision) = (self.round, self.revision);
        self.revision = txn::revision(&response, RequestKind::Write)?;
        if !response.succeeded() {
            self.round = match response.op_responses().first() {
                Some(TxnOpResponse::Get(counter)) => {
                    counter.kvs().first().map_or(0, KeyValue::version)
                }
                _ => 0,
            };
            return Ok(Round::ByAnotherProcess);
        }
        self.round = round + 1;
        if revision == 0 {
            return Ok(Round::First);
        }
        etcd.compact(revision).await?;
        Ok(Round::Compacted(revision))
    }
}

impl Etcd {
    /// Also succeeds if `revision` has already been compacted.
    async fn compact(&self, revision: i64) -> Result<(), StoreError> {
        let deadline = self.deadline.expiry(Instant::now());
        let (client, login) = self.connection.get(deadline).await?;
        let mut client = client
            .kv_client()
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        match await_response(
            deadline,
            self.deadline.limit(),
            client.compact(revision, None),
        )
        .await
        {
            Ok(_) => Ok(()),
            Err(EtcdFailure::Status(status)) if status.message().contains("has been compacted") => {
                Ok(())
            }
            Err(failure) => Err(self.connection.handle_failure(&failure, true, login).await),
        }
    }
}
