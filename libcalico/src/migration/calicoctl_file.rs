//! [`CalicoctlFile`]: the file of `calicoctl datastore migrate`, which moves Calico's objects from
//! etcd to an API server.
//!
//! The file has three parts, with a line `===` between two of them:
//!
//! 1. the v3 objects: for each kind a list in YAML, followed by a line `---`;
//! 2. ClusterInformation, as JSON;
//! 3. affinities, blocks, handles and the settings of IPAM, as JSON: the pairs of etcd, each with
//!    its path.
//!
//! ```text
//! pairs of etcd ─▶ of_pairs ─▶ CalicoctlFile ─▶ Display ─▶ text
//!                                    ▲
//!                     text ─▶ parse ─┘
//! ```

mod compare;
mod kinds;
mod of_pairs;
mod read;
mod rename;
#[cfg(test)]
mod tests;
mod write;
mod yaml;

use serde::Deserialize;
use serde_json::Value;

pub use self::compare::{Comparison, compare};
pub use self::kinds::{ExportedKind, KINDS};
pub use self::of_pairs::{is_exported, of_pairs, omitted_plural};
pub use self::read::{FileError, parse};

/// The line between two parts.
const SEPARATOR: &str = "===";

/// The content of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct CalicoctlFile {
    /// The v3 objects, in the order of [`KINDS`] if this program made the file.
    pub resources: Vec<Value>,
    /// ClusterInformation `default`.
    pub cluster: Value,
    /// Address management.
    pub ipam: IpamPart,
}

/// The objects of address management.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IpamPart {
    /// The affinities of blocks.
    pub affinities: Vec<Pair>,
    /// The blocks.
    pub blocks: Vec<Pair>,
    /// The handles.
    pub handles: Vec<Pair>,
    /// The settings, if there are any.
    pub config: Option<Pair>,
}

/// A pair of etcd.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Pair {
    /// The path.
    #[serde(rename = "Key")]
    pub path: String,
    /// The stored value.
    #[serde(rename = "Value")]
    pub value: Value,
}

/// Pairs of which no complete file can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// There is no ClusterInformation.
    #[error("there is no ClusterInformation; name the datastore of the cluster")]
    NoCluster,
    /// A node without a name in Kubernetes. The text is upstream's up to the semicolon.
    #[error(
        "node {0} missing a 'k8s' orchestrator reference. Unable to export data unless every node \
         has a 'k8s' orchestrator reference; add it to spec.orchRefs, or delete the node if it \
         does not exist any more"
    )]
    NoReference(String),
    /// Two nodes with the same name in Kubernetes.
    #[error(
        "nodes {first} and {second} are both {name} in Kubernetes; delete the one that does not \
         exist any more"
    )]
    SameNode {
        /// The one node.
        first: String,
        /// The other node.
        second: String,
        /// The name in Kubernetes.
        name: String,
    },
    /// Two objects that get the same path, because nodes and policies have other names in a file.
    #[error(
        "{first} and {second} would both be {path} in the file; delete the one that is not in use \
         any more"
    )]
    SamePath {
        /// The path of the one object.
        first: String,
        /// The path of the other object.
        second: String,
        /// The path in the file.
        path: String,
    },
    /// A value that is not an object of its kind.
    #[error("{0} is not a valid object; correct or delete it")]
    Invalid(String),
}

impl IpamPart {
    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.affinities.len()
            + self.blocks.len()
            + self.handles.len()
            + usize::from(self.config.is_some())
    }

    /// Returns true if there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
