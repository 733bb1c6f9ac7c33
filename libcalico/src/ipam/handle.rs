//! [`Handle`]: in which blocks a container holds addresses, and how many at most (IPAM-73, IPAM-75).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::block::null_as_empty;
use crate::api::Unknown;
use crate::net::Cidr;
use crate::store::Kind;

/// The stored handle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Handle {
    /// Block to number of addresses; an upper bound of the truth.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub block: BTreeMap<Cidr, i64>,
    /// Tombstone (Kubernetes datastore only).
    #[serde(default)]
    pub deleted: bool,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Name of a handle, `<network>.<container id>` for a container (IPAM-22).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(String);

impl HandleId {
    /// Cuts at the first carriage return: an old migration stored ids with a tail of them (IPAM-58).
    pub fn new(id: impl AsRef<str>) -> Self {
        let id = id.as_ref();
        HandleId(id.split('\r').next().unwrap_or_default().to_owned())
    }

    /// The handle of a container on a network (IPAM-22).
    pub fn for_container(network: &str, container_id: &str) -> Self {
        HandleId::new(format!("{network}.{container_id}"))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const ROOT: &str = "/calico/ipam/v2/handle/";

impl Kind for Handle {
    const KIND: &'static str = "IPAMHandle";
    type Key = HandleId;
    type Select = ();

    fn path(key: &HandleId) -> String {
        format!("{ROOT}{key}")
    }

    fn parse_path(path: &str) -> Option<HandleId> {
        let id = path.strip_prefix(ROOT)?;
        (!id.is_empty()).then(|| HandleId(id.to_owned()))
    }

    fn prefix(_: &()) -> String {
        ROOT.to_owned()
    }
}
