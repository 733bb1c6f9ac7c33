//! [`LoadedCourse`]: a course of recordings with a datastore on which its steps are replayed.

use std::collections::{BTreeMap, BTreeSet};

use integration_tests::Place;
use integration_tests::golden::calicoctl::{Course, Step};
use integration_tests::kubernetes::{ApiServer, Client};
pub(crate) use integration_tests::on;
use integration_tests::plugin::{Outcome, Plugins};
use integration_tests::store::Store;
use serde_json::{Value, json};

use crate::golden_calicoctl::datastore;
use crate::golden_calicoctl::translate::ours;

/// Metadata that differs from run to run.
const OF_THE_RUN: [&str; 4] = ["uid", "resourceVersion", "creationTimestamp", "generation"];
/// The annotation of an object on Kubernetes with v3 metadata, as JSON.
const V3_METADATA: &str = "/metadata/annotations/projectcalico.org~1metadata";
/// The kind whose objects are Kubernetes' own in the course on Kubernetes.
const NODES: &str = "nodes//";
/// The key of ClusterInformation on etcd.
const INFORMATION: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";

pub(crate) type Content = BTreeMap<String, Value>;
pub(crate) type Changes = BTreeMap<String, Option<Value>>;

pub(crate) struct LoadedCourse<'a> {
    pub(crate) course: Course,
    pub(crate) plugins: Plugins,
    pub(crate) store: Store,
    /// The server of pods and nodes, on Kubernetes.
    pub(crate) api: Option<&'a ApiServer>,
}

/// A call of ours, with the keys that it changed.
pub(crate) struct Replayed {
    pub(crate) outcome: Outcome,
    pub(crate) changed: Changes,
}

