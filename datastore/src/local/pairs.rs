//! The SQL statements that read and write pairs.

use libcalico::store::{Range, RawEntry, Revision, StoreError, Write, WriteError, WriteOp};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use crate::pairs::end_of_prefix;

const SELECT_ONE: &str = "SELECT path, value, revision FROM kv WHERE path = ?1";
const SELECT_FROM: &str = "SELECT path, value, revision FROM kv WHERE path >= ?1 ORDER BY path";
const SELECT_BETWEEN: &str =
    "SELECT path, value, revision FROM kv WHERE path >= ?1 AND path < ?2 ORDER BY path";
/// The values make up most of the file.
const KEYS_FROM: &str = "SELECT path, '', revision FROM kv WHERE path >= ?1 ORDER BY path";
const KEYS_BETWEEN: &str =
    "SELECT path, '', revision FROM kv WHERE path >= ?1 AND path < ?2 ORDER BY path";

#[derive(Debug)]
pub(super) struct Prepared<'a> {
    path: &'a str,
    key: &'a str,
    op: Op<'a>,
}

#[derive(Debug)]
enum Op<'a> {
    Create(&'a str),
    Update(&'a str, i64),
    Delete(Option<i64>),
}

// === reads ===

/// Returns the pairs of one range, in path order.
pub(super) fn read(connection: &Connection, range: &Range) -> rusqlite::Result<Vec<RawEntry>> {
    if !range.is_prefix {
        let mut statement = connection.prepare_cached(SELECT_ONE)?;
        return statement.query_map([&range.path], entry)?.collect();
    }
    let (from, between) = if range.keys_only {
        (KEYS_FROM, KEYS_BETWEEN)
    } else {
        (SELECT_FROM, SELECT_BETWEEN)
    };
    match end_of_prefix(&range.path) {
        Some(end) => connection
            .prepare_cached(between)?
            .query_map([&range.path, &end], entry)?
            .collect(),
        None => connection
            .prepare_cached(from)?
            .query_map([&range.path], entry)?
            .collect(),
    }
}

/// Passes path, value and revision of each pair to `on_pair`, in path order.
pub(super) fn for_each_pair(
    connection: &Connection,
    prefix: &str,
    mut on_pair: impl FnMut(&str, &[u8], i64),
) -> rusqlite::Result<()> {
    let mut statement;
    let mut rows = match end_of_prefix(prefix) {
        Some(end) => {
            statement = connection.prepare_cached(SELECT_BETWEEN)?;
            statement.query([prefix, &end])?
        }
        None => {
            statement = connection.prepare_cached(SELECT_FROM)?;
            statement.query([prefix])?
        }
    };
    while let Some(row) = rows.next()? {
        if let Ok(path) = row.get_ref(0)?.as_str() {
            on_pair(path, row.get_ref(1)?.as_bytes()?, row.get(2)?);
        }
    }
    Ok(())
}

fn entry(row: &Row<'_>) -> rusqlite::Result<RawEntry> {
    let revision: i64 = row.get(2)?;
    // The decoder checks for UTF-8, so that a damaged value affects only its own entry.
    let value = row.get_ref(1)?.as_bytes()?.into();
    Ok(RawEntry {
        path: row.get(0)?,
        value,
        revision: Revision(revision.to_string()),
    })
}

// === writes ===

/// Rejects values that are not UTF-8, and revisions that are not numbers.
pub(super) fn prepare(writes: &[Write]) -> Result<Vec<Prepared<'_>>, WriteError> {
    let writes = writes.iter().enumerate();
    writes
        .map(|(index, write)| {
            prepare_one(write).map_err(|cause| WriteError {
                index,
                applied: 0,
                cause,
            })
        })
        .collect()
}

fn prepare_one(write: &Write) -> Result<Prepared<'_>, StoreError> {
    let op = match &write.op {
        WriteOp::Create(value) => Op::Create(parse_text(write, value)?),
        WriteOp::Update(value, revision) | WriteOp::UpdateStatus(value, revision) => {
            Op::Update(parse_text(write, value)?, parse_revision(write, revision)?)
        }
        WriteOp::Delete(revision) => Op::Delete(
            revision
                .as_ref()
                .map(|r| parse_revision(write, r))
                .transpose()?,
        ),
    };
    Ok(Prepared {
        path: &write.path,
        key: &write.key,
        op,
    })
}

