//! The name of the node, and the file that the IPAM processes of the node lock.

use crate::decode::{DecodeError, FromObject, Object};

/// The sources of the node's name, and the lock of its IPAM processes. The name is the first of
/// these that is set: `nodename`, the content of `nodename_file`, `hostname`, the host's name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default)
)]
pub struct NodeConf {
    /// Name of this node; takes precedence over every other source. Read by ADD, DEL, CHECK,
    /// STATUS, GC.
    pub nodename: String,

    /// File with the name of this node, which calico-node writes. Read by ADD, DEL, CHECK, STATUS,
    /// GC.
    pub nodename_file: String,

    /// Whether to accept a missing `nodename_file`. With `datastore_type` `local` it may always be
    /// missing, because no program writes it there. Read by ADD, DEL, STATUS, GC.
    pub nodename_file_optional: bool,

    /// File that the IPAM processes of this node lock, so that they run in turn. Read by ADD, DEL
    /// with `calico-ipam`.
    pub ipam_lock_file: String,

    /// Deprecated: use `nodename`. Used after `nodename` and `nodename_file`. Read by ADD, DEL,
    /// CHECK, STATUS, GC.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    pub hostname: String,
}

impl Default for NodeConf {
    fn default() -> NodeConf {
        NodeConf {
            nodename: String::new(),
            nodename_file: "/var/lib/calico/nodename".to_owned(),
            nodename_file_optional: false,
            ipam_lock_file: "/var/run/calico/ipam.lock".to_owned(),
            hostname: String::new(),
        }
    }
}

impl FromObject for NodeConf {
    fn from_object(object: &Object<'_>) -> Result<NodeConf, DecodeError> {
        Ok(NodeConf {
            nodename: object.read_or_default("nodename")?,
            nodename_file: object
                .read_nonempty("nodename_file")?
                .unwrap_or(NodeConf::default().nodename_file),
            nodename_file_optional: object.read_or_default("nodename_file_optional")?,
            ipam_lock_file: object
                .read_nonempty("ipam_lock_file")?
                .unwrap_or(NodeConf::default().ipam_lock_file),
            hostname: object.read_or_default("hostname")?,
        })
    }
}
