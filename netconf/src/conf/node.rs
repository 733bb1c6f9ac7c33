//! The name of the node, and the conditions that ADD waits for.

use crate::decode::{DecodeError, FromObject, Node, Object};

/// The name of the node: the first that is set of `nodename`, the content of `nodename_file`, `hostname` and the host's
/// name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default))]
pub struct NodeConf {
    /// Name of this node; takes precedence over every other source. Read by ADD, DEL, CHECK, STATUS, GC.
    pub nodename: String,

    /// File with the name of this node, which calico-node writes. Read by ADD, DEL, CHECK, STATUS, GC.
    pub nodename_file: String,

    /// Whether to accept a missing `nodename_file`. With `datastore_type` `local` it may always be missing, because no
    /// program writes it there. Read by ADD, DEL, STATUS.
    pub nodename_file_optional: bool,

    /// File that the IPAM processes of this node lock, so that they run in turn. Read by ADD, DEL with `calico-ipam`.
    pub ipam_lock_file: String,

    /// Deprecated: use `nodename`. Used after `nodename` and `nodename_file`. Read by ADD, DEL, CHECK, STATUS, GC.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    pub hostname: String,
}

/// Conditions that ADD waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default))]
pub struct ReadinessConf {
    /// HTTP URLs that must return a success before ADD starts. Read by ADD.
    pub readiness_gates: Vec<String>,

    /// Seconds to wait until Felix has programmed the policy of the new endpoint; 0 disables the wait. Read by ADD in
    /// Kubernetes.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 2147483647)))]
    pub policy_setup_timeout_seconds: u32,

    /// Directory in which Felix lists the endpoints that are ready. Read by ADD in Kubernetes.
    pub endpoint_status_dir: String,
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

impl Default for ReadinessConf {
    fn default() -> ReadinessConf {
        ReadinessConf {
            readiness_gates: Vec::new(),
            policy_setup_timeout_seconds: 0,
            endpoint_status_dir: "/var/run/calico/endpoint-status".to_owned(),
        }
    }
}

impl FromObject for NodeConf {
    fn from_object(object: &Object<'_>) -> Result<NodeConf, DecodeError> {
        Ok(NodeConf {
            nodename: object.read_or_default("nodename")?,
            nodename_file: object.read_nonempty("nodename_file")?.unwrap_or(NodeConf::default().nodename_file),
            nodename_file_optional: object.read_or_default("nodename_file_optional")?,
            ipam_lock_file: object.read_nonempty("ipam_lock_file")?.unwrap_or(NodeConf::default().ipam_lock_file),
            hostname: object.read_or_default("hostname")?,
        })
    }
}

impl FromObject for ReadinessConf {
    fn from_object(object: &Object<'_>) -> Result<ReadinessConf, DecodeError> {
        let timeout =
            object.read_with("policy_setup_timeout_seconds", |node| node.integer(0..=i32::MAX.unsigned_abs()))?;
        Ok(ReadinessConf {
            readiness_gates: object.read_with("readiness_gates", read_gates)?.unwrap_or_default(),
            policy_setup_timeout_seconds: timeout.unwrap_or_default(),
            endpoint_status_dir: object
                .read_nonempty("endpoint_status_dir")?
                .unwrap_or(ReadinessConf::default().endpoint_status_dir),
        })
    }
}

/// Checks the URLs while decoding. Upstream detects an invalid URL only when it is about to poll it (CNI-77).
fn read_gates(node: &Node<'_>) -> Result<Vec<String>, DecodeError> {
    const WANT: &str = "an http:// or https:// URL";
    node.items(|gate| {
        let url = gate.text(WANT)?;
        let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        match host {
            Some(host) if !host.is_empty() && !host.starts_with(['/', '?', '#']) => Ok(url.to_owned()),
            _ => Err(gate.bad_value(WANT)),
        }
    })
}
