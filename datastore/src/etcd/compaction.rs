//! Compaction, as the Kubernetes API server does it (KC-160): who of many compacts is decided by a compare-and-swap,
//! and what was written within the last round stays readable.

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use libcalico::store::StoreError;
use tokio::time::{Instant, timeout_at};

use super::Etcd;
use super::connection::MAX_ANSWER;
use super::error::Failure;
use super::txn;

/// Its version counts the rounds of all who compact.
const KEY: &str = "compact_rev_key";

/// One who compacts, between two rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compaction {
    /// How many rounds there have been.
    round: i64,
    /// The store's revision at that time; 0 before.
    revision: i64,
}

/// What a round came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// The first one of this process, which only looks.
    First,
    /// Another process had it.
    Anothers,
    /// What is older than this revision is gone.
    Compacted(i64),
}

impl Compaction {
    /// Compacts to where the store was at the last round, if nobody else has since. Call it once in each period.
    pub async fn round(&mut self, etcd: &Etcd) -> Result<Round, StoreError> {
        let version = Compare::version(KEY, CompareOp::Equal, self.round);
        let claim = Txn::new()
            .when([version])
            .and_then([TxnOp::put(KEY, self.revision.to_string(), None)])
            .or_else([TxnOp::get(KEY, None)]);
        let response = etcd.transact(claim, super::Purpose::Write).await?;
        let (round, revision) = (self.round, self.revision);
        self.revision = txn::revision(&response)?;
        if !response.succeeded() {
            self.round = version_of(response.op_responses());
            return Ok(Round::Anothers);
        }
        self.round = round + 1;
        if revision == 0 {
            return Ok(Round::First);
        }
        etcd.compact(revision).await?;
        Ok(Round::Compacted(revision))
    }
}

/// 0 where there is none, as the condition has it.
fn version_of(found: Vec<TxnOpResponse>) -> i64 {
    let version = |operation: TxnOpResponse| match operation {
        TxnOpResponse::Get(found) => found.kvs().first().map(etcd_client::KeyValue::version),
        _ => None,
    };
    found.into_iter().find_map(version).unwrap_or_default()
}

impl Etcd {
    /// That somebody has compacted further is as well.
    async fn compact(&self, revision: i64) -> Result<(), StoreError> {
        let deadline = self.deadline.until(Instant::now());
        let client = self.connection.get(deadline).await?;
        let mut client = client.kv_client().max_decoding_message_size(MAX_ANSWER);
        let failure = match timeout_at(deadline, client.compact(revision, None)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => Failure::from(error),
            Err(_) => Failure::Timeout(self.deadline.length()),
        };
        if matches!(&failure, Failure::Status(status) if status.message().contains("has been compacted")) {
            return Ok(());
        }
        let answered = !failure.breaks_connection() || self.connection.discard().await;
        Err(self.connection.explain(&failure, true, answered))
    }
}
