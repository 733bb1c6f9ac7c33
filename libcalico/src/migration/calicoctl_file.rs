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

use crate::failure::Failure;

pub use self::compare::{Comparison, compare};
pub use self::kinds::{ExportedKind, KINDS};
pub use self::of_pairs::{is_exported, of_pairs, omitted_plural};
pub use self::read::{invalid_cluster, parse};

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

/// Returns the failure of a value that is not an object of its kind.
pub fn invalid_object(path: &str) -> Failure {
    Failure::new(format_args!("{path} is not a valid object")).way_out("correct or delete it")
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
