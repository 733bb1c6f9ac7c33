//! Converts a Kubernetes NetworkPolicy to Calico's, as upstream does, except for a policy with an
//! invalid CIDR or port.
//!
//! A policy must not allow more than it states, so a rule with an invalid CIDR is left out
//! (KC-307). Upstream turns a peer with such a CIDR into one for all addresses, and drops invalid
//! exceptions. A rule with an invalid port is left out, too, while upstream's kube-controllers
//! drops the whole policy.

mod peers;
mod ports;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Number;

use self::peers::{SelectorTarget, peers, selector};
use self::ports::by_protocol;
pub use self::ports::simplify_ports;
use crate::api::{
    DEFAULT_TIER, InNamespace, PolicySpec, PortParseError, Protocol, Rule, RuleEntity,
};
use crate::kubernetes::{NetworkPolicySpec, PolicyPeer, PolicyPort};
use crate::net::CidrParseError;

/// The order of every converted policy within its tier.
const ORDER: u16 = 1000;

/// The prefix of the names of policies that are converted from Kubernetes (KC-008).
pub const POLICY_PREFIX: &str = "knp.default.";

/// A Calico policy, and the Kubernetes rules that are not part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertedPolicy {
    /// The policy, with all rules that could be converted.
    pub spec: PolicySpec<InNamespace>,
    /// The rules that could not be converted and therefore allow no traffic.
    pub rejected_rules: Vec<RejectedRule>,
}

/// A rule that could not be converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedRule {
    /// The direction whose list contains the rule.
    pub direction: Direction,
    /// The index of the rule in the policy's list for that direction.
    pub index: usize,
    /// The reason.
    pub problem: RuleProblem,
}

/// The direction of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the pods.
    Ingress,
    /// From the pods.
    Egress,
}

/// The reason why a rule cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// An invalid port.
    #[error("failed to parse k8s port: invalid port {text}: {problem}")]
    Port {
        /// The entry's port as text, or its range.
        text: String,
        /// The parser's error.
        problem: PortParseError,
    },
    /// An invalid network, or an invalid exception of a network.
    #[error("cannot parse the network of an ipBlock: {0}")]
    Network(#[from] CidrParseError),
}

/// Converts the `spec` of a policy.
pub fn network_policy(policy: &NetworkPolicySpec) -> ConvertedPolicy {
    let mut rejected_rules = Vec::new();
    let ingress = policy
        .ingress
        .iter()
        .map(|rule| (rule.from.as_slice(), rule.ports.as_slice()));
    let egress = policy
        .egress
        .iter()
        .map(|rule| (rule.to.as_slice(), rule.ports.as_slice()));
    let spec = PolicySpec {
        tier: DEFAULT_TIER.into(),
        order: Some(Number::from(ORDER)),
        ingress: rules(Direction::Ingress, ingress, &mut rejected_rules),
        egress: rules(Direction::Egress, egress, &mut rejected_rules),
        selector: selector(policy.pod_selector.as_ref(), SelectorTarget::Pods),
        types: types(&policy.policy_types),
        ..PolicySpec::default()
    };
    ConvertedPolicy {
        spec,
        rejected_rules,
    }
}

/// Returns the directions of a policy: ingress if it lists no known one, even if it has egress
/// rules (KC-303).
fn types(given: &[String]) -> Vec<String> {
    let named = [Direction::Ingress, Direction::Egress].map(|direction| direction.to_string());
    let listed: Vec<String> = named
        .into_iter()
        .filter(|name| given.contains(name))
        .collect();
    if listed.is_empty() {
        vec![Direction::Ingress.to_string()]
    } else {
        listed
    }
}

fn rules<'r>(
    direction: Direction,
    given: impl Iterator<Item = (&'r [PolicyPeer], &'r [PolicyPort])>,
    rejected_rules: &mut Vec<RejectedRule>,
) -> Vec<Rule> {
    let mut all = Vec::new();
    for (index, (peers, ports)) in given.enumerate() {
        match rule(direction, peers, ports) {
            Ok(rules) => all.extend(rules),
            Err(problem) => rejected_rules.push(RejectedRule {
                direction,
                index,
                problem,
            }),
        }
    }
    all
}

/// Returns one Calico rule for each pair of a protocol and a peer.
fn rule(
    direction: Direction,
    given: &[PolicyPeer],
    ports: &[PolicyPort],
) -> Result<Vec<Rule>, RuleProblem> {
    let peers = peers(given)?;
    let mut rules = Vec::new();
    for (protocol, ports) in by_protocol(ports)? {
        let protocol = (!protocol.is_empty()).then(|| Protocol::parse(&protocol));
        for peer in &peers {
            let peer = peer.clone();
            let (source, destination) = match direction {
                Direction::Ingress => (
                    peer,
                    RuleEntity {
                        ports: ports.clone(),
                        ..RuleEntity::default()
                    },
                ),
                Direction::Egress => (
                    RuleEntity::default(),
                    RuleEntity {
                        ports: ports.clone(),
                        ..peer
                    },
                ),
            };
            rules.push(Rule {
                protocol: protocol.clone(),
                source,
                destination,
                ..Rule::allow()
            });
        }
    }
    Ok(rules)
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Ingress => "Ingress",
            Direction::Egress => "Egress",
        })
    }
}

impl fmt::Display for RejectedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = self.direction.to_string().to_lowercase();
        write!(f, "{list}[{}]: {}", self.index, self.problem)
    }
}