/// Runs a test with the course of `calicoctl ipam` on a datastore.
pub(crate) fn on(place: Place, test: impl FnOnce(&LoadedCourse<'_>) + Send) {
    datastore::on(place, |datastore| {
        if place == Place::Etcd {
            return test(&datastore.course("etcd-ipam"));
        }
        let course = datastore.course("kubernetes-ipam");
        course.create_namespace("ns1");
        test(&course);
    });
}

impl LoadedCourse<'_> {
    pub(crate) fn step(&self, number: &str) -> &Step {
        self.course.step(number).unwrap()
    }

    /// Runs our call for a step, with these arguments besides, on the recorded state before the
    /// step.
    pub(crate) fn replay(&self, number: &str, more: &[&str]) -> Replayed {
        self.prepare(number);
        let arguments = ours(self.step(number));
        let arguments: Vec<&str> = arguments
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        self.run(&arguments)
    }

    /// Creates a namespace with the default service account.
    pub(crate) fn create_namespace(&self, name: &str) {
        self.api.unwrap().namespace(name).unwrap();
    }

    /// Returns Calico's annotations of the nodes.
    pub(crate) fn node_annotations(&self) -> Content {
        let nodes = self
            .api
            .unwrap()
            .admin()
            .get("/api/v1/nodes")
            .unwrap()
            .success();
        let nodes = nodes["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| &node["metadata"]);
        nodes
            .map(|node| {
                (
                    node["name"].as_str().unwrap().to_owned(),
                    of_calico(&node["annotations"]),
                )
            })
            .collect()
    }

    /// Loads the recorded state before a step.
    pub(crate) fn prepare(&self, number: &str) {
        self.load(&self.course.content_before(number).unwrap());
    }

    /// Runs our program on the loaded state.
    pub(crate) fn run(&self, arguments: &[&str]) -> Replayed {
        let before = self.content();
        let outcome = self.store.calico_ipam(&self.plugins, arguments).unwrap();
        Replayed {
            outcome,
            changed: changes(&before, &self.content()),
        }
    }

    /// Returns the revision of ClusterInformation in the loaded state.
    pub(crate) fn revision(&self) -> String {
        match (&self.store, self.api) {
            (Store::Etcd(etcd), _) => etcd.revisions(INFORMATION).unwrap()[INFORMATION].to_string(),
            (_, Some(api)) => {
                let path = "/apis/crd.projectcalico.org/v1/clusterinformations/default";
                let stored = api.admin().get(path).unwrap().success();
                stored["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            }
            (store, None) => panic!("{} has no course", store.name()),
        }
    }

    /// Returns the recorded changes of a step, without the metadata that differs from run to run.
    pub(crate) fn recorded_changes(&self, number: &str) -> Changes {
        let changed = self.step(number).changed.clone();
        changed
            .into_iter()
            .map(|(key, value)| (key, value.map(comparable)))
            .collect()
    }

    fn load(&self, content: &Content) {
        self.store.clear().unwrap();
        let Some(api) = self.api else {
            return self.store.load(content).unwrap();
        };
        let admin = api.admin();
        let (nodes, objects): (Content, Content) = content
            .clone()
            .into_iter()
            .partition(|(key, _)| key.starts_with(NODES));
        for (key, node) in nodes {
            let metadata = json!({
                "name": key.trim_start_matches(NODES), "annotations": node["annotations"],
            });
            admin
                .apply_object(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }))
                .unwrap();
        }
        let objects: Content = objects
            .into_iter()
            .map(|(key, object)| (key.replace("//", "/"), object))
            .collect();
        self.store.load(&objects).unwrap();
        for object in self.course.pods_and_services().unwrap() {
            create_workload(admin, &object);
        }
    }

    /// Returns the content of the datastore with the keys of the recordings, without pods.
    fn content(&self) -> Content {
        let is_pod = |key: &str| key.starts_with("pods/");
        let on_kubernetes = self.api.is_some();
        let is_global = |key: &str| on_kubernetes && key.matches('/').count() == 1;
        let key = |key: String| {
            if is_global(&key) {
                key.replacen('/', "//", 1)
            } else {
                key
            }
        };
        let content = self
            .store
            .dump()
            .unwrap()
            .into_iter()
            .filter(|(key, _)| !is_pod(key));
        content
            .map(|(name, value)| (key(name), comparable(value)))
            .collect()
    }
}

/// Creates a recorded pod or Service with the fields that address management reads.
fn create_workload(admin: &Client, recorded: &Value) {
    let (metadata, spec, status) = (
        &recorded["metadata"],
        &recorded["spec"],
        &recorded["status"],
    );
    let metadata = json!({ "name": metadata["name"], "namespace": metadata["namespace"] });
    let (plural, spec, status) = match recorded["kind"].as_str() {
        Some("Pod") => {
            let containers = json!([{ "name": "c", "image": "x" }]);
            let status = json!({
                "phase": status["phase"], "podIP": status["podIP"], "podIPs": status["podIPs"],
            });
            (
                "pods",
                json!({ "nodeName": spec["nodeName"], "containers": containers }),
                status,
            )
        }
        _ => (
            "services",
            json!({ "type": spec["type"], "ports": [{ "port": 80 }] }),
            status.clone(),
        ),
    };
    let object =
        json!({ "apiVersion": "v1", "kind": recorded["kind"], "metadata": metadata, "spec": spec });
    admin.apply_object(&object).unwrap();
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let path = format!(
        "/api/v1/namespaces/{}/{plural}/{}/status",
        text("namespace"),
        text("name")
    );
    admin
        .patch(&path, &json!({ "status": status }))
        .unwrap()
        .success();
}

/// Returns the annotations of a node that Calico writes.
pub(crate) fn of_calico(annotations: &Value) -> Value {
    let mut annotations = annotations.as_object().cloned().unwrap_or_default();
    annotations.retain(|name, _| name.starts_with("projectcalico.org/"));
    Value::Object(annotations)
}

fn comparable(mut value: Value) -> Value {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| !OF_THE_RUN.contains(&field.as_str()));
    }
    if let Some(text) = value.pointer_mut(V3_METADATA)
        && let Ok(Value::Object(mut metadata)) =
            serde_json::from_str(text.as_str().unwrap_or_default())
    {
        metadata.retain(|field, _| !OF_THE_RUN.contains(&field.as_str()));
        *text = Value::Object(metadata).to_string().into();
    }
    value
}

fn changes(before: &Content, after: &Content) -> Changes {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = keys
        .into_iter()
        .filter(|key| before.get(*key) != after.get(*key));
    changed
        .map(|key| (key.clone(), after.get(key).cloned()))
        .collect()
}

/// Returns the rows of a table, sorted, with this number of columns.
pub(crate) fn rows(table: &str, columns: usize) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        line.split('|')
            .skip(1)
            .take(columns)
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    let mut rows: Vec<Vec<String>> = table
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(cells)
        .collect();
    rows.sort();
    rows
}
