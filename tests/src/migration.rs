//! [`Migration`]: a migration to `projectcalico.org/v3` by kube-controllers, with the objects that
//! they check before. [`migrate`] and [`set_ready`]: states of an API server during and after a
//! migration, without the program that migrates.

use anyhow::Result;
use libcalico::kubernetes::{ApiGroup, Location};
use libcalico::migration::{
    DATASTORE_MIGRATIONS, DRY_RUN, MIGRATED_BY, MIGRATION_NAME, MIGRATION_TYPE, cluster_information,
};
use serde_json::{Value, json};

use crate::controllers::{Controllers, PATIENCE, Setup, await_that, exit_text};
use crate::kubernetes::ApiServer;
use crate::manifests::NAMESPACE;

/// Name of the plugin's DaemonSet.
pub const PLUGIN: &str = "calico-cni";

/// A migration on an API server whose objects are in v1.
#[derive(Debug, Clone, Copy)]
pub struct Migration<'a> {
    api: &'a ApiServer,
}

/// Methods that send a request panic if the API server refuses the request.
impl<'a> Migration<'a> {
    /// Prepares the API server, and creates the plugin's DaemonSet, whose configuration names no
    /// API group.
    pub fn new(api: &'a ApiServer) -> Migration<'a> {
        Migration::prepare(api).unwrap();
        Migration::prepared(api)
    }

    /// Defines all kinds, and creates the namespace of the plugin.
    pub fn prepare(api: &ApiServer) -> Result<()> {
        api.define_for_migration()?;
        api.namespace(NAMESPACE)
    }

    /// Does the same as [`Migration::new`] on an API server on which [`Migration::prepare`] has
    /// run.
    pub fn prepared(api: &'a ApiServer) -> Migration<'a> {
        let migration = Migration { api };
        migration.roll_out("DaemonSet", PLUGIN, &installer(Some("")));
        migration
    }

    // === Workloads ===

    /// Creates or changes a DaemonSet or Deployment with the containers of `pod_spec`.
    pub fn apply_workload(&self, kind: &str, name: &str, pod_spec: &Value) {
        let labels = json!({ "k8s-app": name });
        let template = json!({ "metadata": { "labels": labels }, "spec": pod_spec });
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        let spec = json!({ "selector": { "matchLabels": labels }, "template": template });
        let workload =
            json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec });
        self.api.admin().apply_object(&workload).unwrap();
    }

    /// Reports that a DaemonSet or Deployment is rolled out, as Kubernetes' controllers do.
    pub fn report_rollout(&self, kind: &str, name: &str) {
        let path = format!(
            "/apis/apps/v1/namespaces/{NAMESPACE}/{}s/{name}",
            kind.to_lowercase()
        );
        let generation = &self.get(&path)["metadata"]["generation"];
        let status = if kind == "DaemonSet" {
            json!({
                "observedGeneration": generation, "desiredNumberScheduled": 1,
                "currentNumberScheduled": 1,
                "numberMisscheduled": 0, "numberReady": 1, "updatedNumberScheduled": 1,
                "numberAvailable": 1,
            })
        } else {
            json!({
                "observedGeneration": generation, "replicas": 1, "updatedReplicas": 1,
                "readyReplicas": 1,
                "availableReplicas": 1,
            })
        };
        self.api
            .admin()
            .patch(&format!("{path}/status"), &json!({ "status": status }))
            .unwrap()
            .success();
    }

    /// Creates or changes a DaemonSet or Deployment, rolled out.
    pub fn roll_out(&self, kind: &str, name: &str, pod_spec: &Value) {
        self.apply_workload(kind, name, pod_spec);
        self.report_rollout(kind, name);
    }

    // === kube-controllers ===

