//! [`CalicoObjects`]: decodes the objects of Calico's kinds with the [`Codec`].

use std::marker::PhantomData;
use std::sync::Arc;

use libcalico::kubernetes::{Codec, List, Query};
use libcalico::store::{Entry, Kind, Range, ReadBatch};
use serde_json::{Value, json};

use super::source::{ApiSource, ClientProvider, CollectionError, Decode};
use crate::kubernetes::request::PrunedObject;
use crate::kubernetes::store::Kubernetes;
use crate::watch::ObjectChange;

/// The decoder of the objects of one of Calico's kinds.
pub struct CalicoObjects<K: Kind> {
    kubernetes: Arc<Kubernetes>,
    range: Range,
    codec: Option<Codec>,
    object_kind: &'static str,
    kind: PhantomData<fn() -> K>,
}

impl Kubernetes {
    /// Returns the source of a watch of one kind.
    pub fn source<K: Kind>(self: &Arc<Self>, select: &K::Select) -> ApiSource<CalicoObjects<K>> {
        let client = Arc::clone(&self.client);
        let provider: ClientProvider = Box::new(move |must_renew| {
            let client = Arc::clone(&client);
            Box::pin(async move { client.kube_client(must_renew).await })
        });
        ApiSource::with_provider(provider, CalicoObjects::new(Arc::clone(self), select))
    }
}

impl<K: Kind> CalicoObjects<K> {
    fn new(kubernetes: Arc<Kubernetes>, select: &K::Select) -> Self {
        let mut batch = ReadBatch::new();
        batch.list::<K>(select);
        let range = batch.ranges()[0].clone();
        CalicoObjects {
            kubernetes,
            range,
            codec: None,
            object_kind: K::KIND,
            kind: PhantomData,
        }
    }

    /// Decodes an object as a read of the store does. Returns `None` if the object is not in the
    /// range.
    fn read(&self, object: Value) -> Option<ObjectChange<Entry<K>, K::Key>> {
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let decoded = self.codec.as_ref()?.decode(&self.range, object)?;
        ObjectChange::decode(&decoded.entry, &name)
    }

    /// Returns `None` if the name is not that of an object of the kind.
    fn key_of_name(&self, metadata: Value) -> Option<K::Key> {
        let range = Range {
            keys_only: true,
            ..self.range.clone()
        };
        let decoded = self
            .codec
            .as_ref()?
            .decode(&range, json!({ "metadata": metadata }))?;
        K::parse_path(&decoded.entry.path)
    }
}

impl<K: Kind> Decode for CalicoObjects<K> {
    type Value = Entry<K>;
    type Key = K::Key;

    fn kind(&self) -> &'static str {
        K::KIND
    }

    fn object_kind(&self) -> &'static str {
        self.object_kind
    }

    async fn collection(&mut self) -> Result<String, CollectionError> {
        let codec = self
            .kubernetes
            .codec()
            .await
            .map_err(|error| CollectionError(error.to_string()))?;
        let query = codec
            .query(&self.range)
            .map_err(|error| CollectionError(error.to_string()))?;
        self.codec = Some(codec);
        match query {
            Query::List(
                list @ List {
                    label_selector: None,
                    field_selector: None,
                    ..
                },
            ) => {
                self.object_kind = list.resource.kind;
                Ok(list.url_path())
            }
            _ => Err(CollectionError(format!(
                "cannot watch all objects of the kind {} on an API server",
                K::KIND
            ))),
        }
    }

    fn decode(&mut self, object: &str) -> Option<ObjectChange<Entry<K>, K::Key>> {
        match serde_json::from_str(object) {
            Ok(PrunedObject(object)) => self.read(object),
            // The text is valid JSON, but may for example be nested too deeply or have a field of
            // an unexpected type.
            Err(error) => Some(ObjectChange::Unreadable {
                name: String::new(),
                key: None,
                reason: error.to_string(),
            }),
        }
    }

    fn decode_key(&mut self, object: &str) -> Option<K::Key> {
        let PrunedObject(mut object) = serde_json::from_str(object).ok()?;
        let metadata = object["metadata"].clone();
        // The codec hides an object that is marked as deleted, so the mark is removed.
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.remove("deleted");
        }
        match self.read(object) {
            Some(ObjectChange::Upsert(entry)) => Some(entry.key),
            Some(ObjectChange::Unreadable { key: Some(key), .. } | ObjectChange::Delete(key)) => {
                Some(key)
            }
            _ => self.key_of_name(metadata),
        }
    }

    /// The group may be wrong if it came from the cache.
    async fn handle_missing(&mut self) {
        self.kubernetes.group_resolver.discard_cached().await;
    }
}
