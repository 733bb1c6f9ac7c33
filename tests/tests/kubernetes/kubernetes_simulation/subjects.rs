//! [`Subject`]: a server to which a script sends requests.

use datastore::Datastore;
use integration_tests::kubernetes::{Answer, Client};
use libcalico::kubernetes::{ApiGroup, Codec, Location, PODS, Preconditions, Resource, Status};
use libcalico::store::{Answers, ReadBatch, Revision, Store as _, StoreError, Write};
use serde_json::{Value, json};
use simulation::api_server::ApiServer;

/// A server, with the shipped client and with a client of others.
pub(super) trait Subject {
    /// Reads a batch with the shipped client.
    fn read(&mut self, batch: &ReadBatch) -> Result<Answers, StoreError>;

    /// Writes an object with the shipped client.
    fn write(&mut self, write: &Write) -> Result<Revision, StoreError>;

    /// Returns an object as stored.
    fn object(&mut self, location: &Location) -> Option<Value>;

    /// Creates an object.
    fn create(&mut self, location: &Location, object: &Value) -> Result<(), StoreError>;

    /// Replaces an object.
    fn replace(&mut self, location: &Location, object: &Value) -> Result<(), StoreError>;

    /// Merges a patch into an object.
    fn patch(&mut self, location: &Location, patch: &Value) -> Result<(), StoreError>;

    /// Merges fields into the status of a pod, if it has the uid.
    fn patch_pod_status(
        &mut self,
        pod: &Location,
        uid: Option<&str>,
        status: &Value,
    ) -> Result<(), StoreError>;

    /// Deletes an object at once, or a pod with a grace period in seconds; `None` is the pod's own.
    fn delete(
        &mut self,
        location: &Location,
        grace: Option<u64>,
        preconditions: &Preconditions,
    ) -> Result<(), StoreError>;
}

/// A real server.
pub(super) struct Real<'c> {
    store: Datastore,
    client: &'c Client,
    runtime: tokio::runtime::Runtime,
}

impl<'c> Real<'c> {
    pub(super) fn new(store: Datastore, client: &'c Client) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        Real {
            store,
            client,
            runtime,
        }
    }
}

fn outcome(answer: Answer) -> Result<(), StoreError> {
    if (200..300).contains(&answer.code) {
        return Ok(());
    }
    let status: Status = serde_json::from_value(answer.body).unwrap();
    Err(status.store_error("an object", ""))
}

impl Subject for Real<'_> {
    fn read(&mut self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        self.runtime.block_on(self.store.read(batch))
    }

    fn write(&mut self, write: &Write) -> Result<Revision, StoreError> {
        self.runtime.block_on(self.store.write_one(write.clone()))
    }

    fn object(&mut self, location: &Location) -> Option<Value> {
        let answer = self.client.get(&location.url_path()).unwrap();
        (answer.code == 200).then_some(answer.body)
    }

    fn create(&mut self, location: &Location, object: &Value) -> Result<(), StoreError> {
        let object = with_identity(location, object);
        outcome(self.client.create(&location.collection(), &object).unwrap())
    }

    fn replace(&mut self, location: &Location, object: &Value) -> Result<(), StoreError> {
        outcome(self.client.replace(&location.url_path(), object).unwrap())
    }

    fn patch(&mut self, location: &Location, patch: &Value) -> Result<(), StoreError> {
        outcome(self.client.patch(&location.url_path(), patch).unwrap())
    }

    fn patch_pod_status(
        &mut self,
        pod: &Location,
        uid: Option<&str>,
        status: &Value,
    ) -> Result<(), StoreError> {
        let mut patch = json!({ "status": status });
        if let Some(uid) = uid {
            patch["metadata"]["uid"] = uid.into();
        }
        let path = format!("{}/status", pod.url_path());
        outcome(self.client.patch(&path, &patch).unwrap())
    }

    fn delete(
        &mut self,
        location: &Location,
        grace: Option<u64>,
        preconditions: &Preconditions,
    ) -> Result<(), StoreError> {
        let mut options = preconditions.body().unwrap_or_else(|| json!({}));
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = grace.into();
        }
        let (path, media_type) = (location.url_path(), "application/json");
        let sent = self.client.request(
            hyper::Method::DELETE,
            &path,
            media_type,
            &options.to_string(),
        );
        outcome(sent.unwrap())
    }
}

/// The server of the simulation.
pub(super) struct Simulated(ApiServer);

impl Simulated {
    pub(super) fn new(group: ApiGroup, namespace: &str) -> Self {
        let mut server = ApiServer::new(group);
        server.create_namespace(namespace).unwrap();
        Simulated(server)
    }
}

impl Subject for Simulated {
    fn read(&mut self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        let (mut answers, mut completions) = (Vec::new(), Vec::new());
        for range in batch.ranges() {
            let (entries, writes) = self.0.answer_and_completions(range)?;
            answers.push(entries);
            completions.extend(writes);
        }
        for write in completions {
            if let Err(error) = self.0.apply(&write)
                && !error.is_race()
            {
                return Err(error);
            }
        }
        Ok(Answers::new(answers))
    }

    fn write(&mut self, write: &Write) -> Result<Revision, StoreError> {
        self.0.apply(write)
    }

    fn object(&mut self, location: &Location) -> Option<Value> {
        self.0.object(location).cloned()
    }

    fn create(&mut self, location: &Location, object: &Value) -> Result<(), StoreError> {
        self.0.create_object(location, object.clone()).map(drop)
    }

    fn replace(&mut self, location: &Location, object: &Value) -> Result<(), StoreError> {
        self.0.replace_object(location, object.clone()).map(drop)
    }

    fn patch(&mut self, location: &Location, patch: &Value) -> Result<(), StoreError> {
        self.0.patch_object(location, patch).map(drop)
    }

    fn patch_pod_status(
        &mut self,
        pod: &Location,
        uid: Option<&str>,
        status: &Value,
    ) -> Result<(), StoreError> {
        let namespace = pod.namespace.as_deref().unwrap_or_default();
        self.0.patch_pod_status(namespace, &pod.name, uid, status)
    }

    fn delete(
        &mut self,
        location: &Location,
        grace: Option<u64>,
        preconditions: &Preconditions,
    ) -> Result<(), StoreError> {
        let namespace = location.namespace.as_deref().unwrap_or_default();
        if location.resource == PODS && grace == Some(0) {
            let uid = preconditions.uid.as_deref();
            return self.0.remove_pod(namespace, &location.name, uid);
        }
        if location.resource == PODS {
            return self.0.delete_pod(namespace, &location.name, grace);
        }
        self.0.delete_object(location, preconditions)
    }
}

fn with_identity(location: &Location, object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = location.resource.api_version.into();
    object["kind"] = location.resource.kind.into();
    object["metadata"]["name"] = location.name.as_str().into();
    if let Some(namespace) = &location.namespace {
        object["metadata"]["namespace"] = namespace.as_str().into();
    }
    object
}

/// Returns the resource of a kind.
pub(super) fn resource(group: ApiGroup, kind: &str) -> Resource {
    Codec::new(group).resource(kind).unwrap()
}