    /// Creates a pod on the host network. Returns the environment of kube-controllers in this pod.
    pub fn pod(&self, name: &str) -> [(&'static str, String); 2] {
        let spec = json!({
            "nodeName": "node1", "hostNetwork": true,
            "containers": [{ "name": "c", "image": "none" }],
        });
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        let made = self
            .api
            .admin()
            .create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod)
            .unwrap();
        assert!(matches!(made.code, 201 | 409), "{made:?}");
        [
            ("POD_NAME", name.to_owned()),
            ("POD_NAMESPACE", NAMESPACE.to_owned()),
        ]
    }

    /// Adds to a setup that kube-controllers run in a pod on the host network.
    pub fn in_pod(&self, setup: Setup, name: &str) -> Setup {
        self.pod(name)
            .into_iter()
            .fold(setup, |setup, (name, value)| setup.env(name, value))
    }

    /// Prepares kube-controllers with the rights of the administrator. Their environment names no
    /// API group.
    pub fn setup(&self, name: &str) -> Setup {
        self.in_pod(Setup::kubernetes(self.api).unwrap(), name)
    }

    /// Waits until v3 is open and the process has ended, restarts it, and waits until the migration
    /// is complete.
    #[track_caller]
    pub fn finish(&self, process: &mut Controllers) {
        self.await_open(process);
        process.restart().unwrap();
        self.await_phase(process, "Complete");
    }

    /// Waits until v3 is open and the process, which uses v1, has ended.
    #[track_caller]
    pub fn await_open(&self, process: &mut Controllers) {
        self.await_phase(process, "Converged");
        assert_eq!(
            exit_text(process.ended().unwrap()),
            "1",
            "{}",
            process.log().unwrap()
        );
    }

    // === The object that controls the migration ===

    /// Creates the object, with the annotation for a dry run if `dry_run` has its text.
    pub fn create(&self, dry_run: Option<&str>) {
        let mut metadata = json!({ "name": MIGRATION_NAME });
        if let Some(text) = dry_run {
            metadata["annotations"][DRY_RUN] = text.into();
        }
        let object = json!({
            "apiVersion": DATASTORE_MIGRATIONS.api_version, "kind": DATASTORE_MIGRATIONS.kind,
            "metadata": metadata,
            "spec": { "type": MIGRATION_TYPE },
        });
        self.api
            .admin()
            .create(&DATASTORE_MIGRATIONS.collection(None), &object)
            .unwrap()
            .success();
    }

    /// Sets an annotation of the object, or removes it.
    pub fn annotate(&self, key: &str, value: Option<&str>) {
        let mut patch = json!({});
        patch["metadata"]["annotations"][key] = value.into();
        self.api.admin().patch(&path(), &patch).unwrap().success();
    }

    /// Deletes the object, which stays until its finalizer is gone.
    pub fn delete(&self) {
        self.api.admin().delete(&path()).unwrap().success();
    }

    /// Returns true if the object is missing.
    pub fn is_gone(&self) -> bool {
        self.api.admin().get(&path()).unwrap().code == 404
    }

    /// Returns the object, or the `Status` of a failed request.
    pub fn object(&self) -> Value {
        self.get(&path())
    }

    /// Returns the phase of the migration; empty if there is none.
    pub fn phase(&self) -> String {
        text(&self.object()["status"]["phase"])
    }

    /// Returns the message of the migration; empty if there is none.
    pub fn message(&self) -> String {
        text(&self.object()["status"]["message"])
    }

