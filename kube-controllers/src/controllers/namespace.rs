//! Profiles of namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use libcalico::api::{ObjectKey, Profile, ProfileSpec};
use libcalico::conversion::{NAMESPACE_PROFILE_PREFIX, namespace_profile};
use libcalico::kubernetes::{NAMESPACES, Resource};
use libcalico::validation::{ValidationError, validate_profile};

use super::mirror::{Mirror, Mirrored, Reflection};
use crate::feed::{Feed, Feeds};
use crate::settings::ControllerName;
use crate::watched;

/// Synchronizes each namespace to the profile `kns.<name>`.
pub type NamespaceController = Mirror<Namespaces>;

/// The kind of namespaces.
pub struct Namespaces;

impl Mirrored for Namespaces {
    const NAME: &'static str = "namespace";
    const CONTROLLER: ControllerName = ControllerName::Namespace;
    const RESOURCE: Resource = NAMESPACES;
    const PREFIX: &'static str = NAMESPACE_PROFILE_PREFIX;
    type Source = watched::Namespace;
    type Kept = Arc<BTreeMap<String, String>>;
    type Mirror = ProfileSpec;

    fn feed(feeds: &mut Feeds) -> &mut Feed<watched::Namespace> {
        &mut feeds.namespaces
    }

    /// Returns the labels. Label changes of a known namespace are ignored while it is being deleted, as in upstream
    /// (KC-240).
    fn keep(source: &watched::Namespace, known: Option<&Self::Kept>) -> Self::Kept {
        match known {
            Some(known) if source.phase == "Terminating" => known.clone(),
            _ => Arc::new(source.labels.clone()),
        }
    }

    fn mirror_of(source: &ObjectKey) -> ObjectKey {
        ObjectKey::global(format!("{NAMESPACE_PROFILE_PREFIX}{}", source.name))
    }

    fn source_of(mirror: &ObjectKey) -> Option<ObjectKey> {
        let name = mirror.name.strip_prefix(NAMESPACE_PROFILE_PREFIX)?;
        (!name.is_empty()).then(|| ObjectKey::global(name))
    }

    fn reflect(source: &ObjectKey, labels: &Self::Kept) -> Reflection<ProfileSpec> {
        namespace_profile(&source.name, labels).into()
    }

    fn admit(profile: Profile) -> Result<Profile, ValidationError> {
        validate_profile(&profile).map(|()| profile)
    }
}
