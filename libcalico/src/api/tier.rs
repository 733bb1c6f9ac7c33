//! Tier: a rank of policies; `init` creates the three built-in ones (DS-51).

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::{Object, Spec, Unknown};

/// a rank of policies; `init` creates the three built-in ones (DS-51).
pub type Tier = Object<TierSpec>;

/// `spec` of Tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TierSpec {
    /// Rank; lower comes first, a tier without one last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Number>,
    /// What becomes of traffic that the tier's policies select and no rule of theirs matches: `Deny` or `Pass`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Pass", "Deny"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_action: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Spec for TierSpec {
    const KIND: &'static str = "Tier";
    const PLURAL: &'static str = "tiers";
}
