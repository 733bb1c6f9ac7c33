//! Projections: the fields of each watched object that a controller reads, selected while the object is decoded.

mod metadata;
mod pod;
mod specs;

pub use metadata::{Namespace, Node, ServiceAccount, WatchedVm, WatchedVmi};
pub use pod::{AddressAnnotations, Pod};
pub use specs::{NetworkPolicy, Service};

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;

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
    /// Returns the object's namespace and name.
    fn name(&self) -> &ObjectKey;
    /// Reads the projection from an object's JSON.
    fn project(json: &str, strings: &mut StringInterner, options: ProjectionOptions)
    -> Result<Self, serde_json::Error>;
}

/// Optional parts of the projections, kept only if a controller needs them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProjectionOptions {
    /// Whether to keep labels and service accounts of pods, which are copied to workload endpoints (etcd only).
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

/// The part of an object's JSON that identifies the object.
#[derive(Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(Deserialize)]
struct Name {
    #[serde(default)]
    namespace: Option<String>,
    name: String,
}

/// Returns the namespace and the name of an object's JSON.
pub(crate) fn object_key(json: &str) -> Result<ObjectKey, serde_json::Error> {
    let Named { metadata: Name { namespace, name } } = serde_json::from_str(json)?;
    Ok(ObjectKey { namespace, name })
}

/// Interns strings that many objects share, such as node names.
#[derive(Debug, Default)]
pub struct StringInterner {
    interned: HashSet<Arc<str>>,
    /// Number of strings left after the last removal of unused strings.
    swept: usize,
}

/// Number of strings below which unused ones are not removed.
const MIN_SWEPT: usize = 1024;

impl StringInterner {
    /// Returns the shared copy of `word`.
    pub fn share(&mut self, word: &str) -> Arc<str> {
        if let Some(shared) = self.interned.get(word) {
            return shared.clone();
        }
        if self.interned.len() >= (2 * self.swept).max(MIN_SWEPT) {
            self.interned.retain(|word| Arc::strong_count(word) > 1);
            self.swept = self.interned.len();
        }
        let word: Arc<str> = word.into();
        self.interned.insert(word.clone());
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_interned_strings_are_dropped() {
        let mut strings = StringInterner::default();
        let kept: Vec<Arc<str>> = (0..10).map(|n| strings.share(&format!("kept{n}"))).collect();
        for n in 0..10 * MIN_SWEPT {
            strings.share(&format!("passing{n}"));
        }
        assert!(strings.interned.len() <= MIN_SWEPT, "{}", strings.interned.len());
        for word in &kept {
            assert!(Arc::ptr_eq(word, &strings.share(word)));
        }
    }
}
