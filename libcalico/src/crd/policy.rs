//! Calico's four kinds of policies, and their tiers. The types have all fields of upstream's,
//! because the API server would drop any other.

#![allow(dead_code, reason = "only the schemas of the types are used")]

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::api::{
    BUILT_IN_TIERS, DEFAULT_TIER, Global, InNamespace, PolicyKind, StagedGlobal, StagedInNamespace,
    TierSpec,
};
use crate::kubernetes::ApiGroup;

/// The largest number of rules that a policy may have for one direction.
const MAX_RULES: u32 = 1024;

/// Fields that all policies have.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PolicyFields {
    /// Name of the tier; the default is `default`.
    tier: Option<String>,
    /// Order within the tier; lower values come first, a policy without an order last.
    order: Option<f64>,
    /// Rules for traffic to the endpoints, of which the first that matches decides.
    #[schemars(length(max = MAX_RULES))]
    ingress: Option<Vec<RuleFields>>,
    /// Rules for traffic from the endpoints, of which the first that matches decides.
    #[schemars(length(max = MAX_RULES))]
    egress: Option<Vec<RuleFields>>,
    /// Selector of the endpoints to which the policy applies.
    #[schemars(length(max = 1024))]
    selector: Option<String>,
    /// Directions to which the policy applies; by default those that have rules, or else ingress.
    types: Option<Vec<Direction>>,
    /// Selector of the endpoints by the labels of their service accounts.
    #[schemars(length(max = 1024))]
    service_account_selector: Option<String>,
    /// Hints that improve Felix's performance.
    performance_hints: Option<Vec<PerformanceHint>>,
}

/// Additional fields of global policies.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
struct GlobalFields {
    #[serde(flatten)]
    common: PolicyFields,
    /// Whether to apply the rules for host endpoints before connection tracking.
    do_not_track: Option<bool>,
    /// Whether to apply the rules for host endpoints before destination addresses are translated.
    #[serde(rename = "preDNAT")]
    pre_dnat: Option<bool>,
    /// Whether to apply the rules for host endpoints to forwarded traffic too.
    apply_on_forward: Option<bool>,
    /// Selector of the namespaces to which the policy applies; all by default.
    #[schemars(length(max = 1024))]
    namespace_selector: Option<String>,
}

/// Additional fields of staged policies, which are previewed and not enforced.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
struct StagedFields<P> {
    #[serde(flatten)]
    policy: P,
    /// Action that is previewed: the policy as it is here, or its deletion.
    staged_action: Option<StagedAction>,
}

#[derive(JsonSchema)]
enum StagedAction {
    /// The policy as it is here.
    Set,
    /// The deletion of the policy.
    Delete,
    /// A policy learned from the traffic.
    Learn,
    /// No action.
    Ignore,
}

#[derive(JsonSchema)]
enum Direction {
    /// To the endpoints.
    Ingress,
    /// From the endpoints.
    Egress,
}

#[derive(JsonSchema)]
enum PerformanceHint {
    /// The policy is likely to be used on every node.
    AssumeNeededOnEveryNode,
}

/// A rule.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RuleFields {
    /// Action for traffic that matches.
    action: Action,
    /// IP version to which the rule applies; both by default.
    #[schemars(extend("enum" = [4, 6]))]
    ip_version: Option<i64>,
    /// Protocol by name or number; any by default.
    protocol: Option<NumberOrText>,
    /// Type of ICMP message.
    icmp: Option<IcmpFields>,
    /// A protocol that does not match.
    not_protocol: Option<NumberOrText>,
    /// Type of ICMP message that does not match.
    #[serde(rename = "notICMP")]
    not_icmp: Option<IcmpFields>,
    /// Source of the traffic.
    source: Option<EntityFields>,
    /// Destination of the traffic.
    destination: Option<EntityFields>,
    /// HTTP request.
    http: Option<HttpFields>,
    /// Information for people about the rule.
    metadata: Option<RuleMetadata>,
}

#[derive(JsonSchema)]
enum Action {
    /// Traffic passes.
    Allow,
    /// Traffic is dropped.
    Deny,
    /// Traffic is logged, and the next rule decides.
    Log,
    /// The next tier decides.
    Pass,
}

#[derive(JsonSchema)]
struct IcmpFields {
    /// Type of the message.
    #[serde(rename = "type")]
    #[schemars(range(min = 0, max = 254))]
    kind: Option<i64>,
    /// Code of the message, within its type.
    #[schemars(range(min = 0, max = 255))]
    code: Option<i64>,
}