fn parse_text<'w>(write: &Write, value: &'w [u8]) -> Result<&'w str, StoreError> {
    str::from_utf8(value).map_err(|error| {
        let reason =
            format!("the embedded datastore stores text, and the value is not UTF-8: {error}");
        StoreError::Other(format!("cannot write {}: {reason}", write.key))
    })
}

fn parse_revision(write: &Write, revision: &Revision) -> Result<i64, StoreError> {
    let reason = || format!("`{revision}` is not a revision of the embedded datastore");
    revision
        .0
        .parse()
        .map_err(|_| StoreError::Other(format!("cannot write {}: {}", write.key, reason())))
}

/// Applies all writes and returns their new revision. The inner error is that of a condition that
/// does not hold. The caller commits or drops the transaction.
pub(super) fn apply(
    tx: &Transaction<'_>,
    writes: &[Prepared<'_>],
) -> rusqlite::Result<Result<i64, WriteError>> {
    // Two statements take less time than `RETURNING`, which would create an in-memory table with
    // its own page cache.
    tx.prepare_cached("UPDATE counter SET revision = revision + 1")?
        .execute([])?;
    let revision = tx
        .prepare_cached("SELECT revision FROM counter")?
        .query_row([], |row| row.get(0))?;
    for (index, write) in writes.iter().enumerate() {
        if let Some(cause) = apply_one(tx, write, revision)? {
            return Ok(Err(WriteError {
                index,
                applied: 0,
                cause,
            }));
        }
    }
    Ok(Ok(revision))
}

fn apply_one(
    tx: &Transaction<'_>,
    write: &Prepared<'_>,
    revision: i64,
) -> rusqlite::Result<Option<StoreError>> {
    const INSERT: &str =
        "INSERT INTO kv (path, value, revision) VALUES (?1, ?2, ?3) ON CONFLICT (path) DO NOTHING";
    const UPDATE: &str =
        "UPDATE kv SET value = ?2, revision = ?3 WHERE path = ?1 AND revision = ?4";
    const DELETE: &str = "DELETE FROM kv WHERE path = ?1 AND revision = ?2";
    const DELETE_ANY: &str = "DELETE FROM kv WHERE path = ?1";
    let path = write.path;
    let prepare = |statement| tx.prepare_cached(statement);
    let changed = match write.op {
        Op::Create(value) => prepare(INSERT)?.execute(params![path, value, revision])?,
        Op::Update(value, expected) => {
            prepare(UPDATE)?.execute(params![path, value, revision, expected])?
        }
        Op::Delete(Some(expected)) => prepare(DELETE)?.execute(params![path, expected])?,
        Op::Delete(None) => prepare(DELETE_ANY)?.execute([path])?,
    };
    if changed > 0 {
        return Ok(None);
    }
    let key = write.key.to_owned();
    if matches!(write.op, Op::Create(_)) {
        return Ok(Some(StoreError::AlreadyExists { key }));
    }
    let found = tx
        .query_row("SELECT 1 FROM kv WHERE path = ?1", [path], |_| Ok(()))
        .optional()?;
    Ok(Some(if found.is_some() {
        StoreError::Conflict { key }
    } else {
        StoreError::NotFound { key }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_only_range_is_read_without_values() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE kv (path, value, revision); INSERT INTO kv VALUES ('/a', 'x', 7)",
            )
            .unwrap();
        for (path, keys_only, value) in
            [("/", true, ""), ("\u{10ffff}", true, ""), ("/", false, "x")]
        {
            let freshness = libcalico::store::Freshness::Latest;
            let range = Range {
                kind: "",
                path: path.into(),
                is_prefix: true,
                keys_only,
                freshness,
            };
            let read = read(&connection, &range).unwrap();
            let expected = RawEntry {
                path: "/a".into(),
                value: value.into(),
                revision: Revision("7".into()),
            };
            assert_eq!(
                read,
                if path == "/" {
                    vec![expected]
                } else {
                    Vec::new()
                }
            );
        }
    }
}
