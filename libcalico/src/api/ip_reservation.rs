//! IPReservation: ranges that automatic assignment leaves alone (IPAM-101).

use serde::{Deserialize, Serialize};

use super::{Object, Spec, Unknown};

/// ranges that automatic assignment leaves alone (IPAM-101).
pub type IpReservation = Object<IpReservationSpec>;

/// `spec` of IPReservation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpReservationSpec {
    /// CIDRs or bare addresses; malformed ones are skipped with a warning (IPAM-101).
    #[serde(rename = "reservedCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub reserved_cidrs: Vec<String>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Spec for IpReservationSpec {
    const KIND: &'static str = "IPReservation";
    const PLURAL: &'static str = "ipreservations";
}
