//! Profile: default rules and labels for the endpoints that refer to it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Object, Rule, Unknown};

/// Default rules and labels of endpoints.
pub type Profile = Object<ProfileSpec>;

/// `spec` of a Profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProfileSpec {
    /// Rules for traffic to the endpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<Rule>,
    /// Rules for traffic from the endpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<Rule>,
    /// Labels that every endpoint of the profile inherits.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels_to_apply: BTreeMap<String, String>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}
