//! The source of the watches of Kubernetes kinds.

use std::marker::PhantomData;

use datastore::kubernetes::{ApiSource, CollectionError, Decode};
use datastore::watch::ObjectChange;
use libcalico::api::ObjectKey;
use serde::Deserialize;

use crate::context::Context;
use crate::watched::{Projection, ProjectionOptions, StringInterner};

/// Returns the source that a watch of the kind `T` reads.
pub(super) fn source<T: Projection>(context: &Context, options: ProjectionOptions) -> ApiSource<ProjectionDecoder<T>> {
    let projected = ProjectionDecoder { strings: StringInterner::default(), options, kind: PhantomData };
    ApiSource::new(context.kubernetes.clone(), projected)
}

/// A decoder that keeps a projection of each object.
pub(super) struct ProjectionDecoder<T> {
    strings: StringInterner,
    options: ProjectionOptions,
    kind: PhantomData<fn() -> T>,
}

#[derive(Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(Deserialize)]
struct Name {
    #[serde(default)]
    namespace: Option<String>,
    name: String,
}

impl<T: Projection> Decode for ProjectionDecoder<T> {
    type Value = T;
    type Key = ObjectKey;

    fn kind(&self) -> &'static str {
        T::KIND
    }

    async fn collection(&mut self) -> Result<String, CollectionError> {
        Ok(T::COLLECTION.into())
    }

    fn put(&mut self, object: &str) -> Option<ObjectChange<T, ObjectKey>> {
        Some(match T::project(object, &mut self.strings, self.options) {
            Ok(projection) => ObjectChange::Upsert(projection),
            Err(error) => {
                let key = self.key(object);
                let name = key.as_ref().map(ObjectKey::to_string).unwrap_or_default();
                ObjectChange::Unreadable { name, key, reason: error.to_string() }
            }
        })
    }

    fn key(&mut self, object: &str) -> Option<ObjectKey> {
        let Named { metadata: Name { namespace, name } } = serde_json::from_str(object).ok()?;
        Some(ObjectKey { namespace, name })
    }
}
