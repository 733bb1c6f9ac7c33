//! Export and import: all of Calico's pairs in a datastore as text, with the values byte for byte.
//!
//! The text is JSON Lines. The number of pairs in the first line shows if the file is truncated.
//! Each other line is one pair:
//!
//! ```text
//! {"format":"calico-export","version":1,"pairs":2}
//! {"key":"/calico/ipam/v2/config","value":{"strict_affinity":true}}
//! {"key":"/calico/v1/Ready","text":"true\n"}
//! ```
//!
//! `value` contains stored JSON byte for byte. A value that this would not preserve becomes `text`,
//! or `base64` if it is not UTF-8.

mod format;
mod lock;

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use libcalico::store::{RawEntry, Revision, Store, StoreError, Write, WriteOp};

use crate::bootstrap;
use crate::datastore::Datastore;
pub use format::TransferError;
use format::{ROOT, parse, write_header, write_pair};

/// Limits of one transaction of an import, below etcd's 128 operations and 1.5 MiB. A single larger
/// pair is a transaction of its own.
const BATCH_PAIRS: usize = 100;
const BATCH_BYTES: usize = 512 * 1024;
const MAX_NAMED_PATHS: usize = 5;

/// The treatment of pairs that already exist in the datastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExisting {
    /// Fail before the first write if a value differs, unless the datastore contains only the
    /// initial objects.
    Keep,
    /// Replace the values. Pairs that are not in the export stay.
    Overwrite,
}

/// The number of pairs of an import, for each outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// Pairs that were missing.
    pub created: usize,
    /// Pairs that had another value.
    pub replaced: usize,
    /// Pairs that already had the same value.
    pub unchanged: usize,
}

/// Writes all of Calico's pairs to `out`, as one snapshot. Calls `progress` with the number of
/// finished pairs and of all pairs. Returns the number of pairs.
pub async fn export(
    store: &Datastore,
    mut out: impl io::Write,
    mut progress: impl FnMut(usize, usize),
) -> Result<usize, TransferError> {
    let pairs = store.scan(ROOT).await?;
    write_header(&mut out, pairs.len())?;
    for (index, pair) in pairs.iter().enumerate() {
        write_pair(&mut out, pair)?;
        progress(index + 1, pairs.len());
    }
    out.flush()?;
    Ok(pairs.len())
}

/// Imports an export. Reads and compares all pairs before the first write. Calls `progress` with
/// the number of finished pairs and of all pairs.
///
/// An import of more than one transaction locks the target until the last one. If it is
/// interrupted, an import of the same export continues while the target is locked. It fails, as the
/// first one does, if another program has changed a pair that it would replace.
pub async fn import(
    store: &Datastore,
    input: impl BufRead,
    on_existing: OnExisting,
    mut progress: impl FnMut(usize, usize),
) -> Result<ImportSummary, TransferError> {
    let imported = parse(input)?;
    let mark = lock::mark(&imported);
    let information = imported.get(lock::PATH).cloned();
    let stored: BTreeMap<_, _> = store
        .scan(ROOT)
        .await?
        .into_iter()
        .map(|pair| (pair.path.clone(), pair))
        .collect();
    let total = imported.len();
    let target = stored.get(lock::PATH);
    let is_continued = target
        .and_then(|found| lock::mark_of(&found.value.bytes()))
        .is_some_and(|found| found == mark);
    let (mut writes, summary) = plan(imported, &stored, on_existing, is_continued)?;
    let mut unlock = None;
    // A single transaction cannot be interrupted, and an export without ClusterInformation has
    // nothing to lock.
    if split_batches(&writes).nth(1).is_some()
        && let Some(information) = information
        && let Some(locked) = lock::locked(&information, &mark)
    {
        let revision = lock::write_locked(store, target, locked)
            .await
            .map_err(lock_error)?;
        writes.retain(|write| write.path != lock::PATH);
        unlock = Some(write(
            lock::PATH.to_owned(),
            WriteOp::Update(information, revision),
        ));
    }
    let mut finished = total - writes.len() - unlock.iter().len();
    progress(finished, total);
    for batch in split_batches(&writes).chain(unlock.as_ref().map(std::slice::from_ref)) {
        store.write(batch).await.map_err(|error| match &unlock {
            Some(_) => TransferError::Interrupted(error.cause),
            None => error.cause.into(),
        })?;
        finished += batch.len();
        progress(finished, total);
    }
    Ok(summary)
}

fn lock_error(error: StoreError) -> TransferError {
    if error.has_unknown_outcome() {
        TransferError::LockUnknown(error)
    } else {
        error.into()
    }
}

