//! The text of an export: a header, and one line per pair. [`TransferError`] is the error of an
//! export or import.

use std::collections::BTreeMap;
use std::io::{self, BufRead, ErrorKind, Read};

use data_encoding::BASE64;
use libcalico::failure::{Failure, OrFail};
use libcalico::store::{RawEntry, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub(super) const ROOT: &str = "/calico/";
const FORMAT: &str = "calico-export";
const VERSION: u32 = 1;
/// Maximum size in bytes of a line. The values of etcd have at most 1.5 MiB by default.
const MAX_LINE: u64 = 64 << 20;

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

/// An export or import that failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The datastore failed. Completed writes of an import stay.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The datastore failed after the first write of an import. The target is locked.
    #[error(
        "{0}; the import is incomplete and the datastore is locked; run the same import again, \
         which continues"
    )]
    Interrupted(#[source] StoreError),
    /// The answer to the first write of an import was lost. That write locks the target.
    #[error(
        "{0}; nothing is imported yet, but the datastore may be locked; run the same import again, \
         which continues, and unlocks it at its end"
    )]
    LockUnknown(#[source] StoreError),
    /// Reading or writing the text failed.
    #[error("cannot read or write the export: {0}")]
    Io(#[from] io::Error),
    /// The text is not an export, or is of an unsupported version: the problem with its first line.
    #[error("not a Calico export of version {VERSION}: invalid header in the first line: {0}")]
    Header(String),
    /// A line is not a valid pair, or repeats the key of another line.
    #[error("line {line}: {reason}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The problem with the line.
        reason: String,
    },
    /// The number of pairs differs from the header.
    #[error(
        "the export contains {found} pairs, but its header counts {expected}: the file was \
         truncated or edited; export again"
    )]
    Incomplete {
        /// The number of pairs in the header.
        expected: usize,
        /// The number of pairs found.
        found: usize,
    },
    /// Pairs exist in the datastore with other values, and overwriting was not requested. Nothing
    /// was written.
    #[error(
        "{count} keys exist in the datastore with other values ({named}), so nothing was imported; \
         overwrite the values explicitly or import into an empty datastore"
    )]
    ConflictingPairs {
        /// The number of pairs that have other values.
        count: usize,
        /// The keys of these pairs, or the first few of them.
        named: String,
    },
}

/// Returns the value of each path in the export.
pub(super) fn parse(mut input: impl BufRead) -> Result<BTreeMap<String, Vec<u8>>, TransferError> {
    let header = parse_header(&next_line(&mut input)?.unwrap_or_default())?;
    let mut pairs = BTreeMap::new();
    for index in 0.. {
        let Some(line) = next_line(&mut input)? else {
            break;
        };
        if line.is_empty() {
            continue;
        }
        let invalid = |error: Failure| TransferError::Line {
            line: index + 2,
            reason: error.to_string(),
        };
        let (key, value) = parse_line(&line).map_err(invalid)?;
        if pairs.contains_key(&key) {
            return Err(invalid(Failure::new(format_args!("duplicate key {key}"))));
        }
        pairs.insert(key, value);
    }
    if pairs.len() != header.pairs {
        return Err(TransferError::Incomplete {
            expected: header.pairs,
            found: pairs.len(),
        });
    }
    Ok(pairs)
}

/// Returns the next line without its end, or `None` at the end of the text.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = input.take(MAX_LINE).read_line(&mut line)? as u64;
    if read == MAX_LINE && !line.ends_with('\n') {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("a line has more than {MAX_LINE} bytes"),
        ));
    }
    let length = line.strip_suffix('\n').map_or(line.len(), |rest| {
        rest.strip_suffix('\r').unwrap_or(rest).len()
    });
    line.truncate(length);
    Ok((read > 0).then_some(line))
}

fn parse_header(line: &str) -> Result<Header, TransferError> {
    let invalid = TransferError::Header;
    let header: Header = serde_json::from_str(line).map_err(|error| invalid(error.to_string()))?;
    match (header.format.as_str(), header.version) {
        (FORMAT, VERSION) => Ok(header),
        (FORMAT, version) => Err(invalid(format!("the format has version {version}"))),
        (format, _) => Err(invalid(format!("the format is `{format}`"))),
    }
}

fn parse_line(line: &str) -> Result<(String, Vec<u8>), Failure> {
    let line: Line<'_> = serde_json::from_str(line)?;
    if !line.key.starts_with(ROOT) {
        let key = line.key;
        return Err(Failure::new(format_args!(
            "key `{key}` is not below {ROOT}"
        )));
    }
    let value = match (line.value, line.text, line.base64) {
        (Some(raw), None, None) => raw.get().as_bytes().to_vec(),
        (None, Some(text), None) => text.into_bytes(),
        (None, None, Some(encoded)) => BASE64.decode(encoded.as_bytes()).or_fail("base64")?,
        _ => {
            return Err(Failure::new(format_args!(
                "{} needs exactly one of value, text and base64",
                line.key
            )));
        }
    };
    Ok((line.key, value))
}

