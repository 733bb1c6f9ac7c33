//! Export and import: all pairs of a datastore as text, with the values byte for byte.
//!
//! The text is JSON Lines. The first line names the format and the number of pairs, so that a truncated file is
//! detected. Each other line is one pair:
//!
//! ```text
//! {"format":"calico-export","version":1,"pairs":2}
//! {"key":"/calico/ipam/v2/config","value":{"strict_affinity":true}}
//! {"key":"/calico/v1/Ready","text":"true\n"}
//! ```
//!
//! `value` contains the stored bytes unchanged. A stored value that is not JSON on a single line becomes `text`, and a
//! value that is not UTF-8 becomes `base64`.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use data_encoding::BASE64;
use libcalico::store::{RawEntry, Revision, Store, StoreError, Write, WriteOp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Datastore, first_use};

/// The prefix of all of Calico's pairs.
const ROOT: &str = "/calico/";
const FORMAT: &str = "calico-export";
const VERSION: u32 = 1;
/// Limits of one transaction: below etcd's 128 operations, and far below its 1.5 MiB.
const BATCH_PAIRS: usize = 100;
const BATCH_BYTES: usize = 512 * 1024;
/// Maximum number of paths in an error.
const NAMED: usize = 5;

/// The treatment of pairs that already exist in the datastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Fail before the first write if a value differs.
    Keep,
    /// Replace the values. Pairs that are not in the file stay.
    Overwrite,
}

/// The numbers of an import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Imported {
    /// Pairs that were missing.
    pub created: usize,
    /// Pairs that had another value.
    pub replaced: usize,
    /// Pairs that already had the same value.
    pub unchanged: usize,
}

/// An export or import that failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The datastore failed. Completed writes of an import stay, and another import continues after them.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Reading or writing the text failed.
    #[error("read or write the export: {0}")]
    Io(#[from] io::Error),
    /// The text is not an export, or is of an unsupported version.
    #[error("not a Calico export of version {VERSION}: the first line must be its header; {reason}")]
    Header {
        /// The problem with the first line.
        reason: String,
    },
    /// A line is not a valid pair.
    #[error("line {line}: {reason}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The problem with the line.
        reason: String,
    },
    /// The number of pairs differs from the header.
    #[error("the export should hold {expected} pairs and holds {found}; it was cut short or edited")]
    Incomplete {
        /// The number of pairs in the header.
        expected: usize,
        /// The number of pairs found.
        found: usize,
    },
    /// Pairs exist with other values, and overwriting was not requested.
    #[error(
        "{count} keys are in the datastore already, with other values ({named}); nothing was imported; overwrite them explicitly or import into an empty datastore"
    )]
    Occupied {
        /// The number of such pairs.
        count: usize,
        /// The first few of their keys.
        named: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    pairs: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    key: String,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

// === export ===

/// Writes all of Calico's pairs, as one snapshot. Calls `progress` with the number of finished pairs and of all pairs.
/// Returns the number of pairs.
pub async fn export(
    store: &Datastore,
    mut out: impl io::Write,
    mut progress: impl FnMut(usize, usize),
) -> Result<usize, TransferError> {
    let pairs = store.scan(ROOT).await?;
    let header = Header { format: FORMAT.into(), version: VERSION, pairs: pairs.len() };
    write_line(&mut out, &header)?;
    for (done, pair) in pairs.iter().enumerate() {
        write_line(&mut out, &line_of(pair))?;
        progress(done + 1, pairs.len());
    }
    out.flush()?;
    Ok(pairs.len())
}

fn write_line(out: &mut impl io::Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn line_of(pair: &RawEntry) -> Line<'_> {
    let empty = Line { key: pair.path.clone(), value: None, text: None, base64: None };
    let Ok(text) = str::from_utf8(&pair.value) else {
        return Line { base64: Some(BASE64.encode(&pair.value)), ..empty };
    };
    match serde_json::from_str::<&RawValue>(text) {
        // JSON surrounded by white space would lose the white space, a line break would end the line, and `null` would
        // decode as an absent key.
        Ok(raw) if raw.get().len() == text.len() && text != "null" && !text.contains(['\n', '\r']) => {
            Line { value: Some(raw), ..empty }
        }
        _ => Line { text: Some(text.into()), ..empty },
    }
}

// === import ===

/// Imports an export. Reads and compares all pairs before the first write. A datastore that contains only the initial
/// objects counts as empty. Calls `progress` with the number of finished pairs and of all pairs.
pub async fn import(
    store: &Datastore,
    input: impl BufRead,
    existing: Existing,
    mut progress: impl FnMut(usize, usize),
) -> Result<Imported, TransferError> {
    let wanted = parse(input)?;
    let found: BTreeMap<String, RawEntry> =
        store.scan(ROOT).await?.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
    let total = wanted.len();
    let (writes, imported) = plan(wanted, &found, existing)?;
    let mut done = total - writes.len();
    progress(done, total);
    for batch in batches(&writes) {
        store.write(batch).await.map_err(|e| e.cause)?;
        done += batch.len();
        progress(done, total);
    }
    Ok(imported)
}

fn parse(mut input: impl BufRead) -> Result<BTreeMap<String, Vec<u8>>, TransferError> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let header = parse_header(&line).map_err(|reason| TransferError::Header { reason })?;
    let mut pairs = BTreeMap::new();
    for (index, line) in input.lines().enumerate() {
        let line = line?;
        if line.is_empty() {
            continue;
        }
        let refuse = |reason: String| TransferError::Line { line: index + 2, reason };
        let (key, value) = parse_line(&line).map_err(refuse)?;
        if pairs.insert(key.clone(), value).is_some() {
            return Err(refuse(format!("{key} is there twice")));
        }
    }
    match pairs.len() == header.pairs {
        true => Ok(pairs),
        false => Err(TransferError::Incomplete { expected: header.pairs, found: pairs.len() }),
    }
}

