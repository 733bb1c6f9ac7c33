//! [`of_pairs`]: makes the content of a file out of etcd's pairs.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::kinds::{ExportedKind, KINDS, plural_of};
use super::rename::NodeNames;
use super::{CalicoctlFile, IpamPart, Pair, invalid_object};
use crate::api::{
    API_VERSION, ClusterInformation, DEFAULT_TIER, IpamConfiguration, ObjectKey, ObjectMeta,
    restore_policy_name,
};
use crate::failure::Failure;
use crate::ipam::{Block, BlockAffinity, Handle, HandleId, IpamConfig, IpamConfigKey};
use crate::store::Kind;

/// The beginning of the names of policies that kube-controllers derives from Kubernetes' own
/// policies.
const DERIVED_POLICY: &str = "knp.default.";

/// Fields that the target sets.
const SERVER_FIELDS: [&str; 5] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// Returns true for the path of a pair that a file contains.
pub fn is_exported(path: &str) -> bool {
    let is_ipam = BlockAffinity::parse_path(path).is_some()
        || Block::parse_path(path).is_some()
        || Handle::parse_path(path).is_some()
        || IpamConfig::parse_path(path).is_some();
    is_ipam || is_cluster(path) || is_settings(path) || kind_of(path).is_some()
}

/// Returns the plural of the kind of a v3 object that no file contains, such as
/// `workloadendpoints`.
pub fn omitted_plural(path: &str) -> Option<&str> {
    plural_of(path).filter(|_| !is_exported(path))
}

/// Returns the content of a file, with the nodes' names in Kubernetes.
///
/// # Errors
/// If a node has no name in Kubernetes, or shares it with another node, if two objects get the same
/// path, or if a pair is invalid.
pub fn of_pairs(pairs: &[(String, Value)]) -> Result<CalicoctlFile, Failure> {
    let nodes = pairs
        .iter()
        .filter(|(path, _)| kind_of(path).is_some_and(|kind| kind.kind == "Node"));
    let names = NodeNames::of(nodes.map(|(_, node)| node))?;
    let cluster = pairs
        .iter()
        .find(|(path, _)| is_cluster(path))
        .map(|(_, value)| value.clone());
    let (mut resources, mut paths) = (Vec::new(), Paths::default());
    for kind in &KINDS {
        for (path, value) in pairs.iter().filter(|(path, _)| kind_of(path) == Some(kind)) {
            let Some(object) = resource(kind, path, value.clone(), &names)? else {
                continue;
            };
            let key = kind.key_of(&object).ok_or_else(|| invalid_object(path))?;
            paths.claim(kind.path(&key), path)?;
            resources.push(object);
        }
    }
    Ok(CalicoctlFile {
        resources,
        cluster: cluster.ok_or_else(no_cluster)?,
        ipam: ipam_part(pairs, &names)?,
    })
}

/// For each path in the file, the path in etcd. A file with two objects of one path cannot be
/// imported.
#[derive(Default)]
struct Paths(BTreeMap<String, String>);

impl Paths {
    fn claim(&mut self, path: String, in_etcd: &str) -> Result<(), Failure> {
        match self.0.insert(path.clone(), in_etcd.to_owned()) {
            None => Ok(()),
            Some(first) => Err(Failure::new(format_args!(
                "{first} and {in_etcd} would both be {path} in the file"
            ))
            .way_out("delete the one that is not in use any more")),
        }
    }
}

fn no_cluster() -> Failure {
    Failure::new("there is no ClusterInformation").way_out("name the datastore of the cluster")
}

/// Returns `None` for a policy that kube-controllers derives.
fn resource(
    kind: &ExportedKind,
    path: &str,
    mut object: Value,
    names: &NodeNames,
) -> Result<Option<Value>, Failure> {
    let invalid = || invalid_object(path);
    let tier = object["spec"]["tier"]
        .as_str()
        .filter(|tier| !tier.is_empty())
        .unwrap_or(DEFAULT_TIER)
        .to_owned();
    let metadata = object
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .ok_or_else(invalid)?;
    if kind.is_policy {
        name_policy(metadata, &tier).map_err(|_| invalid())?;
        if metadata
            .get("name")
            .and_then(Value::as_str)
            .is_some_and(|name| name.starts_with(DERIVED_POLICY))
        {
            return Ok(None);
        }
    }
    for field in SERVER_FIELDS {
        metadata.remove(field);
    }
    // The writer of the file sorts objects by these fields, and calicoctl reads them.
    object["kind"] = kind.kind.into();
    object["apiVersion"] = API_VERSION.into();
    names.rename_object(&mut object);
    Ok(Some(object))
}

/// Sets the policy's name to the one in the annotation, and removes the annotation.
fn name_policy(metadata: &mut Map<String, Value>, tier: &str) -> Result<(), serde_json::Error> {
    let mut read: ObjectMeta = serde_json::from_value(Value::Object(std::mem::take(metadata)))?;
    restore_policy_name(&mut read, tier)?;
    if let Value::Object(fields) = serde_json::to_value(read)? {
        *metadata = fields;
    }
    Ok(())
}

fn ipam_part(pairs: &[(String, Value)], names: &NodeNames) -> Result<IpamPart, Failure> {
    let mut part = IpamPart::default();
    let (mut settings, mut paths) = (None, Paths::default());
    for (path, value) in pairs {
        if let Some(key) = BlockAffinity::parse_path(path) {
            let renamed = BlockAffinity::path(&names.new_affinity(key));
            paths.claim(renamed.clone(), path)?;
            part.affinities.push(Pair {
                path: renamed,
                value: value.clone(),
            });
        } else if Block::parse_path(path).is_some() {
            let mut value = value.clone();
            names.rename_block(&mut value);
            part.blocks.push(Pair {
                path: path.clone(),
                value,
            });
        } else if let Some(id) = Handle::parse_path(path) {
            // An old migration appended carriage returns (IPAM-58), which a name on an API server
            // cannot have.
            let id = names
                .new_handle(id.as_str())
                .map_or_else(|| HandleId::new(id.as_str()), HandleId::new);
            let renamed = Handle::path(&id);
            paths.claim(renamed.clone(), path)?;
            part.handles.push(Pair {
                path: renamed,
                value: value.clone(),
            });
        } else if IpamConfig::parse_path(path).is_some() {
            part.config = Some(Pair {
                path: path.clone(),
                value: value.clone(),
            });
        } else if is_settings(path) {
            settings = Some(stored_settings(path, value)?);
        }
    }
    part.config = part.config.or(settings);
    Ok(part)
}

/// Converts the v3 object of the settings to the pair that the allocators read.
fn stored_settings(path: &str, object: &Value) -> Result<Pair, Failure> {
    let invalid = |_| invalid_object(path);
    let settings: IpamConfiguration = serde_json::from_value(object.clone()).map_err(invalid)?;
    let value = serde_json::to_value(IpamConfig::of_v3(&settings.spec)).map_err(invalid)?;
    Ok(Pair {
        path: IpamConfig::path(&IpamConfigKey),
        value,
    })
}

fn kind_of(path: &str) -> Option<&'static ExportedKind> {
    let plural = plural_of(path)?;
    KINDS.iter().find(|kind| kind.plural == plural)
}

fn is_cluster(path: &str) -> bool {
    path == ClusterInformation::path(&ObjectKey::global("default"))
}

fn is_settings(path: &str) -> bool {
    path == IpamConfiguration::path(&ObjectKey::global("default"))
}
