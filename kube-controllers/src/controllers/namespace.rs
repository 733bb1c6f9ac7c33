//! Profiles of namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use libcalico::api::{ObjectKey, Profile, ProfileSpec};
use libcalico::conversion::{NAMESPACE_PROFILE_PREFIX, namespace_profile};
use libcalico::kubernetes::{NAMESPACES, Resource};
use libcalico::validation::validate_profile;
use libcalico::validation_error::ValidationError;

use super::sync::{SyncController, SyncedKind};
use crate::settings::ControllerName;
use crate::watched;
use crate::watches::{Subscribers, Watches};

/// Synchronizes each namespace to the profile `kns.<name>`.
pub type NamespaceController = SyncController<Namespaces>;

/// The kind of namespaces.
pub struct Namespaces;

impl SyncedKind for Namespaces {
    const NAME: &'static str = "namespace";
    const CONTROLLER: ControllerName = ControllerName::Namespace;
    const RESOURCE: Resource = NAMESPACES;
    const PREFIX: &'static str = NAMESPACE_PROFILE_PREFIX;
    type Source = watched::Namespace;
    type Cached = Arc<BTreeMap<String, String>>;
    type Target = ProfileSpec;

    fn watch(watches: &mut Watches) -> &mut Subscribers<watched::Namespace> {
        &mut watches.namespaces
    }

    fn uid(source: &watched::Namespace) -> &str {
        &source.uid
    }

    /// Returns the labels. Label changes of a known namespace are ignored while it is being
    /// deleted, as in upstream (KC-240).
    fn cache(source: &watched::Namespace, before: Option<&Self::Cached>) -> Self::Cached {
        match before {
            Some(labels) if source.phase == "Terminating" => labels.clone(),
            _ => Arc::new(source.labels.clone()),
        }
    }

    fn target_of(source: &ObjectKey) -> ObjectKey {
        ObjectKey::global(format!("{NAMESPACE_PROFILE_PREFIX}{}", source.name))
    }

    fn source_of(target: &ObjectKey) -> Option<ObjectKey> {
        let name = target.name.strip_prefix(NAMESPACE_PROFILE_PREFIX)?;
        (!name.is_empty()).then(|| ObjectKey::global(name))
    }

    fn convert(source: &ObjectKey, labels: &Self::Cached) -> (ProfileSpec, Vec<String>) {
        namespace_profile(&source.name, labels).into_parts()
    }

    fn admit(profile: Profile) -> Result<Profile, ValidationError> {
        validate_profile(&profile).map(|()| profile)
    }
}
