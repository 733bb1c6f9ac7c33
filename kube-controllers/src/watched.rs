//! Projections: the fields of each watched Kubernetes object that a controller reads, selected
//! while the object is decoded.

mod metadata;
mod pod;
mod specs;

pub use metadata::{Namespace, Node, ServiceAccount, WatchedVm, WatchedVmi};
pub use pod::{AddressAnnotations, Pod};
pub use specs::{NetworkPolicy, Service};

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hash;

use libcalico::api::ObjectKey;
use libcalico::store::{Entry, Kind};
use serde::Deserialize;

/// Labels, from `metadata.labels`.
pub type Labels = BTreeMap<String, String>;

/// An object that a watch delivers.
pub trait Watched: Send + Sync + 'static {
    /// Identifier of an object.
    type Key: Clone + Eq + Hash + Ord + Display + Send + Sync + 'static;
    /// The kind, for logs and metrics.
    const KIND: &'static str;
    /// Returns the key of the object.
    fn key(&self) -> Self::Key;
}

/// A Kubernetes object of which only some fields are kept.
pub trait Projection: Sized + Send + Sync + 'static {
    /// The kind, for logs and metrics.
    const OBJECT: &'static str;
    /// URL path of the list of all objects.
    const COLLECTION: &'static str;
    /// True if the projection reads the metadata alone, so that the API server need not send more.
    const METADATA_ONLY: bool = false;
    /// Returns the object's namespace and name.
    fn name(&self) -> &ObjectKey;
    /// Reads the projection from an object's JSON.
    fn project(json: &str, parts: ProjectionOptions) -> Result<Self, serde_json::Error>;
}

/// Optional parts of the projections, kept only if a controller needs them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProjectionOptions {
    /// Whether to keep labels and service accounts of pods, which are copied to workload endpoints
    /// (etcd only).
    pub pod_labels: bool,
}

impl<T: Projection> Watched for T {
    type Key = ObjectKey;
    const KIND: &'static str = T::OBJECT;

    fn key(&self) -> ObjectKey {
        self.name().clone()
    }
}

impl<K: Kind> Watched for Entry<K>
where
    K::Key: Ord + 'static,
{
    type Key = K::Key;
    const KIND: &'static str = K::KIND;

    fn key(&self) -> K::Key {
        self.key.clone()
    }
}

#[derive(Deserialize)]
struct StoredObject {
    metadata: StoredName,
}

#[derive(Deserialize)]
struct StoredName {
    #[serde(default)]
    namespace: Option<String>,
    name: String,
}

/// Returns the namespace and the name of an object's JSON.
pub(crate) fn object_key(json: &str) -> Result<ObjectKey, serde_json::Error> {
    let StoredObject {
        metadata: StoredName { namespace, name },
    } = serde_json::from_str(json)?;
    Ok(ObjectKey { namespace, name })
}
