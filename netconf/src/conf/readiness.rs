//! The conditions that ADD waits for.

use crate::decode::{DecodeError, FromObject, Node, Object};

/// Conditions that ADD waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default)
)]
pub struct ReadinessConf {
    /// HTTP URLs that must return a success before ADD starts. Read by ADD.
    pub readiness_gates: Vec<String>,

    /// Seconds to wait until Felix has programmed the policy of the new endpoint; 0 disables the
    /// wait. For pods only. Read by ADD.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 2147483647)))]
    pub policy_setup_timeout_seconds: u32,

    /// Directory in which Felix lists the endpoints that are ready. For pods only. Read by ADD.
    pub endpoint_status_dir: String,
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

impl FromObject for ReadinessConf {
    fn from_object(object: &Object<'_>) -> Result<ReadinessConf, DecodeError> {
        let timeout = object.read_with("policy_setup_timeout_seconds", |node| {
            node.integer(0..=i32::MAX.unsigned_abs())
        })?;
        Ok(ReadinessConf {
            readiness_gates: object
                .read_with("readiness_gates", read_gates)?
                .unwrap_or_default(),
            policy_setup_timeout_seconds: timeout.unwrap_or_default(),
            endpoint_status_dir: object
                .read_nonempty("endpoint_status_dir")?
                .unwrap_or(ReadinessConf::default().endpoint_status_dir),
        })
    }
}

/// Upstream detects an invalid URL only when it is about to poll it (CNI-77).
fn read_gates(node: &Node<'_>) -> Result<Vec<String>, DecodeError> {
    const WANT: &str = "an http:// or https:// URL";
    node.items(|gate| {
        let url = gate.text(WANT)?;
        let host = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"));
        match host {
            Some(host) if !host.is_empty() && !host.starts_with(['/', '?', '#']) => {
                Ok(url.to_owned())
            }
            _ => Err(gate.bad_value(WANT)),
        }
    })
}
