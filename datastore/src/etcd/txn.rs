//! Converts requests and responses to and from etcd transactions.

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, ResponseHeader, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use libcalico::store::{Range, RawEntry, Revision, StoreError, Write, WriteError, WriteOp};

use super::error::foreign;
use crate::pairs::end_of_prefix;

/// etcd's default limit of comparisons or operations in one transaction (`--max-txn-ops`).
pub(super) const MAX_OPS: usize = 128;

/// The kind of a request. Only reads can safely be sent twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Read,
    Write,
}

// === reads ===

pub(super) fn read_ranges(ranges: &[Range], revision: Option<i64>) -> Txn {
    let operations: Vec<TxnOp> = ranges.iter().map(|range| get(range, revision)).collect();
    Txn::new().and_then(operations)
}

fn get(range: &Range, revision: Option<i64>) -> TxnOp {
    let mut options = GetOptions::new();
    if range.is_prefix {
        options = options
            .with_prefix()
            .with_sort(SortTarget::Key, SortOrder::Ascend);
    }
    if range.keys_only {
        options = options.with_keys_only();
    }
    if let Some(revision) = revision {
        options = options.with_revision(revision);
    }
    TxnOp::get(range.path.as_bytes(), Some(options))
}

/// Returns a transaction that reads at most `limit` pairs of the prefix `range`, in path order,
/// after the path `after` if it is given.
pub(super) fn read_page(range: &Range, after: Option<&[u8]>, limit: usize) -> Txn {
    let (begin, mut options) = page_range(&range.path, after, limit);
    if range.keys_only {
        options = options.with_keys_only();
    }
    Txn::new().and_then([TxnOp::get(begin, Some(options))])
}

/// Returns the first key and the options of a read of one page.
pub(super) fn page_range(
    prefix: &str,
    after: Option<&[u8]>,
    limit: usize,
) -> (Vec<u8>, GetOptions) {
    let begin = after.map_or_else(
        || prefix.as_bytes().to_vec(),
        |after| [after, &[0]].concat(),
    );
    (
        begin,
        GetOptions::new()
            .with_range(range_end(prefix))
            .with_limit(limit as i64),
    )
}

/// Returns the first path that sorts after all paths with `prefix`, or a zero byte, etcd's end of
/// all keys.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    end_of_prefix(prefix).map_or_else(|| vec![0], String::into_bytes)
}

pub(super) fn byte_size(pairs: &[KeyValue]) -> usize {
    pairs
        .iter()
        .map(|pair| pair.key().len() + pair.value().len())
        .sum()
}

/// Returns the pairs of a page, and true if more pages follow.
pub(super) fn page_pairs(response: &TxnResponse) -> Result<(Vec<KeyValue>, bool), StoreError> {
    match response.op_responses().into_iter().next() {
        Some(TxnOpResponse::Get(mut page)) => Ok((page.take_kvs(), page.more())),
        _ => Err(unexpected_response(
            "the response to a range is that of another operation",
            false,
        )),
    }
}

/// A path that is not UTF-8 is not Calico's and is omitted.
pub(super) fn decode_ranges(response: &TxnResponse) -> Result<Vec<Vec<RawEntry>>, StoreError> {
    let entries = |operation: TxnOpResponse| match operation {
        TxnOpResponse::Get(mut range) => {
            Ok(range.take_kvs().into_iter().filter_map(raw_entry).collect())
        }
        _ => Err(unexpected_response(
            "the response to a range is that of another operation",
            false,
        )),
    };
    response.op_responses().into_iter().map(entries).collect()
}

pub(super) fn raw_entry(pair: KeyValue) -> Option<RawEntry> {
    let revision = Revision(pair.mod_revision().to_string());
    let (key, value) = pair.into_key_value();
    Some(RawEntry {
        path: String::from_utf8(key).ok()?,
        value: value.into(),
        revision,
    })
}

/// Returns the store's revision at the time of the response to a request of this kind. For writes
/// that were applied, this is the revision that they created.
pub(super) fn revision(response: &TxnResponse, kind: RequestKind) -> Result<i64, StoreError> {
    response
        .header()
        .map(ResponseHeader::revision)
        .ok_or_else(|| missing_header(kind))
}

/// A read has no outcome.
fn missing_header(kind: RequestKind) -> StoreError {
    unexpected_response("the header is missing", kind == RequestKind::Write)
}

/// Returns the error for a response that etcd would not send. `outcome_unknown` is true for the
/// response to writes.
fn unexpected_response(problem: &str, outcome_unknown: bool) -> StoreError {
    StoreError::ForeignAnswer {
        datastore: "etcd".into(),
        reason: foreign(problem),
        outcome_unknown,
    }
}

// === writes ===

