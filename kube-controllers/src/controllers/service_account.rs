//! Profiles of service accounts.

use std::collections::BTreeMap;
use std::sync::Arc;

use libcalico::api::{ObjectKey, Profile, ProfileSpec};
use libcalico::conversion::{SERVICE_ACCOUNT_PROFILE_PREFIX, service_account_profile};
use libcalico::kubernetes::{Resource, SERVICE_ACCOUNTS};
use libcalico::validation::validate_profile;
use libcalico::validation_error::ValidationError;

use super::sync::{SyncController, SyncedKind};
use crate::settings::ControllerName;
use crate::watched;
use crate::watches::{Subscribers, Watches};

/// Synchronizes each service account to the profile `ksa.<namespace>.<name>`.
pub type ServiceAccountController = SyncController<ServiceAccounts>;

/// The kind of service accounts.
pub struct ServiceAccounts;

impl SyncedKind for ServiceAccounts {
    const NAME: &'static str = "serviceaccount";
    const CONTROLLER: ControllerName = ControllerName::ServiceAccount;
    const RESOURCE: Resource = SERVICE_ACCOUNTS;
    const PREFIX: &'static str = SERVICE_ACCOUNT_PROFILE_PREFIX;
    type Source = watched::ServiceAccount;
    type Cached = Arc<BTreeMap<String, String>>;
    type Target = ProfileSpec;

    fn watch(watches: &mut Watches) -> &mut Subscribers<watched::ServiceAccount> {
        &mut watches.service_accounts
    }

    fn uid(source: &watched::ServiceAccount) -> &str {
        &source.uid
    }

    fn cache(source: &watched::ServiceAccount, _: Option<&Self::Cached>) -> Self::Cached {
        Arc::new(source.labels.clone())
    }

    fn target_of(source: &ObjectKey) -> ObjectKey {
        let namespace = source.namespace.as_deref().unwrap_or("default");
        ObjectKey::global(format!(
            "{SERVICE_ACCOUNT_PROFILE_PREFIX}{namespace}.{}",
            source.name
        ))
    }

    /// Splits the name of the profile at its first dot: names of namespaces have no dots, while
    /// names of service accounts may.
    fn source_of(target: &ObjectKey) -> Option<ObjectKey> {
        let (namespace, name) = target
            .name
            .strip_prefix(SERVICE_ACCOUNT_PROFILE_PREFIX)?
            .split_once('.')?;
        (!namespace.is_empty() && !name.is_empty()).then(|| ObjectKey::namespaced(namespace, name))
    }

    fn convert(source: &ObjectKey, labels: &Self::Cached) -> (ProfileSpec, Vec<String>) {
        service_account_profile(&source.name, labels).into_parts()
    }

    fn admit(profile: Profile) -> Result<Profile, ValidationError> {
        validate_profile(&profile).map(|()| profile)
    }
}
