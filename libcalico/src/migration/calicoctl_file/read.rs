//! [`parse`]: reads a file. Nothing in an invalid file is used.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::kinds::ExportedKind;
use super::{CalicoctlFile, IpamPart, Pair, SEPARATOR};
use crate::ipam::{Block, BlockAffinity, Handle, IpamConfig};
use crate::store::Kind;
use crate::yaml::documents;

/// A text that is not a complete file. Documents of the first part count from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Another number of parts.
    #[error(
        "it has {0} parts between lines of three equals signs, and 3 are necessary; export again"
    )]
    Parts(usize),
    /// The first part is not YAML.
    #[error("document {document}: {reason}")]
    Yaml {
        /// The number of the document.
        document: usize,
        /// The message of the parser.
        reason: String,
    },
    /// A document without a list, which `calicoctl` writes despite another version (MB-21).
    #[error(
        "document {0} is not a list of objects; an export with --allow-version-mismatch of a \
         cluster of another version lacks them: export with a calicoctl of the cluster's version, \
         or with `calico-ipam migrate export`"
    )]
    NoList(usize),
    /// An object without a valid name, or of a kind that no file has.
    #[error("document {document}: an object of kind {kind:?} has an unknown kind or no valid name")]
    Object {
        /// The number of the document.
        document: usize,
        /// The kind in the object.
        kind: String,
    },
    /// Two objects with one name.
    #[error("two objects are called {0}; remove one of them")]
    Duplicate(String),
    /// The second part or the third part is not the expected JSON.
    #[error("the {part}: {reason}; export again")]
    Json {
        /// The content of the part.
        part: &'static str,
        /// The message of the parser.
        reason: String,
    },
    /// A path of address management that no object of its kind has.
    #[error("{kind}: invalid key {path:?}")]
    Path {
        /// The kind.
        kind: &'static str,
        /// The path.
        path: String,
    },
}

#[derive(Deserialize)]
struct List {
    items: Option<Vec<Value>>,
}

/// A part with another key is refused: a misspelt list would count as empty, and its addresses as
/// free.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadIpam {
    #[serde(default, deserialize_with = "null_as_empty")]
    block_affinities: Vec<Pair>,
    #[serde(default, deserialize_with = "null_as_empty")]
    blocks: Vec<Pair>,
    #[serde(default, deserialize_with = "null_as_empty")]
    handles: Vec<Pair>,
    config: Option<Pair>,
}

fn null_as_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Pair>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Reads the text of a file.
///
/// # Errors
/// If the text is not a whole file, or two of its objects have the same name.
pub fn parse(text: &str) -> Result<CalicoctlFile, FileError> {
    let [resources, cluster, ipam] = parts(text)?;
    let resources = parse_resources(resources)?;
    let cluster = parse_cluster(cluster)?;
    let invalid = |error: serde_json::Error| FileError::Json {
        part: "part with addresses",
        reason: error.to_string(),
    };
    let ReadIpam {
        block_affinities,
        blocks,
        mut handles,
        config,
    } = serde_json::from_str(ipam).map_err(invalid)?;
    for handle in &mut handles {
        // An old migration appended carriage returns (IPAM-58), which a name on an API server
        // cannot have.
        handle
            .path
            .truncate(handle.path.find('\r').unwrap_or(handle.path.len()));
    }
    let ipam = IpamPart {
        affinities: checked::<BlockAffinity>(block_affinities)?,
        blocks: checked::<Block>(blocks)?,
        handles: checked::<Handle>(handles)?,
        config: checked::<IpamConfig>(config.into_iter().collect())?.pop(),
    };
    Ok(CalicoctlFile {
        resources,
        cluster,
        ipam,
    })
}

fn parts(text: &str) -> Result<[&str; 3], FileError> {
    let mut parts = Vec::new();
    let (mut start, mut end) = (0, 0);
    for line in text.split_inclusive('\n') {
        let next = end + line.len();
        if line.trim_end() == SEPARATOR {
            parts.push(&text[start..end]);
            start = next;
        }
        end = next;
    }
    parts.push(&text[start..]);
    let number = parts.len();
    parts.try_into().map_err(|_| FileError::Parts(number))
}

fn parse_resources(text: &str) -> Result<Vec<Value>, FileError> {
    let (mut resources, mut names) = (Vec::new(), BTreeSet::new());
    let (mut empty, mut has_list) = (None, false);
    let documents = documents(text).map_err(|error| FileError::Yaml {
        document: 1,
        reason: error.to_string(),
    })?;
    for (index, document) in documents.enumerate() {
        // Only the last document, after the last line `---`, may be empty.
        if let Some(empty) = empty {
            return Err(FileError::NoList(empty));
        }
        let number = index + 1;
        let invalid = |error: serde_norway::Error| FileError::Yaml {
            document: number,
            reason: error.to_string(),
        };
        let Some(List { items }) = Option::<List>::deserialize(document).map_err(invalid)? else {
            empty = Some(number);
            continue;
        };
        has_list = true;
        for object in items.ok_or(FileError::NoList(number))? {
            let named =
                ExportedKind::of(&object).and_then(|kind| Some((kind, kind.key_of(&object)?)));
            let Some((kind, key)) = named else {
                let kind = object["kind"].as_str().unwrap_or_default().to_owned();
                return Err(FileError::Object {
                    document: number,
                    kind,
                });
            };
            if let Some(name) = names.replace(format!("{}({key})", kind.kind)) {
                return Err(FileError::Duplicate(name));
            }
            resources.push(object);
        }
    }
    if has_list {
        Ok(resources)
    } else {
        Err(FileError::NoList(1))
    }
}

fn parse_cluster(text: &str) -> Result<Value, FileError> {
    let invalid = |reason: String| FileError::Json {
        part: "part with ClusterInformation",
        reason,
    };
    let cluster: Value = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
    if cluster["kind"] != "ClusterInformation" {
        return Err(invalid("it is not a ClusterInformation".into()));
    }
    if cluster["spec"]["clusterGUID"]
        .as_str()
        .is_none_or(str::is_empty)
    {
        return Err(invalid("it has no spec.clusterGUID".into()));
    }
    Ok(cluster)
}

/// Returns the pairs with canonical paths.
fn checked<K: Kind>(mut pairs: Vec<Pair>) -> Result<Vec<Pair>, FileError> {
    let mut paths = BTreeSet::new();
    for pair in &mut pairs {
        let Some(key) = K::parse_path(&pair.path) else {
            return Err(FileError::Path {
                kind: K::KIND,
                path: std::mem::take(&mut pair.path),
            });
        };
        pair.path = K::path(&key);
        if let Some(path) = paths.replace(pair.path.clone()) {
            return Err(FileError::Duplicate(path));
        }
    }
    Ok(pairs)
}