    /// Returns the first condition of this type; null if there is none.
    pub fn condition(&self, kind: &str) -> Value {
        let object = self.object();
        let mut conditions = object["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        conditions
            .find(|condition| condition["type"] == kind)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns true if the ClusterInformation of a group is ready.
    pub fn is_ready(&self, group: ApiGroup) -> bool {
        self.get(&cluster_information(group).url_path())["spec"]["datastoreReady"] == true
    }

    /// Returns true if the ClusterInformation of a group exists and is locked.
    pub fn is_locked(&self, group: ApiGroup) -> bool {
        self.get(&cluster_information(group).url_path())["spec"]["datastoreReady"] == false
    }

    // === Waiting ===

    /// Waits until a condition holds, for longer than kube-controllers pause between two looks for
    /// the object.
    #[track_caller]
    pub fn until(&self, process: &Controllers, what: &str, is_so: impl Fn() -> bool) {
        let seen = await_that(PATIENCE * 3, || Ok(is_so()));
        assert!(
            seen.is_ok(),
            "{what}: not seen\n{:#}\n{}",
            self.object(),
            process.log().unwrap_or_default()
        );
    }

    /// Waits for a phase.
    #[track_caller]
    pub fn await_phase(&self, process: &Controllers, phase: &str) {
        self.until(process, phase, || self.phase() == phase);
    }

    /// Waits for a message that contains this text.
    #[track_caller]
    pub fn await_message(&self, process: &Controllers, part: &str) {
        self.until(process, part, || self.message().contains(part));
    }

    fn get(&self, path: &str) -> Value {
        self.api.admin().get(path).unwrap().body
    }
}

/// Returns the spec of a pod with an installer and a main program. `group` is the installer's
/// `CALICO_API_GROUP`.
pub fn installer(group: Option<&str>) -> Value {
    let template =
        json!({ "plugins": [{ "type": "calico", "calico_api_group": "__CALICO_API_GROUP__" }] });
    let mut environment =
        vec![json!({ "name": "CNI_NETWORK_CONFIG", "value": template.to_string() })];
    environment.extend(group.map(|group| json!({ "name": "CALICO_API_GROUP", "value": group })));
    json!({
        "initContainers": [{ "name": "install-cni", "image": "none", "env": environment }],
        "containers": [{ "name": "main", "image": "none" }],
    })
}

fn path() -> String {
    Location::global(DATASTORE_MIGRATIONS, MIGRATION_NAME).url_path()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Locks `crd.projectcalico.org/v1`, or unlocks it.
///
/// # Panics
/// The API server refuses the request.
pub fn set_ready(api: &ApiServer, ready: bool) {
    let path = cluster_information(ApiGroup::CrdV1).url_path();
    let spec = json!({ "spec": { "datastoreReady": ready } });
    api.admin().patch(&path, &spec).unwrap().success();
}

/// Reproduces the state that a migration reaches with `Converged`: v1 is locked, and v3 has the
/// objects of IPAM and is open.
///
/// # Panics
/// The API server refuses a request.
pub fn migrate(api: &ApiServer) {
    let (v1, v3) = (ApiGroup::CrdV1.api_version(), ApiGroup::V3.api_version());
    let admin = api.admin();
    api.define(v3).unwrap();
    set_ready(api, false);
    for plural in [
        "ippools",
        "blockaffinities",
        "ipamblocks",
        "ipamhandles",
        "clusterinformations",
    ] {
        let items = admin
            .get(&format!("/apis/{v1}/{plural}"))
            .unwrap()
            .success()["items"]
            .take();
        for mut object in items.as_array().unwrap().clone() {
            let mut metadata = json!({
                "name": object["metadata"]["name"], "labels": object["metadata"]["labels"],
            });
            metadata["annotations"][MIGRATED_BY] = "uid".into();
            object["metadata"] = metadata;
            object["apiVersion"] = json!(v3);
            match plural {
                "clusterinformations" => object["spec"]["datastoreReady"] = json!(true),
                // The value is a string in v1.
                "blockaffinities" => object["spec"]["deleted"] = json!(false),
                _ => {}
            }
            admin
                .create(&format!("/apis/{v3}/{plural}"), &object)
                .unwrap()
                .success();
        }
    }
}

/// Returns the number of handles in a group.
///
/// # Panics
/// The API server refuses the request.
pub fn handles(api: &ApiServer, group: ApiGroup) -> usize {
    let list = api
        .admin()
        .get(&format!("/apis/{}/ipamhandles", group.api_version()))
        .unwrap()
        .success();
    list["items"].as_array().unwrap().len()
}
