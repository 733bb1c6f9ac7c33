//! [`Kind`]: a kind of stored object, with its key and its encoding.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The compare-and-swap token of one stored object. It is opaque; equal tokens mean an unchanged
/// object (IPAM-175).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision(pub String);

impl Revision {
    /// Returns the part that an object's `metadata.resourceVersion` shows. The rest is data of the
    /// Kubernetes store.
    pub fn resource_version(&self) -> &str {
        self.0
            .split_once('@')
            .map_or(&self.0, |(version, _)| version)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A kind of stored object, with its key and its encoding.
pub trait Kind: Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static {
    /// The name of the kind, such as `IPPool` or `IPAMBlock`.
    const KIND: &'static str;
    /// The name of one object of this kind.
    type Key: Clone + fmt::Debug + fmt::Display + PartialEq + Eq + std::hash::Hash + Send + Sync;
    /// The filter for lists of this kind.
    type Select;

    /// Returns the full path of one object (DS-24, DS-25).
    fn path(key: &Self::Key) -> String;
    /// Returns the key that [`Kind::path`] converts to this path. Lists skip other paths (DS-42).
    fn parse_path(path: &str) -> Option<Self::Key>;
    /// Returns the path prefix that covers a selection.
    fn prefix(select: &Self::Select) -> String;
    /// Returns true if this value may be stored under `key`.
    fn belongs_to(&self, _key: &Self::Key) -> bool {
        true
    }
    /// Sets `metadata.resourceVersion`, if the kind has that field.
    fn set_revision(&mut self, _revision: &Revision) {}
    /// Returns the bytes to store, without the fields that the store itself maintains.
    fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
    /// Decodes stored bytes. On `Err` a get of the object fails, and most lists skip the entry
    /// (DS-42).
    fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
    /// Decodes a stored value that is parsed already. The result is that of [`Kind::decode`] for
    /// the bytes of the value.
    fn from_json(value: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(value)
    }
}

/// An object as read.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<K: Kind> {
    /// The object's name.
    pub key: K::Key,
    /// The object.
    pub value: K,
    /// The revision to compare when the object is written back.
    pub revision: Revision,
}
