//! The SQL statements that read and write pairs.

use libcalico::store::{Range, RawEntry, Revision, StoreError, Write, WriteError, WriteOp};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

const SELECT_ONE: &str = "SELECT path, value, revision FROM kv WHERE path = ?1";
const SELECT_FROM: &str = "SELECT path, value, revision FROM kv WHERE path >= ?1 ORDER BY path";
const SELECT_BETWEEN: &str = "SELECT path, value, revision FROM kv WHERE path >= ?1 AND path < ?2 ORDER BY path";
/// The same statements without values, which make up most of the file.
const KEYS_FROM: &str = "SELECT path, '', revision FROM kv WHERE path >= ?1 ORDER BY path";
const KEYS_BETWEEN: &str = "SELECT path, '', revision FROM kv WHERE path >= ?1 AND path < ?2 ORDER BY path";

/// A [`Write`] with its value and revision converted for SQLite.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    path: &'a str,
    op: Op<'a>,
}

#[derive(Debug)]
enum Op<'a> {
    Create(&'a str),
    Update(&'a str, i64),
    Delete(Option<i64>),
}

/// A condition of a write that did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Exists,
    Missing,
    Changed,
}

impl Refusal {
    /// Converts the refusal into the error for the store's caller.
    pub(super) fn explain(self, key: &str) -> StoreError {
        let key = key.to_owned();
        match self {
            Refusal::Exists => StoreError::AlreadyExists { key },
            Refusal::Missing => StoreError::NotFound { key },
            Refusal::Changed => StoreError::Conflict { key },
        }
    }
}

// === reads ===

/// Returns the pairs of one range, in path order.
pub(super) fn read(connection: &Connection, range: &Range) -> rusqlite::Result<Vec<RawEntry>> {
    if !range.prefix {
        let mut statement = connection.prepare_cached(SELECT_ONE)?;
        return statement.query_map([&range.path], entry)?.collect();
    }
    let (from, between) = if range.keys_only { (KEYS_FROM, KEYS_BETWEEN) } else { (SELECT_FROM, SELECT_BETWEEN) };
    match end_of_prefix(&range.path) {
        Some(end) => connection.prepare_cached(between)?.query_map([&range.path, &end], entry)?.collect(),
        None => connection.prepare_cached(from)?.query_map([&range.path], entry)?.collect(),
    }
}

/// Calls `tell` with the path and the value of each pair below a prefix.
pub(super) fn each(connection: &Connection, prefix: &str, mut tell: impl FnMut(&str, &[u8])) -> rusqlite::Result<()> {
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
        // A path that is not UTF-8 is not Calico's.
        if let Ok(path) = row.get_ref(0)?.as_str() {
            tell(path, row.get_ref(1)?.as_bytes()?);
        }
    }
    Ok(())
}

fn entry(row: &Row<'_>) -> rusqlite::Result<RawEntry> {
    let revision: i64 = row.get(2)?;
    // Reads the value as bytes. The decoder checks for UTF-8, so that a damaged value affects only its own entry.
    let value = row.get_ref(1)?.as_bytes()?.to_vec();
    Ok(RawEntry { path: row.get(0)?, value, revision: Revision(revision.to_string()) })
}

/// Returns the first text, in byte order, after all texts that begin with `prefix`, or `None` if there is no such text.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

// === writes ===

/// Converts the writes. Rejects values that are not text, and revisions that are not of this datastore.
pub(super) fn prepare(writes: &[Write]) -> Result<Vec<Prepared<'_>>, WriteError> {
    let refuse = |index: usize, reason: String| {
        let cause = StoreError::Other(format!("cannot write {}: {reason}", writes[index].key));
        WriteError { index, applied: 0, cause }
    };
    let prepare_one = |(index, write)| prepare_one(write).map_err(|reason| refuse(index, reason));
    writes.iter().enumerate().map(prepare_one).collect()
}

