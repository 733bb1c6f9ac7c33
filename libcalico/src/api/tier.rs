//! Tier: an ordered group of policies.

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::{Object, Unknown};

/// An ordered group of policies.
pub type Tier = Object<TierSpec>;

/// Name, default action and order of the built-in tiers (DS-51).
pub const BUILT_IN_TIERS: [(&str, &str, u32); 3] = [
    ("default", "Deny", 1_000_000),
    ("kube-admin", "Pass", 1_000),
    ("kube-baseline", "Pass", 10_000_000),
];

/// `spec` of Tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TierSpec {
    /// Order of the tier; lower values come first, a tier without an order last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Number>,
    /// Action for traffic that the tier's policies select but no rule of theirs matches: `Deny` or
    /// `Pass`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Pass", "Deny"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_action: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}
