//! Kubernetes network policies as Calico policies.

use std::sync::Arc;

use libcalico::api::{InNamespace, NetworkPolicy, ObjectKey, PolicySpec};
use libcalico::conversion::{Converted, POLICY_PREFIX, network_policy};
use libcalico::kubernetes::{NETWORK_POLICIES, NetworkPolicySpec, Resource};
use libcalico::validation::{ValidationError, admit_policy};

use super::mirror::{Mirror, Mirrored, Reflection};
use crate::feed::{Feed, Feeds};
use crate::settings::ControllerName;
use crate::watched;

/// Synchronizes each network policy to the Calico policy `knp.default.<name>`.
pub type PolicyController = Mirror<Policies>;

/// The kind of network policies.
pub struct Policies;

impl Mirrored for Policies {
    const NAME: &'static str = "policy";
    const CONTROLLER: ControllerName = ControllerName::Policy;
    const RESOURCE: Resource = NETWORK_POLICIES;
    const PREFIX: &'static str = POLICY_PREFIX;
    type Source = watched::NetworkPolicy;
    type Kept = Arc<NetworkPolicySpec>;
    type Mirror = PolicySpec<InNamespace>;

    fn feed(feeds: &mut Feeds) -> &mut Feed<watched::NetworkPolicy> {
        &mut feeds.network_policies
    }

    fn keep(source: &watched::NetworkPolicy, _: Option<&Self::Kept>) -> Self::Kept {
        Arc::new(source.spec.clone())
    }

    fn mirror_of(source: &ObjectKey) -> ObjectKey {
        ObjectKey { namespace: source.namespace.clone(), name: format!("{POLICY_PREFIX}{}", source.name) }
    }

    fn source_of(mirror: &ObjectKey) -> Option<ObjectKey> {
        let name = mirror.name.strip_prefix(POLICY_PREFIX).filter(|name| !name.is_empty())?;
        Some(ObjectKey { namespace: mirror.namespace.clone(), name: name.into() })
    }

    fn reflect(_: &ObjectKey, kept: &Self::Kept) -> Reflection<Self::Mirror> {
        let Converted { spec, refused } = network_policy(kept);
        Reflection { spec, left_out: refused.iter().map(ToString::to_string).collect() }
    }

    fn admit(policy: NetworkPolicy) -> Result<NetworkPolicy, ValidationError> {
        admit_policy(policy)
    }
}