pub(super) fn write_header(out: &mut impl io::Write, pairs: usize) -> io::Result<()> {
    write_line(
        out,
        &Header {
            format: FORMAT.into(),
            version: VERSION,
            pairs,
        },
    )
}

pub(super) fn write_pair(out: &mut impl io::Write, pair: &RawEntry) -> io::Result<()> {
    write_line(out, &encode(&pair.path, &pair.value.bytes()))
}

fn write_line(out: &mut impl io::Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn encode<'v>(path: &str, value: &'v [u8]) -> Line<'v> {
    let empty = Line {
        key: path.to_owned(),
        value: None,
        text: None,
        base64: None,
    };
    let Ok(text) = str::from_utf8(value) else {
        return Line {
            base64: Some(BASE64.encode(value)),
            ..empty
        };
    };
    // JSON with white space around it would lose the white space, and `null` would decode as an
    // absent `value`.
    let survives = |raw: &RawValue| {
        raw.get().len() == text.len() && text != "null" && !text.contains(['\n', '\r'])
    };
    match serde_json::from_str::<&RawValue>(text) {
        Ok(raw) if survives(raw) => Line {
            value: Some(raw),
            ..empty
        },
        _ => Line {
            text: Some(text.into()),
            ..empty
        },
    }
}

#[cfg(test)]
mod tests {
    use libcalico::store::Revision;

    use super::*;

    fn round_trip(value: &[u8]) -> String {
        let line = serde_json::to_string(&encode("/calico/k", value)).unwrap();
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(
            parse_line(&line),
            Ok(("/calico/k".into(), value.to_vec())),
            "{line}"
        );
        line
    }

    #[test]
    fn export_preserves_values_byte_for_byte() {
        assert_eq!(
            round_trip(br#"{"b":1,  "a":1.50}"#),
            r#"{"key":"/calico/k","value":{"b":1,  "a":1.50}}"#
        );
        assert!(round_trip(b"{\"a\":\n1}").contains("\"text\""));
        assert!(round_trip(b" {}").contains("\"text\""));
        assert!(round_trip(b"").contains("\"text\""));
        assert!(round_trip(b"null").contains("\"text\":\"null\""));
        assert!(round_trip(b"\xff\x00").contains("\"base64\""));
    }

    #[test]
    fn damaged_export_is_rejected_with_the_line() {
        let header = r#"{"format":"calico-export","version":1,"pairs":1}"#;
        let pair = r#"{"key":"/calico/k","value":1}"#;
        let parse_error = |text: String| parse(text.as_bytes()).unwrap_err().to_string();
        assert!(parse(format!("{header}\n{pair}\n").as_bytes()).is_ok());
        assert!(parse_error(header.into()).contains("contains 0 pairs, but its header counts 1"));
        assert!(parse_error(String::new()).contains("invalid header in the first line"));
        assert!(parse_error(header.replace(":1,", ":2,")).contains("version 2"));
        assert!(
            parse_error(format!("{header}\n{}", pair.replace("/calico", "")))
                .starts_with("line 2: key `/k` is not below")
        );
        assert!(
            parse_error(format!("{header}\n{pair}\n{pair}"))
                .starts_with("line 3: duplicate key /calico/k")
        );
        assert!(
            parse_error(format!("{header}\n{{\"key\":\"/calico/k\"}}")).contains("exactly one of")
        );
    }

    #[test]
    fn export_of_0_1_0_is_parsed_and_written_unchanged() {
        let stored = include_str!("../../../tests/formats/0.1.0/export/calico.jsonl");
        let pairs = parse(stored.as_bytes()).unwrap();
        let value = |path: &str| pairs[path].as_slice();
        assert_eq!(
            value("/calico/ipam/v2/config"),
            br#"{"strict_affinity":true,  "auto_allocate_blocks":1.50}"#
        );
        assert_eq!(value("/calico/v1/Ready"), b"true\n");
        assert_eq!(value("/calico/v1/host/node1/binary"), b"\xff\x00");
        let mut written = Vec::new();
        write_header(&mut written, pairs.len()).unwrap();
        for (path, value) in &pairs {
            let pair = RawEntry {
                path: path.clone(),
                value: value.as_slice().into(),
                revision: Revision(String::new()),
            };
            write_pair(&mut written, &pair).unwrap();
        }
        assert_eq!(str::from_utf8(&written).unwrap(), stored);
    }
}
