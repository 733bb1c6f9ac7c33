//! Calico's four kinds of policies, which have the same fields as far as this code uses them.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::meta::DEFAULT_TIER;
use super::{Object, Rule, Spec, Unknown};

/// A policy for endpoints of one namespace.
pub type NetworkPolicy = Object<PolicySpec<InNamespace>>;
/// A policy for endpoints of the whole cluster.
pub type GlobalNetworkPolicy = Object<PolicySpec<Global>>;
/// A policy for endpoints of one namespace. It is only previewed, not enforced.
pub type StagedNetworkPolicy = Object<PolicySpec<StagedInNamespace>>;
/// A policy for endpoints of the whole cluster. It is only previewed, not enforced.
pub type StagedGlobalNetworkPolicy = Object<PolicySpec<StagedGlobal>>;

/// `spec` of a policy of the kind `K`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, bound = "")]
pub struct PolicySpec<K: PolicyKind> {
    /// The name of the tier; empty for `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tier: String,
    /// The order within the tier; lower values come first, a policy without an order last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Number>,
    /// Rules for traffic to the endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<Rule>,
    /// Rules for traffic from the endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<Rule>,
    /// The selector of the endpoints.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The directions of traffic to which the policy applies: `Ingress`, `Egress`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
    /// The kind of the policy; not stored.
    #[serde(skip)]
    pub kind: PhantomData<K>,
}

/// The properties in which the four kinds differ.
pub trait PolicyKind: fmt::Debug + Clone + Default + PartialEq + Send + Sync + 'static {
    /// The name of the kind, such as `NetworkPolicy`.
    const KIND: &'static str;
    /// The lower-case plural, such as `networkpolicies`.
    const PLURAL: &'static str;
    /// True if objects of the kind are namespaced.
    const NAMESPACED: bool = false;
}

/// NetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InNamespace;

/// GlobalNetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Global;

/// StagedNetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StagedInNamespace;

/// StagedGlobalNetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StagedGlobal;

impl PolicyKind for InNamespace {
    const KIND: &'static str = "NetworkPolicy";
    const PLURAL: &'static str = "networkpolicies";
    const NAMESPACED: bool = true;
}

impl PolicyKind for Global {
    const KIND: &'static str = "GlobalNetworkPolicy";
    const PLURAL: &'static str = "globalnetworkpolicies";
}

impl PolicyKind for StagedInNamespace {
    const KIND: &'static str = "StagedNetworkPolicy";
    const PLURAL: &'static str = "stagednetworkpolicies";
    const NAMESPACED: bool = true;
}

impl PolicyKind for StagedGlobal {
    const KIND: &'static str = "StagedGlobalNetworkPolicy";
    const PLURAL: &'static str = "stagedglobalnetworkpolicies";
}

impl<K: PolicyKind> Spec for PolicySpec<K> {
    const KIND: &'static str = K::KIND;
    const PLURAL: &'static str = K::PLURAL;
    const NAMESPACED: bool = K::NAMESPACED;

    fn tier(&self) -> Option<&str> {
        Some(if self.tier.is_empty() {
            DEFAULT_TIER
        } else {
            &self.tier
        })
    }
}