fn plan(
    imported: BTreeMap<String, Vec<u8>>,
    stored: &BTreeMap<String, RawEntry>,
    on_existing: OnExisting,
    is_continued: bool,
) -> Result<(Vec<Write>, ImportSummary), TransferError> {
    let may_replace_initial = is_continued || stored.keys().all(|path| bootstrap::is_initial(path));
    let may_replace = |path: &str| match on_existing {
        OnExisting::Overwrite => true,
        OnExisting::Keep => may_replace_initial && bootstrap::is_initial(path),
    };
    let mut summary = ImportSummary::default();
    let mut writes = Vec::new();
    let mut conflicting = Vec::new();
    for (path, value) in imported {
        match stored.get(&path) {
            None => {
                summary.created += 1;
                writes.push(write(path, WriteOp::Create(value)));
            }
            Some(entry) if entry.value.bytes() == value => summary.unchanged += 1,
            Some(entry) if may_replace(&path) => {
                summary.replaced += 1;
                writes.push(write(
                    path,
                    WriteOp::Update(value, Revision::clone(&entry.revision)),
                ));
            }
            Some(_) => conflicting.push(path),
        }
    }
    if conflicting.is_empty() {
        return Ok((writes, summary));
    }
    let more = if conflicting.len() > MAX_NAMED_PATHS {
        ", ..."
    } else {
        ""
    };
    let named = conflicting
        .iter()
        .take(MAX_NAMED_PATHS)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
        + more;
    Err(TransferError::ConflictingPairs {
        count: conflicting.len(),
        named,
    })
}

fn write(path: String, op: WriteOp) -> Write {
    Write {
        kind: "",
        key: path.clone(),
        path,
        op,
    }
}

fn split_batches(writes: &[Write]) -> impl Iterator<Item = &[Write]> {
    let mut rest = writes;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |write: &&Write| {
            bytes += write.path.len() + size(write);
            bytes <= BATCH_BYTES
        };
        let count = rest
            .iter()
            .take(BATCH_PAIRS)
            .take_while(fits)
            .count()
            .max(1)
            .min(rest.len());
        let (batch, later) = rest.split_at(count);
        rest = later;
        (!batch.is_empty()).then_some(batch)
    })
}

fn size(write: &Write) -> usize {
    match &write.op {
        WriteOp::Create(value) | WriteOp::Update(value, _) | WriteOp::UpdateStatus(value, _) => {
            value.len()
        }
        WriteOp::Delete(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, value: &[u8]) -> RawEntry {
        RawEntry {
            path: path.into(),
            value: value.into(),
            revision: Revision("7".into()),
        }
    }

    #[test]
    fn import_onto_existing_keys_is_refused_unless_overwriting_or_initial() {
        let imported_pair = |path: &str| BTreeMap::from([(path.to_owned(), b"new".to_vec())]);
        let stored_pair = |path: &str| BTreeMap::from([(path.to_owned(), entry(path, b"old"))]);
        let refused = plan(
            imported_pair("/calico/k"),
            &stored_pair("/calico/k"),
            OnExisting::Keep,
            true,
        )
        .unwrap_err();
        assert!(matches!(
            refused,
            TransferError::ConflictingPairs { count: 1, .. }
        ));
        let (writes, imported) = plan(
            imported_pair("/calico/k"),
            &stored_pair("/calico/k"),
            OnExisting::Overwrite,
            false,
        )
        .unwrap();
        assert_eq!(
            writes[0].op,
            WriteOp::Update(b"new".to_vec(), Revision("7".into()))
        );
        assert_eq!(
            imported,
            ImportSummary {
                replaced: 1,
                ..ImportSummary::default()
            }
        );
        let tier = "/calico/resources/v3/projectcalico.org/tiers/default";
        assert_eq!(
            plan(
                imported_pair(tier),
                &stored_pair(tier),
                OnExisting::Keep,
                false
            )
            .unwrap()
            .1
            .replaced,
            1
        );
    }

    #[test]
    fn lost_answer_to_the_lock_says_that_the_datastore_may_be_locked() {
        let error = |outcome_unknown| {
            let (datastore, reason) = ("etcd".into(), "no answer".into());
            lock_error(StoreError::Unavailable {
                datastore,
                reason,
                outcome_unknown,
            })
            .to_string()
        };
        assert!(
            error(true).contains("the datastore may be locked; run the same import again"),
            "{}",
            error(true)
        );
        assert_eq!(error(false), "datastore etcd is unavailable: no answer");
    }

    #[test]
    fn import_batches_preserve_order_and_respect_limits() {
        let write_of_size = |bytes| write("/calico/k".into(), WriteOp::Create(vec![b'x'; bytes]));
        let sizes = |writes: &[Write]| {
            split_batches(writes)
                .map(<[Write]>::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(&vec![write_of_size(1); 250]), [100, 100, 50]);
        assert_eq!(sizes(&vec![write_of_size(BATCH_BYTES / 2); 3]), [1, 1, 1]);
        assert_eq!(
            sizes(&[write_of_size(BATCH_BYTES * 2), write_of_size(1)]),
            [1, 1]
        );
        assert_eq!(sizes(&[]), [0; 0]);
    }
}