/// A side of a rule.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EntityFields {
    /// Networks.
    nets: Option<Vec<String>>,
    /// Selector of the endpoints.
    #[schemars(length(max = 1024))]
    selector: Option<String>,
    /// Selector of the endpoints' namespaces.
    #[schemars(length(max = 1024))]
    namespace_selector: Option<String>,
    /// Service whose endpoints match.
    services: Option<ServiceFields>,
    /// Ports, each a number, a range or a name.
    ports: Option<Vec<NumberOrText>>,
    /// Networks that do not match.
    not_nets: Option<Vec<String>>,
    /// Selector of the endpoints that do not match.
    #[schemars(length(max = 1024))]
    not_selector: Option<String>,
    /// Ports that do not match.
    not_ports: Option<Vec<NumberOrText>>,
    /// Service accounts of the endpoints.
    service_accounts: Option<AccountFields>,
}

#[derive(JsonSchema)]
struct ServiceFields {
    /// Name of the Service.
    name: Option<String>,
    /// Namespace of the Service; by default that of the policy.
    namespace: Option<String>,
}

#[derive(JsonSchema)]
struct AccountFields {
    /// Names of the accounts.
    names: Option<Vec<String>>,
    /// Selector of the accounts.
    selector: Option<String>,
}

#[derive(JsonSchema)]
struct HttpFields {
    /// Methods; any by default.
    methods: Option<Vec<String>>,
    /// Paths; any by default.
    paths: Option<Vec<PathFields>>,
}

#[derive(JsonSchema)]
struct PathFields {
    /// The whole path.
    exact: Option<String>,
    /// Beginning of the path.
    prefix: Option<String>,
}

#[derive(JsonSchema)]
struct RuleMetadata {
    /// Annotations of any kind.
    annotations: Option<BTreeMap<String, String>>,
}

/// A number or a text.
struct NumberOrText;

impl JsonSchema for NumberOrText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NumberOrText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "x-kubernetes-int-or-string": true,
        })
    }
}

pub(super) fn in_namespace(group: ApiGroup) -> Value {
    of::<InNamespace, PolicyFields>(
        group,
        "Rules for traffic to and from the endpoints of a namespace.",
    )
}

pub(super) fn global(group: ApiGroup) -> Value {
    let about = "Rules for traffic to and from host endpoints and the endpoints of all namespaces.";
    of::<Global, GlobalFields>(group, about)
}

pub(super) fn staged_in_namespace(group: ApiGroup) -> Value {
    let about =
        "A preview of a NetworkPolicy: the effect of the policy is reported, but not enforced.";
    of::<StagedInNamespace, StagedFields<PolicyFields>>(group, about)
}

pub(super) fn staged_global(group: ApiGroup) -> Value {
    let about = "A preview of a GlobalNetworkPolicy: the effect of the policy is reported, but not \
                 enforced.";
    of::<StagedGlobal, StagedFields<GlobalFields>>(group, about)
}

fn of<K: PolicyKind, S: JsonSchema>(group: ApiGroup, about: &'static str) -> Value {
    let policy = CustomResource::new::<S>(group, K::KIND, K::PLURAL, about)
        .selectable(".spec.tier")
        .spec(|spec| {
            spec.at("tier").default(DEFAULT_TIER);
            spec.at("types").set("x-kubernetes-list-type", "set");
            spec.at("performanceHints")
                .set("x-kubernetes-list-type", "set");
        });
    if K::NAMESPACED {
        policy.namespaced()
    } else {
        policy
    }
    .definition
}

/// Returns the definition of Tier. The built-in tiers must keep their order and default action
/// (DS-97).
pub(super) fn tier(group: ApiGroup) -> Value {
    let about = "A group of network policies that are evaluated together.";
    let mut tier = CustomResource::new::<TierSpec>(group, "Tier", "tiers", about)
        .column(
            "Order",
            "integer",
            ".spec.order",
            "Order of evaluation; lower values come first",
        )
        .column(
            "DefaultAction",
            "string",
            ".spec.defaultAction",
            "Action for traffic that no rule matches",
        )
        .column(
            "Status",
            "string",
            ".status.conditions[?(@.type=='Ready')].reason",
            "Reason of the condition Ready",
        )
        .conditions()
        .spec(|spec| {
            spec.at("defaultAction").default("Deny");
        });
    for (name, action, order) in BUILT_IN_TIERS {
        let has_value = |field: &str, value: &str| {
            format!(
                "self.metadata.name != '{name}' || (has(self.spec.{field}) && self.spec.{field} == \
                 {value})"
            )
        };
        let has_action = has_value("defaultAction", &format!("'{action}'"));
        tier = tier
            .rule(
                &has_action,
                &format!("the tier {name} must have the default action {action}"),
            )
            .rule(
                &has_value("order", &format!("{order}.0")),
                &format!("the tier {name} must have the order {order}"),
            );
    }
    tier.definition
}