/// Returns a transaction that applies all writes if all conditions hold, and otherwise reads the
/// revisions of the stored keys.
pub(super) fn apply_writes(writes: &[Write]) -> Result<Txn, WriteError> {
    let count = writes.len();
    if count > MAX_OPS {
        let text = format!(
            "{count} writes in one transaction, but etcd allows only {MAX_OPS}; split the \
             transaction"
        );
        return Err(WriteError {
            index: MAX_OPS,
            applied: 0,
            cause: StoreError::Other(text),
        });
    }
    let condition_at = |(index, write)| {
        condition(write).map_err(|cause| WriteError {
            index,
            applied: 0,
            cause,
        })
    };
    let conditions = writes
        .iter()
        .enumerate()
        .map(condition_at)
        .collect::<Result<Vec<_>, _>>()?;
    let operations: Vec<TxnOp> = writes.iter().map(write_operation).collect();
    let keys_only = || Some(GetOptions::new().with_keys_only());
    let reads: Vec<TxnOp> = writes
        .iter()
        .map(|write| TxnOp::get(write.path.as_bytes(), keys_only()))
        .collect();
    Ok(Txn::new()
        .when(conditions)
        .and_then(operations)
        .or_else(reads))
}

fn condition(write: &Write) -> Result<Compare, StoreError> {
    let key = write.path.as_bytes();
    Ok(match &write.op {
        WriteOp::Create(_) => Compare::version(key, CompareOp::Equal, 0),
        WriteOp::Update(_, revision)
        | WriteOp::UpdateStatus(_, revision)
        | WriteOp::Delete(Some(revision)) => {
            Compare::mod_revision(key, CompareOp::Equal, mod_revision(write, revision)?)
        }
        WriteOp::Delete(None) => Compare::version(key, CompareOp::Greater, 0),
    })
}

fn mod_revision(write: &Write, revision: &Revision) -> Result<i64, StoreError> {
    let refuse = |_| {
        StoreError::Other(format!(
            "cannot write {}: `{revision}` is not a revision of etcd",
            write.key
        ))
    };
    revision.0.parse().map_err(refuse)
}

fn write_operation(write: &Write) -> TxnOp {
    let key = write.path.as_bytes();
    match &write.op {
        WriteOp::Create(value) | WriteOp::Update(value, _) | WriteOp::UpdateStatus(value, _) => {
            TxnOp::put(key, value.as_slice(), None)
        }
        WriteOp::Delete(_) => TxnOp::delete(key, None),
    }
}

/// Returns the error of the first write whose condition did not hold.
pub(super) fn failed_transaction_error(writes: &[Write], response: &TxnResponse) -> WriteError {
    let (index, cause) = match stored_revisions(response) {
        Ok(stored) => {
            let mut pairs = writes.iter().zip(stored).enumerate();
            let first = pairs.find_map(|(index, (write, stored))| {
                Some((index, failed_condition(write, stored)?))
            });
            first.unwrap_or_else(|| {
                (
                    0,
                    unexpected_response("etcd refused conditions that hold", false),
                )
            })
        }
        Err(cause) => (0, cause),
    };
    WriteError {
        index,
        applied: 0,
        cause,
    }
}

fn stored_revisions(response: &TxnResponse) -> Result<Vec<Option<i64>>, StoreError> {
    let revision = |operation: TxnOpResponse| match operation {
        TxnOpResponse::Get(range) => Ok(range.kvs().first().map(KeyValue::mod_revision)),
        _ => Err(unexpected_response(
            "the response to a range is that of another operation",
            false,
        )),
    };
    response.op_responses().into_iter().map(revision).collect()
}

/// Returns the error of a condition that does not hold. `stored` is `None` for a missing key.
fn failed_condition(write: &Write, stored: Option<i64>) -> Option<StoreError> {
    let key = write.key.clone();
    match (&write.op, stored) {
        (WriteOp::Create(_), Some(_)) => Some(StoreError::AlreadyExists { key }),
        (WriteOp::Create(_), None) | (WriteOp::Delete(None), Some(_)) => None,
        (WriteOp::Update(..) | WriteOp::UpdateStatus(..) | WriteOp::Delete(_), None) => {
            Some(StoreError::NotFound { key })
        }
        (
            WriteOp::Update(_, expected)
            | WriteOp::UpdateStatus(_, expected)
            | WriteOp::Delete(Some(expected)),
            Some(stored),
        ) => (expected.0 != stored.to_string()).then_some(StoreError::Conflict { key }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_write_has_an_unknown_outcome_after_a_response_without_header() {
        assert!(missing_header(RequestKind::Write).has_unknown_outcome());
        assert!(!missing_header(RequestKind::Read).has_unknown_outcome());
    }

    #[test]
    fn end_of_an_etcd_prefix_is_the_next_key() {
        assert_eq!(range_end("/a/"), b"/a0");
        assert_eq!(range_end(""), [0]);
    }
}
