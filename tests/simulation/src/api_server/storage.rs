//! [`Objects`]: the stored objects, in the order of lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use libcalico::kubernetes::{Location, Resource};
use serde_json::Value;

/// The objects. A clone shares all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Objects(Arc<BTreeMap<Place, Arc<Value>>>);

/// The place of an object. The order is that of the keys in the server's etcd.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    api_version: &'static str,
    plural: &'static str,
    /// The name, or the namespace and the name.
    key: Arc<str>,
}

impl Place {
    fn of(location: &Location) -> Self {
        let key = match &location.namespace {
            Some(namespace) => format!("{namespace}/{}", location.name),
            None => location.name.clone(),
        };
        Self::below(&location.resource, key)
    }

    fn below(resource: &Resource, key: String) -> Self {
        Place {
            api_version: resource.api_version,
            plural: resource.plural,
            key: key.into(),
        }
    }

    fn is_of(&self, resource: &Resource) -> bool {
        self.api_version == resource.api_version && self.plural == resource.plural
    }
}

impl Objects {
    pub(super) fn get(&self, location: &Location) -> Option<&Value> {
        self.0.get(&Place::of(location)).map(Arc::as_ref)
    }

    pub(super) fn put(&mut self, location: &Location, object: Value) {
        Arc::make_mut(&mut self.0).insert(Place::of(location), Arc::new(object));
    }

    pub(super) fn remove(&mut self, location: &Location) {
        Arc::make_mut(&mut self.0).remove(&Place::of(location));
    }

    /// Returns the objects of all namespaces, or of one.
    pub(super) fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = &Value> {
        let prefix = namespace.map_or(String::new(), |namespace| format!("{namespace}/"));
        let resource = *resource;
        self.0
            .range(Place::below(&resource, prefix.clone())..)
            .take_while(move |(place, _)| place.is_of(&resource) && place.key.starts_with(&prefix))
            .map(|(_, object)| object.as_ref())
    }
}