fn prepare_one(write: &Write) -> Result<Prepared<'_>, String> {
    let op = match &write.op {
        WriteOp::Create(value) => Op::Create(text(value)?),
        WriteOp::Update(value, revision) | WriteOp::UpdateStatus(value, revision) => {
            Op::Update(text(value)?, number(revision)?)
        }
        WriteOp::Delete(revision) => Op::Delete(revision.as_ref().map(number).transpose()?),
    };
    Ok(Prepared { path: &write.path, op })
}

fn text(value: &[u8]) -> Result<&str, String> {
    str::from_utf8(value).map_err(|e| format!("the embedded datastore holds text, and the value is not: {e}"))
}

fn number(revision: &Revision) -> Result<i64, String> {
    revision.0.parse().map_err(|_| format!("`{revision}` is not a revision of the embedded datastore"))
}

/// Applies all writes at one new revision, or returns the index of the first write whose condition does not hold. The
/// caller commits or drops the transaction.
pub(super) fn apply(
    transaction: &Transaction<'_>,
    writes: &[Prepared<'_>],
) -> rusqlite::Result<Result<i64, (usize, Refusal)>> {
    // Two statements are cheaper than RETURNING, which would create an in-memory table with its own page cache.
    transaction.prepare_cached("UPDATE counter SET revision = revision + 1")?.execute([])?;
    let revision = transaction.prepare_cached("SELECT revision FROM counter")?.query_row([], |row| row.get(0))?;
    for (index, write) in writes.iter().enumerate() {
        if let Some(refusal) = apply_one(transaction, write, revision)? {
            return Ok(Err((index, refusal)));
        }
    }
    Ok(Ok(revision))
}

fn apply_one(transaction: &Transaction<'_>, write: &Prepared<'_>, revision: i64) -> rusqlite::Result<Option<Refusal>> {
    const INSERT: &str = "INSERT INTO kv (path, value, revision) VALUES (?1, ?2, ?3) ON CONFLICT (path) DO NOTHING";
    const UPDATE: &str = "UPDATE kv SET value = ?2, revision = ?3 WHERE path = ?1 AND revision = ?4";
    const DELETE: &str = "DELETE FROM kv WHERE path = ?1 AND revision = ?2";
    const DELETE_ANY: &str = "DELETE FROM kv WHERE path = ?1";
    let path = write.path;
    let prepare = |statement| transaction.prepare_cached(statement);
    let changed = match write.op {
        Op::Create(value) => prepare(INSERT)?.execute(params![path, value, revision])?,
        Op::Update(value, expected) => prepare(UPDATE)?.execute(params![path, value, revision, expected])?,
        Op::Delete(Some(expected)) => prepare(DELETE)?.execute(params![path, expected])?,
        Op::Delete(None) => prepare(DELETE_ANY)?.execute([path])?,
    };
    if changed > 0 {
        return Ok(None);
    }
    if matches!(write.op, Op::Create(_)) {
        return Ok(Some(Refusal::Exists));
    }
    let found = transaction.query_row("SELECT 1 FROM kv WHERE path = ?1", [path], |_| Ok(())).optional()?;
    Ok(Some(found.map_or(Refusal::Missing, |()| Refusal::Changed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_range_are_read_without_values() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE kv (path, value, revision); INSERT INTO kv VALUES ('/a', 'x', 7)")
            .unwrap();
        for (path, keys_only, value) in [("/", true, ""), ("\u{10ffff}", true, ""), ("/", false, "x")] {
            let freshness = libcalico::store::Freshness::Latest;
            let range = Range { kind: "", path: path.into(), prefix: true, keys_only, freshness };
            let read = read(&connection, &range).unwrap();
            let expected = RawEntry { path: "/a".into(), value: value.into(), revision: Revision("7".into()) };
            assert_eq!(read, if path == "/" { vec![expected] } else { Vec::new() });
        }
    }

    #[test]
    fn end_of_prefix_is_the_next_text() {
        assert_eq!(end_of_prefix("/calico/").as_deref(), Some("/calico0"));
        assert_eq!(end_of_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(end_of_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(end_of_prefix("\u{10ffff}"), None);
        assert_eq!(end_of_prefix(""), None);
    }
}
