//! Calico's four kinds of policies (DS-98, DS-99). A rule's fields are more than this program looks at; all of them are
//! here, or the API server would drop them.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::api::{DEFAULT_TIER, Global, InNamespace, PolicyKind, StagedGlobal, StagedInNamespace};
use crate::kubernetes::ApiGroup;

/// Most rules that a policy may have for one direction.
const MAX_RULES: u32 = 1024;

/// What all policies have.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only the schema is used")]
struct PolicyFields {
    /// Name of the tier; `default` if left out.
    tier: Option<String>,
    /// Rank within the tier; lower comes first, a policy without one last.
    order: Option<f64>,
    /// Rules for traffic to the endpoints, of which the first that matches decides.
    #[schemars(length(max = MAX_RULES))]
    ingress: Option<Vec<RuleFields>>,
    /// Rules for traffic from the endpoints, of which the first that matches decides.
    #[schemars(length(max = MAX_RULES))]
    egress: Option<Vec<RuleFields>>,
    /// Which endpoints the policy is for.
    #[schemars(length(max = 1024))]
    selector: Option<String>,
    /// For which directions of traffic; if left out, those that have rules, or else ingress.
    types: Option<Vec<Direction>>,
    /// Which endpoints, by the labels of their service accounts.
    #[schemars(length(max = 1024))]
    service_account_selector: Option<String>,
    /// What helps Felix to be fast.
    performance_hints: Option<Vec<Hint>>,
}

/// What policies have that are for all namespaces.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only the schema is used")]
struct GlobalFields {
    #[serde(flatten)]
    common: PolicyFields,
    /// Rules for host endpoints that are applied before connection tracking.
    do_not_track: Option<bool>,
    /// Rules for host endpoints that are applied before addresses are translated.
    #[serde(rename = "preDNAT")]
    pre_dnat: Option<bool>,
    /// Rules for host endpoints that are applied to forwarded traffic too.
    apply_on_forward: Option<bool>,
    /// Which namespaces the policy is for; all if left out.
    #[schemars(length(max = 1024))]
    namespace_selector: Option<String>,
}

/// What policies have that are only watched.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only the schema is used")]
struct StagedFields<P> {
    #[serde(flatten)]
    policy: P,
    /// What is tried out: the policy as it is here, or its absence.
    staged_action: Option<StagedAction>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
enum StagedAction {
    /// The policy as it is here.
    Set,
    /// Its absence.
    Delete,
    /// What was learned of the traffic.
    Learn,
    /// Nothing.
    Ignore,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
enum Direction {
    /// To the endpoints.
    Ingress,
    /// From the endpoints.
    Egress,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
enum Hint {
    /// The policy is likely to be used on every node.
    AssumeNeededOnEveryNode,
}

/// One rule.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only the schema is used")]
struct RuleFields {
    /// What becomes of traffic that matches.
    action: Action,
    /// IP version that the rule is for; both if left out.
    #[schemars(extend("enum" = [4, 6]))]
    ip_version: Option<i64>,
    /// Protocol by name or number; any if left out.
    protocol: Option<NumberOrText>,
    /// Kind of ICMP message.
    icmp: Option<IcmpFields>,
    /// A protocol that does not match.
    not_protocol: Option<NumberOrText>,
    /// A kind of ICMP message that does not match.
    #[serde(rename = "notICMP")]
    not_icmp: Option<IcmpFields>,
    /// Where the traffic comes from.
    source: Option<EntityFields>,
    /// Where the traffic goes.
    destination: Option<EntityFields>,
    /// What is asked for by HTTP.
    http: Option<HttpFields>,
    /// What people say of the rule.
    metadata: Option<RuleMetadata>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
enum Action {
    /// It passes.
    Allow,
    /// It is dropped.
    Deny,
    /// It is logged, and the next rule decides.
    Log,
    /// The next tier decides.
    Pass,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
struct IcmpFields {
    /// Type of the message.
    #[serde(rename = "type")]
    #[schemars(range(min = 0, max = 254))]
    kind: Option<i64>,
    /// Code of the message, within its type.
    #[schemars(range(min = 0, max = 255))]
    code: Option<i64>,
}

/// One side of a rule.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only the schema is used")]
struct EntityFields {
    /// Networks.
    nets: Option<Vec<String>>,
    /// Endpoints, by label.
    #[schemars(length(max = 1024))]
    selector: Option<String>,
    /// Namespaces of the endpoints, by label.
    #[schemars(length(max = 1024))]
    namespace_selector: Option<String>,
    /// A Service, whose endpoints are meant.
    services: Option<ServiceFields>,
    /// Ports, each a number, a range or a name.
    ports: Option<Vec<NumberOrText>>,
    /// Networks that do not match.
    not_nets: Option<Vec<String>>,
    /// Endpoints that do not match, by label.
    #[schemars(length(max = 1024))]
    not_selector: Option<String>,
    /// Ports that do not match.
    not_ports: Option<Vec<NumberOrText>>,
    /// Endpoints, by their service accounts.
    service_accounts: Option<AccountFields>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
struct ServiceFields {
    /// Name of the Service.
    name: Option<String>,
    /// Its namespace; that of the policy if left out.
    namespace: Option<String>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
struct AccountFields {
    /// Names of the accounts.
    names: Option<Vec<String>>,
    /// Accounts, by label.
    selector: Option<String>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
struct HttpFields {
    /// Methods; any if left out.
    methods: Option<Vec<String>>,
    /// Paths; any if left out.
    paths: Option<Vec<PathFields>>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
struct PathFields {
    /// The whole path.
    exact: Option<String>,
    /// How the path begins.
    prefix: Option<String>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
struct RuleMetadata {
    /// Pairs of any kind.
    annotations: Option<BTreeMap<String, String>>,
}

/// A number, or text.
struct NumberOrText;

impl JsonSchema for NumberOrText {
    fn inline_schema() -> bool {
        true
    }

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

/// NetworkPolicy.
pub(super) fn in_namespace(group: ApiGroup) -> Value {
    of::<InNamespace, PolicyFields>(group, "What endpoints of a namespace may reach, and what may reach them.")
}

/// GlobalNetworkPolicy.
pub(super) fn global(group: ApiGroup) -> Value {
    of::<Global, GlobalFields>(group, "What endpoints of any namespace may reach, and what may reach them.")
}

/// StagedNetworkPolicy.
pub(super) fn staged_in_namespace(group: ApiGroup) -> Value {
    let about = "A NetworkPolicy that is tried out: what it would do is told, and not done.";
    of::<StagedInNamespace, StagedFields<PolicyFields>>(group, about)
}

/// StagedGlobalNetworkPolicy.
pub(super) fn staged_global(group: ApiGroup) -> Value {
    let about = "A GlobalNetworkPolicy that is tried out: what it would do is told, and not done.";
    of::<StagedGlobal, StagedFields<GlobalFields>>(group, about)
}

fn of<K: PolicyKind, S: JsonSchema>(group: ApiGroup, about: &'static str) -> Value {
    let policy = CustomResource::new::<S>(group, K::KIND, K::PLURAL, about).selectable(".spec.tier").spec(|spec| {
        spec.at("tier").default(DEFAULT_TIER);
        spec.at("types").set("x-kubernetes-list-type", "set");
        spec.at("performanceHints").set("x-kubernetes-list-type", "set");
    });
    if K::NAMESPACED { policy.namespaced() } else { policy }.definition()
}
