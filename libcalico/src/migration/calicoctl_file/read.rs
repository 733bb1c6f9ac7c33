//! [`parse`]: reads a file. Nothing in an invalid file is used.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::kinds::ExportedKind;
use super::{CalicoctlFile, IpamPart, Pair, SEPARATOR};
use crate::failure::{Failure, OrFail};
use crate::ipam::{Block, BlockAffinity, Handle, IpamConfig};
use crate::store::Kind;
use crate::yaml::documents;

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
pub fn parse(text: &str) -> Result<CalicoctlFile, Failure> {
    let [resources, cluster, ipam] = parts(text)?;
    let resources = parse_resources(resources)?;
    let cluster = parse_cluster(cluster)?;
    let ReadIpam {
        block_affinities,
        blocks,
        mut handles,
        config,
    } = serde_json::from_str(ipam).map_err(|error| invalid_part("addresses", error))?;
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

fn parts(text: &str) -> Result<[&str; 3], Failure> {
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
    parts.try_into().map_err(|_| {
        Failure::new(format_args!(
            "it has {number} parts between lines of three equals signs, and 3 are necessary"
        ))
        .way_out("export again")
    })
}

fn invalid_part(content: &str, cause: impl fmt::Display) -> Failure {
    Failure::new(format_args!("the part with {content}"))
        .because(cause)
        .way_out("export again")
}

/// Returns the failure of a file whose ClusterInformation is invalid.
pub fn invalid_cluster(cause: impl fmt::Display) -> Failure {
    invalid_part("ClusterInformation", cause)
}

/// Returns the failure of a document without a list, which `calicoctl` writes despite another
/// version (MB-21).
fn no_list(document: usize) -> Failure {
    Failure::new(format_args!("document {document} is not a list of objects")).way_out(
        "an export with --allow-version-mismatch of a cluster of another version lacks them: \
         export with a calicoctl of the cluster's version, or with `calico-ipam migrate export`",
    )
}

fn duplicate(name: &str) -> Failure {
    Failure::new(format_args!("two objects are called {name}")).way_out("remove one of them")
}

fn parse_resources(text: &str) -> Result<Vec<Value>, Failure> {
    let (mut resources, mut names) = (Vec::new(), BTreeSet::new());
    let (mut empty, mut has_list) = (None, false);
    let documents = documents(text).or_fail("document 1")?;
    for (index, document) in documents.enumerate() {
        // Only the last document, after the last line `---`, may be empty.
        if let Some(empty) = empty {
            return Err(no_list(empty));
        }
        let number = index + 1;
        let list = Option::<List>::deserialize(document);
        let Some(List { items }) = list.or_fail(format_args!("document {number}"))? else {
            empty = Some(number);
            continue;
        };
        has_list = true;
        for object in items.ok_or_else(|| no_list(number))? {
            let named =
                ExportedKind::of(&object).and_then(|kind| Some((kind, kind.key_of(&object)?)));
            let Some((kind, key)) = named else {
                let kind = object["kind"].as_str().unwrap_or_default();
                return Err(Failure::new(format_args!(
                    "document {number}: an object of kind {kind:?} has an unknown kind or no \
                     valid name"
                )));
            };
            if let Some(name) = names.replace(format!("{}({key})", kind.kind)) {
                return Err(duplicate(&name));
            }
            resources.push(object);
        }
    }
    if has_list {
        Ok(resources)
    } else {
        Err(no_list(1))
    }
}

fn parse_cluster(text: &str) -> Result<Value, Failure> {
    let cluster: Value = serde_json::from_str(text).map_err(invalid_cluster)?;
    if cluster["kind"] != "ClusterInformation" {
        return Err(invalid_cluster("it is not a ClusterInformation"));
    }
    if cluster["spec"]["clusterGUID"]
        .as_str()
        .is_none_or(str::is_empty)
    {
        return Err(invalid_cluster("it has no spec.clusterGUID"));
    }
    Ok(cluster)
}

/// Returns the pairs with canonical paths.
fn checked<K: Kind>(mut pairs: Vec<Pair>) -> Result<Vec<Pair>, Failure> {
    let mut paths = BTreeSet::new();
    for pair in &mut pairs {
        let Some(key) = K::parse_path(&pair.path) else {
            return Err(Failure::new(format_args!(
                "{}: invalid key {:?}",
                K::KIND,
                pair.path
            )));
        };
        pair.path = K::path(&key);
        if let Some(path) = paths.replace(pair.path.clone()) {
            return Err(duplicate(&path));
        }
    }
    Ok(pairs)
}
