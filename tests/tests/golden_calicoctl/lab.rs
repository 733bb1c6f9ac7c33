//! [`Lab`]: a course of recordings with a datastore on which its steps are replayed.

use std::collections::{BTreeMap, BTreeSet};

use integration_tests::etcd::{self, Etcd};
use integration_tests::golden::calicoctl::{Course, Step};
use integration_tests::kubernetes::{Client, Objects, on_kubernetes};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::{Outcome, Plugins};
use integration_tests::skip::skipped;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::translate::ours;

/// Metadata that differs from run to run.
const OF_THE_RUN: [&str; 4] = ["uid", "resourceVersion", "creationTimestamp", "generation"];
/// The kind whose objects are Kubernetes' own in the course on Kubernetes.
const NODES: &str = "nodes//";

pub(crate) type Content = BTreeMap<String, Value>;
pub(crate) type Changes = BTreeMap<String, Option<Value>>;

pub(crate) struct Lab<'a> {
    course: Course,
    plugins: Plugins,
    store: Store,
    /// The client for pods and nodes, on Kubernetes.
    admin: Option<&'a Client>,
}

/// A call of ours, with the keys that it changed.
pub(crate) struct Replayed {
    pub(crate) outcome: Outcome,
    pub(crate) changed: Changes,
}

/// Runs a test with the course on etcd.
pub(crate) fn on_etcd(test: impl FnOnce(&Lab<'_>) + Send) {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    isolated(|host| {
        let (course, plugins) = (Course::read("etcd-ipam").unwrap(), Plugins::locate().unwrap());
        test(&Lab { course, plugins, store: Store::etcd(host).unwrap(), admin: None });
    });
}

/// Runs a test with the course on an API server.
pub(crate) fn on_api_server(test: impl FnOnce(&Lab<'_>) + Send) {
    on_kubernetes(|_, kubernetes| {
        let api = &kubernetes.api;
        api.define(ApiGroup::CrdV1.api_version()).unwrap();
        api.namespace("ns1").unwrap();
        let objects = Objects::new(api.admin(), ApiGroup::CrdV1, api.admin_kubeconfig());
        let (course, plugins) = (Course::read("kubernetes-ipam").unwrap(), Plugins::locate().unwrap());
        test(&Lab { course, plugins, store: Store::Kubernetes(objects), admin: Some(api.admin()) });
    });
}

impl Lab<'_> {
    pub(crate) fn step(&self, number: &str) -> &Step {
        self.course.step(number).unwrap()
    }

    /// Runs our call for a step, with these arguments besides, on the recorded state before the step.
    pub(crate) fn replay(&self, number: &str, more: &[&str]) -> Replayed {
        self.load(&self.course.content_before(number).unwrap());
        let arguments = ours(self.step(number));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let before = self.content();
        let outcome = self.store.calico_ipam(&self.plugins, &arguments).unwrap();
        Replayed { outcome, changed: changes(&before, &self.content()) }
    }

    /// Returns the recorded changes of a step, without the metadata that differs from run to run.
    pub(crate) fn recorded_changes(&self, number: &str) -> Changes {
        let changed = self.step(number).changed.clone();
        changed.into_iter().map(|(key, value)| (key, value.map(comparable))).collect()
    }

    fn load(&self, content: &Content) {
        self.store.clear().unwrap();
        let Some(admin) = self.admin else { return self.store.load(content).unwrap() };
        let (nodes, objects): (Content, Content) =
            content.clone().into_iter().partition(|(key, _)| key.starts_with(NODES));
        for (key, node) in nodes {
            let metadata = json!({ "name": key.trim_start_matches(NODES), "annotations": node["annotations"] });
            admin.apply_object(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })).unwrap();
        }
        let objects: Content = objects.into_iter().map(|(key, object)| (key.replace("//", "/"), object)).collect();
        self.store.load(&objects).unwrap();
        for object in self.course.pods_and_services().unwrap() {
            create_workload(admin, &object);
        }
    }

    /// Returns the content of the datastore with the keys of the recordings, without pods.
    fn content(&self) -> Content {
        let is_pod = |key: &str| key.starts_with("pods/");
        let on_kubernetes = self.admin.is_some();
        let key = |key: String| if on_kubernetes { key.replacen('/', "//", 1) } else { key };
        let content = self.store.dump().unwrap().into_iter().filter(|(key, _)| !is_pod(key));
        content.map(|(name, value)| (key(name), comparable(value))).collect()
    }
}

/// Creates a recorded pod or Service with the fields that address management reads.
fn create_workload(admin: &Client, recorded: &Value) {
    let (metadata, spec, status) = (&recorded["metadata"], &recorded["spec"], &recorded["status"]);
    let metadata = json!({ "name": metadata["name"], "namespace": metadata["namespace"] });
    let (plural, spec, status) = match recorded["kind"].as_str() {
        Some("Pod") => {
            let containers = json!([{ "name": "c", "image": "x" }]);
            let status = json!({ "phase": status["phase"], "podIP": status["podIP"], "podIPs": status["podIPs"] });
            ("pods", json!({ "nodeName": spec["nodeName"], "containers": containers }), status)
        }
        _ => ("services", json!({ "type": spec["type"], "ports": [{ "port": 80 }] }), status.clone()),
    };
    let object = json!({ "apiVersion": "v1", "kind": recorded["kind"], "metadata": metadata, "spec": spec });
    admin.apply_object(&object).unwrap();
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let path = format!("/api/v1/namespaces/{}/{plural}/{}/status", text("namespace"), text("name"));
    admin.patch(&path, &json!({ "status": status })).unwrap().success().unwrap();
}

fn comparable(mut value: Value) -> Value {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| !OF_THE_RUN.contains(&field.as_str()));
    }
    value
}

fn changes(before: &Content, after: &Content) -> Changes {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    changed.map(|key| (key.clone(), after.get(key).cloned())).collect()
}

/// Returns the rows of a table, sorted, with this number of columns.
pub(crate) fn rows(table: &str, columns: usize) -> Vec<Vec<String>> {
    let cells = |line: &str| line.split('|').skip(1).take(columns).map(|cell| cell.trim().to_owned()).collect();
    let mut rows: Vec<Vec<String>> = table.lines().filter(|line| line.starts_with('|')).map(cells).collect();
    rows.sort();
    rows
}
