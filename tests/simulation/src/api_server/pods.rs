//! The requests of the programs and people that own pods: controllers, kubelets and tenants.

use libcalico::api::ObjectSelect;
use libcalico::kubernetes::{Location, PODS, Pod, Preconditions};
use libcalico::store::{Entry, StoreError};
use serde_json::{Map, Value, json};

use super::fields::text;
use super::writes::Part;
use super::{ApiServer, Refusal};

pub(super) fn at(namespace: &str, name: &str) -> Location {
    Location::namespaced(PODS, namespace, name)
}

fn store_error(namespace: &str, name: &str) -> impl Fn(Refusal) -> StoreError {
    let key = format!("Pod({namespace}/{name})");
    move |refusal| refusal.store_error(&key, "")
}

impl ApiServer {
    /// Creates a pod on a node and returns its uid. An empty `node` leaves the pod without a node.
    ///
    /// # Errors
    /// If the pod exists, or its namespace is missing or is being deleted.
    pub fn create_pod(
        &mut self,
        namespace: &str,
        name: &str,
        node: &str,
        annotations: &[(&str, &str)],
    ) -> Result<String, StoreError> {
        let mut pod = json!({
            "metadata": {}, "spec": { "containers": [{ "name": "c", "image": "none" }] },
        });
        if !node.is_empty() {
            pod["spec"]["nodeName"] = node.into();
        }
        if !annotations.is_empty() {
            let annotations = annotations.iter().map(|(key, value)| (*key, *value));
            pod["metadata"]["annotations"] = Map::from_iter(
                annotations.map(|(key, value)| (key.to_owned(), Value::from(value))),
            )
            .into();
        }
        let created = self.post(&at(namespace, name), pod);
        let created = created.map_err(store_error(namespace, name))?;
        Ok(text(&created, "uid").to_owned())
    }

    /// Returns a pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        let object = self.objects.get(&at(namespace, name))?;
        serde_json::from_value(object.clone()).ok()
    }

    /// Returns all pods, or those of a namespace.
    pub fn pods(&self, namespace: Option<&str>) -> Vec<Entry<Pod>> {
        self.list::<Pod>(&ObjectSelect {
            namespace: namespace.map(str::to_owned),
            ..ObjectSelect::default()
        })
    }

    /// Merges fields into the status of a pod, as its kubelet does: `phase`, `podIP`, `podIPs`,
    /// `conditions`. Conditions are merged by their type. A null removes a field.
    ///
    /// # Errors
    /// If the pod is missing, or has another uid than `uid`.
    pub fn patch_pod_status(
        &mut self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        status: &Value,
    ) -> Result<(), StoreError> {
        let mut patch = json!({ "status": status });
        if let Some(uid) = uid {
            patch["metadata"]["uid"] = uid.into();
        }
        self.patch(&at(namespace, name), &patch, Part::Status)
            .map(drop)
            .map_err(store_error(namespace, name))
    }

    /// Sets annotations of a pod as its owner does, who may write any. `None` removes an annotation.
    ///
    /// # Errors
    /// If the pod is missing.
    pub fn annotate_pod(
        &mut self,
        namespace: &str,
        name: &str,
        annotations: &[(&str, Option<&str>)],
    ) -> Result<(), StoreError> {
        let changes = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
        let patch = json!({ "metadata": { "annotations": Map::from_iter(changes) } });
        self.patch(&at(namespace, name), &patch, Part::Main)
            .map(drop)
            .map_err(store_error(namespace, name))
    }

    /// Deletes a pod as a controller or a person does, with its own grace period, or with that of
    /// `grace` in seconds. A pod with a grace period remains until [`ApiServer::remove_pod`].
    ///
    /// # Errors
    /// If the pod is missing.
    pub fn delete_pod(
        &mut self,
        namespace: &str,
        name: &str,
        grace: Option<u64>,
    ) -> Result<(), StoreError> {
        self.delete(&at(namespace, name), &Preconditions::default(), grace)
            .map(drop)
            .map_err(store_error(namespace, name))
    }

    /// Deletes a pod without a grace period: as the kubelet does at the end with the uid of its
    /// pod, or as a person does by force without a uid.
    ///
    /// # Errors
    /// If the pod is missing, or has another uid.
    pub fn remove_pod(
        &mut self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<(), StoreError> {
        let preconditions = Preconditions {
            uid: uid.map(str::to_owned),
            resource_version: None,
        };
        self.delete(&at(namespace, name), &preconditions, Some(0))
            .map(drop)
            .map_err(store_error(namespace, name))
    }
}
