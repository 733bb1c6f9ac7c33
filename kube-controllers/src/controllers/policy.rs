//! Kubernetes network policies as Calico policies.

use std::sync::Arc;

use libcalico::api::{InNamespace, NetworkPolicy, ObjectKey, PolicySpec};
use libcalico::conversion::{ConvertedPolicy, POLICY_PREFIX, RejectedRule, network_policy};
use libcalico::kubernetes::{NETWORK_POLICIES, NetworkPolicySpec, Resource};
use libcalico::validation::admit_policy;
use libcalico::validation_error::ValidationError;

use super::sync::{SyncController, SyncedKind};
use crate::settings::ControllerName;
use crate::watched;
use crate::watches::{Subscribers, Watches};

/// Synchronizes each network policy to the Calico policy `knp.default.<name>`.
pub type PolicyController = SyncController<Policies>;

/// The kind of network policies.
pub struct Policies;

impl SyncedKind for Policies {
    const NAME: &'static str = "policy";
    const CONTROLLER: ControllerName = ControllerName::Policy;
    const RESOURCE: Resource = NETWORK_POLICIES;
    const PREFIX: &'static str = POLICY_PREFIX;
    type Source = watched::NetworkPolicy;
    type Cached = Arc<NetworkPolicySpec>;
    type Target = PolicySpec<InNamespace>;

    fn watch(watches: &mut Watches) -> &mut Subscribers<watched::NetworkPolicy> {
        &mut watches.network_policies
    }

    fn uid(source: &watched::NetworkPolicy) -> &str {
        &source.uid
    }

    fn cache(source: &watched::NetworkPolicy, _: Option<&Self::Cached>) -> Self::Cached {
        Arc::new(source.spec.clone())
    }

    fn target_of(source: &ObjectKey) -> ObjectKey {
        ObjectKey {
            namespace: source.namespace.clone(),
            name: format!("{POLICY_PREFIX}{}", source.name),
        }
    }

    fn source_of(target: &ObjectKey) -> Option<ObjectKey> {
        let name = target
            .name
            .strip_prefix(POLICY_PREFIX)
            .filter(|name| !name.is_empty())?;
        Some(ObjectKey {
            namespace: target.namespace.clone(),
            name: name.into(),
        })
    }

    fn convert(_: &ObjectKey, policy: &Self::Cached) -> (Self::Target, Vec<String>) {
        let ConvertedPolicy {
            spec,
            rejected_rules,
        } = network_policy(policy);
        let left_out =
            |rule: &RejectedRule| format!("{rule}; the rule is left out and allows nothing");
        (spec, rejected_rules.iter().map(left_out).collect())
    }

    fn admit(policy: NetworkPolicy) -> Result<NetworkPolicy, ValidationError> {
        admit_policy(policy)
    }
}
