//! The requests of programs other than Calico's for arbitrary objects, nodes and namespaces.

use libcalico::kubernetes::{Location, NAMESPACES, NODES, Preconditions, Resource};
use libcalico::store::StoreError;
use serde_json::{Map, Value, json};

use super::ApiServer;
use super::fields::{text, with_identity};
use super::writes::Part;

fn identifier(location: &Location) -> String {
    let kind = location.resource.kind;
    match &location.namespace {
        Some(namespace) => format!("{kind}({namespace}/{})", location.name),
        None => format!("{kind}({})", location.name),
    }
}

impl ApiServer {
    /// Returns the resource of a kind of Calico, such as `IPAMBlock`, or of a kind of Kubernetes
    /// that Calico reads.
    pub fn resource(&self, kind: &str) -> Option<Resource> {
        self.constants.codec.resource(kind)
    }

    /// Returns an object as stored.
    pub fn object(&self, location: &Location) -> Option<&Value> {
        self.objects.get(location)
    }

    /// Returns the objects of all namespaces, or of one, as stored.
    pub fn objects(&self, resource: &Resource, namespace: Option<&str>) -> Vec<&Value> {
        self.objects.list(resource, namespace).collect()
    }

    /// Creates an object and returns it.
    ///
    /// # Errors
    /// If the object exists, or its namespace is missing or is being deleted.
    pub fn create_object(
        &mut self,
        location: &Location,
        object: Value,
    ) -> Result<Value, StoreError> {
        self.post(location, object)
            .map_err(|refusal| refusal.store_error(&identifier(location), ""))
    }

    /// Replaces an object without its status, if it has the resourceVersion of `object`. Returns
    /// the object.
    ///
    /// # Errors
    /// If the object is missing or has another resourceVersion or uid.
    pub fn replace_object(
        &mut self,
        location: &Location,
        object: Value,
    ) -> Result<Value, StoreError> {
        self.replace(location, object, Part::Main)
            .map_err(|refusal| refusal.store_error(&identifier(location), ""))
    }

    /// Merges a patch into an object without its status. Returns the object.
    ///
    /// # Errors
    /// If the object is missing, or the patch has another resourceVersion or uid.
    pub fn patch_object(
        &mut self,
        location: &Location,
        patch: &Value,
    ) -> Result<Value, StoreError> {
        self.patch(location, patch, Part::Main)
            .map_err(|refusal| refusal.store_error(&identifier(location), ""))
    }

    /// Deletes an object if it has the revision of the preconditions. An object with finalizers is
    /// only marked as deleted.
    ///
    /// # Errors
    /// If the object is missing, or a precondition is false.
    pub fn delete_object(
        &mut self,
        location: &Location,
        preconditions: &Preconditions,
    ) -> Result<(), StoreError> {
        self.delete(location, preconditions, None)
            .map(drop)
            .map_err(|refusal| refusal.store_error(&identifier(location), ""))
    }

    /// Stores an object with its status, whatever exists there. An existing object keeps its uid.
    /// For the initial state of a simulation, and for states that no request causes.
    pub fn put_object(&mut self, location: &Location, object: Value) {
        let mut object = with_identity(location, object);
        let Some(old) = self.objects.get(location) else {
            self.insert(location, object);
            return;
        };
        for field in ["uid", "creationTimestamp", "resourceVersion", "generation"] {
            if let Some(value) = old["metadata"].get(field) {
                object["metadata"][field] = value.clone();
            }
        }
        self.commit(location, object);
    }

    /// Removes an object at once, whatever delays its deletion. Does nothing if it is missing.
    pub fn remove_object(&mut self, location: &Location) {
        if self.objects.get(location).is_some() {
            self.revision += 1;
            self.objects.remove(location);
        }
    }

    /// Creates a namespace. A deletion only marks it: the caller deletes its objects and then calls
    /// [`ApiServer::remove_object`], as the controller of namespaces does.
    ///
    /// # Errors
    /// If the namespace exists.
    pub fn create_namespace(&mut self, name: &str) -> Result<(), StoreError> {
        self.create_object(&Location::global(NAMESPACES, name), json!({}))
            .map(drop)
    }

    /// Creates a node and returns its uid.
    ///
    /// # Errors
    /// If the node exists.
    pub fn create_node(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
    ) -> Result<String, StoreError> {
        let own = [("kubernetes.io/hostname", name)];
        let labels = own
            .iter()
            .chain(labels)
            .map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
        let node = json!({ "metadata": { "labels": Map::from_iter(labels) }, "spec": {} });
        let created = self.create_object(&Location::global(NODES, name), node)?;
        Ok(text(&created, "uid").to_owned())
    }

    /// Deletes a node.
    ///
    /// # Errors
    /// If the node is missing.
    pub fn delete_node(&mut self, name: &str) -> Result<(), StoreError> {
        self.delete_object(&Location::global(NODES, name), &Preconditions::default())
    }
}
