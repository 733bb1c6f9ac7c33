//! A network policy of Kubernetes as Calico's (KC-300 … KC-313), text for text as upstream writes it.
//!
//! Two things are otherwise than upstream, both because a policy must not let through more than it says. A rule with a
//! CIDR that cannot be parsed is left out, where upstream makes it a rule for the whole world (B-06); zeros before the
//! digits of an IPv4 address are read as the API server reads them, so that this is rare. And what is left out is told
//! by [`Converted::refused`] beside all that could be converted, where upstream's controller drops the policy (B-02).

mod peers;
mod ports;
mod selector;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Number;

use self::peers::peers;
use self::ports::by_protocol;
pub use self::ports::simplify_ports;
use self::selector::{OfWhat, selector};
use crate::api::{DEFAULT_TIER, InNamespace, PolicySpec, PortParseError, Protocol, Rule, RuleEntity};
use crate::kubernetes::{NetworkPolicySpec, PolicyPeer, PolicyPort};
use crate::net::CidrParseError;

/// The rank of every converted policy (KC-301).
const ORDER: u16 = 1000;

/// What the names of policies begin with that are made of Kubernetes' (KC-008).
pub const POLICY_PREFIX: &str = "knp.default.";

/// A policy of Calico's, and what of Kubernetes' is not in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Converted {
    /// What could be converted.
    pub spec: PolicySpec<InNamespace>,
    /// Rules that could not. They allow nothing.
    pub refused: Vec<RefusedRule>,
}

/// A rule that could not be converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRule {
    /// Where it stands.
    pub direction: Direction,
    /// Which one of the list.
    pub index: usize,
    /// Why.
    pub problem: RuleProblem,
}

/// Which way traffic goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the pods.
    Ingress,
    /// From the pods.
    Egress,
}

/// What is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// A port.
    #[error("failed to parse k8s port: invalid port {text}: {problem}")]
    Port {
        /// The port as text, with the end of its range.
        text: String,
        /// Why.
        problem: PortParseError,
    },
    /// A network or an exception from it.
    #[error("failed to parse the network of an ipBlock: {0}")]
    Network(#[from] CidrParseError),
}

/// Converts the `spec` of a policy.
pub fn network_policy(policy: &NetworkPolicySpec) -> Converted {
    let mut refused = Vec::new();
    let ingress = policy.ingress.iter().map(|rule| (rule.from.as_slice(), rule.ports.as_slice()));
    let egress = policy.egress.iter().map(|rule| (rule.to.as_slice(), rule.ports.as_slice()));
    let spec = PolicySpec {
        tier: DEFAULT_TIER.into(),
        order: Some(Number::from(ORDER)),
        ingress: rules(Direction::Ingress, ingress, &mut refused),
        egress: rules(Direction::Egress, egress, &mut refused),
        selector: selector(policy.pod_selector.as_ref(), OfWhat::Pods),
        types: types(&policy.policy_types),
        ..PolicySpec::default()
    };
    Converted { spec, refused }
}

/// Always in this order. A policy that names no direction is for ingress, even if it has egress rules (KC-303).
fn types(given: &[String]) -> Vec<String> {
    let named = [Direction::Ingress, Direction::Egress].map(|direction| direction.to_string());
    let listed: Vec<String> = named.into_iter().filter(|name| given.contains(name)).collect();
    if listed.is_empty() { vec![Direction::Ingress.to_string()] } else { listed }
}

fn rules<'r>(
    direction: Direction,
    given: impl Iterator<Item = (&'r [PolicyPeer], &'r [PolicyPort])>,
    refused: &mut Vec<RefusedRule>,
) -> Vec<Rule> {
    let mut all = Vec::new();
    for (index, (peers, ports)) in given.enumerate() {
        match rule(direction, peers, ports) {
            Ok(rules) => all.extend(rules),
            Err(problem) => refused.push(RefusedRule { direction, index, problem }),
        }
    }
    all
}

/// One rule of Kubernetes' is one of Calico's for each protocol and peer, protocols first (KC-312).
fn rule(direction: Direction, given: &[PolicyPeer], ports: &[PolicyPort]) -> Result<Vec<Rule>, RuleProblem> {
    let peers = peers(given)?;
    let mut rules = Vec::new();
    for (protocol, ports) in by_protocol(ports)? {
        let protocol = (!protocol.is_empty()).then(|| Protocol::parse(&protocol));
        for peer in &peers {
            let peer = peer.clone();
            let (source, destination) = match direction {
                Direction::Ingress => (peer, RuleEntity { ports: ports.clone(), ..RuleEntity::default() }),
                Direction::Egress => (RuleEntity::default(), RuleEntity { ports: ports.clone(), ..peer }),
            };
            rules.push(Rule { protocol: protocol.clone(), source, destination, ..Rule::allow() });
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

impl fmt::Display for RefusedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        write!(f, "{list}[{}]: {}", self.index, self.problem)
    }
}
