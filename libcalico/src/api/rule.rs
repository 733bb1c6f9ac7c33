//! [`Rule`]: a rule of a policy or profile. Only the fields that our programs use are typed; all
//! other fields are kept unchanged.

use serde::{Deserialize, Serialize};

use super::{Port, Protocol, Unknown};

/// A rule of a policy or profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// `Allow`, `Deny`, `Log` or `Pass`.
    pub action: String,
    /// The protocol of the traffic; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The source of the traffic.
    #[serde(skip_serializing_if = "RuleEntity::is_anything")]
    pub source: RuleEntity,
    /// The destination of the traffic.
    #[serde(skip_serializing_if = "RuleEntity::is_anything")]
    pub destination: RuleEntity,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A side of a rule. An empty side is not written: an allow-all rule is `{"action":"Allow"}`
/// (KC-313).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleEntity {
    /// The networks that match; an empty list means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nets: Vec<String>,
    /// The selector of the endpoints that match; empty for all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The selector of the endpoints' namespaces. If it is empty and `selector` is not, only
    /// endpoints of the policy's namespace match, or endpoints of all namespaces in a global
    /// policy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace_selector: String,
    /// The ports; an empty list means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// The networks that do not match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_nets: Vec<String>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Rule {
    /// Returns a rule that allows all traffic.
    pub fn allow() -> Self {
        Rule {
            action: "Allow".into(),
            ..Rule::default()
        }
    }
}

impl RuleEntity {
    /// Returns true if this side has no conditions and so matches all traffic.
    pub fn is_anything(&self) -> bool {
        *self == RuleEntity::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_rule_fields_are_preserved_and_empty_sides_omitted() {
        let stored = json!({"action": "Deny", "ipVersion": 4, "protocol": "ICMP",
                "icmp": {"type": 8},
            "source": {"notSelector": "a == 'b'", "ports": [80, "81:82", "http"]}});
        let rule: Rule = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(&rule).unwrap(), stored);
        assert!(!rule.source.is_anything() && rule.destination.is_anything());
        // Calico before 3.30 wrote empty sides.
        let rule: Rule =
            serde_json::from_value(json!({"action": "Allow", "source": {}, "destination": {}}))
                .unwrap();
        assert_eq!(rule, Rule::allow());
        assert_eq!(
            serde_json::to_value(&rule).unwrap(),
            json!({"action": "Allow"})
        );
    }
}