fn parse_header(line: &str) -> Result<Header, String> {
    let header: Header = serde_json::from_str(line).map_err(|e| e.to_string())?;
    match (header.format.as_str(), header.version) {
        (FORMAT, VERSION) => Ok(header),
        (FORMAT, other) => Err(format!("it says version {other}")),
        (other, _) => Err(format!("it says format `{other}`")),
    }
}

fn parse_line(line: &str) -> Result<(String, Vec<u8>), String> {
    let line: Line<'_> = serde_json::from_str(line).map_err(|e| e.to_string())?;
    if !line.key.starts_with(ROOT) {
        return Err(format!("key `{}` is not below {ROOT}", line.key));
    }
    let value = match (line.value, line.text, line.base64) {
        (Some(raw), None, None) => raw.get().as_bytes().to_vec(),
        (None, Some(text), None) => text.into_bytes(),
        (None, None, Some(code)) => BASE64.decode(code.as_bytes()).map_err(|e| format!("base64: {e}"))?,
        _ => return Err(format!("{} needs exactly one of value, text and base64", line.key)),
    };
    Ok((line.key, value))
}

fn plan(
    wanted: BTreeMap<String, Vec<u8>>,
    found: &BTreeMap<String, RawEntry>,
    existing: Existing,
) -> Result<(Vec<Write>, Imported), TransferError> {
    let pristine = found.keys().all(|path| first_use::is_initial(path));
    let mut imported = Imported::default();
    let mut writes = Vec::new();
    let mut occupied = Vec::new();
    for (path, value) in wanted {
        match found.get(&path) {
            None => {
                imported.created += 1;
                writes.push(write(path, WriteOp::Create(value)));
            }
            Some(entry) if entry.value == value => imported.unchanged += 1,
            Some(entry) if pristine || existing == Existing::Overwrite => {
                imported.replaced += 1;
                writes.push(write(path, WriteOp::Update(value, Revision::clone(&entry.revision))));
            }
            Some(_) => occupied.push(path),
        }
    }
    if occupied.is_empty() {
        return Ok((writes, imported));
    }
    let more = if occupied.len() > NAMED { ", ..." } else { "" };
    let named = occupied.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ") + more;
    Err(TransferError::Occupied { count: occupied.len(), named })
}

fn write(path: String, op: WriteOp) -> Write {
    Write { kind: "", key: path.clone(), path, op }
}

/// Splits the writes into transactions.
fn batches(writes: &[Write]) -> impl Iterator<Item = &[Write]> {
    let mut rest = writes;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |write: &&Write| {
            bytes += write.path.len() + size(write);
            bytes <= BATCH_BYTES
        };
        let count = rest.iter().take(BATCH_PAIRS).take_while(fits).count().max(1).min(rest.len());
        let (batch, later) = rest.split_at(count);
        rest = later;
        (!batch.is_empty()).then_some(batch)
    })
}

fn size(write: &Write) -> usize {
    match &write.op {
        WriteOp::Create(value) | WriteOp::Update(value, _) | WriteOp::UpdateStatus(value, _) => value.len(),
        WriteOp::Delete(_) => 0,
    }
}

#[cfg(test)]
mod tests;
