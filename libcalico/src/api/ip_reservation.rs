//! IPReservation: ranges from which no address is assigned automatically.

use serde::{Deserialize, Serialize};

use super::{Object, Unknown};

/// Ranges from which no address is assigned automatically.
pub type IpReservation = Object<IpReservationSpec>;

/// `spec` of IPReservation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpReservationSpec {
    /// CIDRs or single addresses; invalid entries reserve nothing (IPAM-101).
    #[serde(rename = "reservedCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub reserved_cidrs: Vec<String>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}
