//! [`Rule`]: one rule of a policy or profile (DS-99). What this program looks at is typed, the rest is kept.

use serde::{Deserialize, Serialize};

use super::{Port, Protocol, Unknown};

/// One rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// `Allow`, `Deny`, `Log` or `Pass`.
    pub action: String,
    /// Of which protocol the traffic is; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Where the traffic comes from.
    #[serde(skip_serializing_if = "RuleEntity::is_anything")]
    pub source: RuleEntity,
    /// Where it goes.
    #[serde(skip_serializing_if = "RuleEntity::is_anything")]
    pub destination: RuleEntity,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One side of a rule. An empty one is not written: an allow-all rule is `{"action":"Allow"}` (KC-313).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleEntity {
    /// Networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nets: Vec<String>,
    /// Endpoints, by label.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// Namespaces of the endpoints, by label; empty in a policy of a namespace stands for that namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace_selector: String,
    /// Ports; none listed means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Networks that are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_nets: Vec<String>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Rule {
    /// A rule that allows everything.
    pub fn allow() -> Self {
        Rule { action: "Allow".into(), ..Rule::default() }
    }
}

impl RuleEntity {
    /// Whether it leaves nothing out.
    pub fn is_anything(&self) -> bool {
        *self == RuleEntity::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_known_is_kept_and_empty_sides_are_not_written() {
        let stored = json!({"action": "Deny", "ipVersion": 4, "protocol": "ICMP", "icmp": {"type": 8},
            "source": {"notSelector": "a == 'b'", "ports": [80, "81:82", "http"]}});
        let rule: Rule = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(&rule).unwrap(), stored);
        assert!(!rule.source.is_anything() && rule.destination.is_anything());
        // As Calico before 3.30 wrote it.
        let rule: Rule = serde_json::from_value(json!({"action": "Allow", "source": {}, "destination": {}})).unwrap();
        assert_eq!(rule, Rule::allow());
        assert_eq!(serde_json::to_value(&rule).unwrap(), json!({"action": "Allow"}));
    }
}
