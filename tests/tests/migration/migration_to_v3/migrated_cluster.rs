//! [`MigratedCluster`]: a cluster with an object of each kind in v1, for a migration by
//! kube-controllers.

use std::collections::BTreeMap;

use integration_tests::Place;
use integration_tests::controllers::{
    Controllers, ControllersCluster, PATIENCE, Proxied, await_that, on_prepared,
};
use integration_tests::kubernetes::{ApiServer, Client, Objects};
use integration_tests::migration::Migration;
use integration_tests::node::Node;
pub(crate) use integration_tests::on;
use libcalico::kubernetes::{ApiGroup, Location, Resource};
use libcalico::migration::moved_kinds;
use serde_json::{Value, json};

use crate::migration_to_v3::{kubelet, objects, tenant};

/// The accounts of plugins, and of a replica whose requests a test reads in the audit log.
const ACCOUNTS: [&str; 2] = [PLUGIN, AUDITED];
const PLUGIN: &str = "plugin";
pub(crate) const AUDITED: &str = "audited";

/// A cluster whose objects are in v1.
pub(crate) struct MigratedCluster<'a> {
    pub(crate) servers: ControllersCluster<'a>,
    pub(crate) migration: Migration<'a>,
}

/// Runs a test on a cluster with the node `node1` and an object of each kind in v1.
pub(crate) fn on(place: Place, test: fn(&MigratedCluster<'_>)) {
    let prepare = |api: &ApiServer| {
        Migration::prepare(api)?;
        tenant::prepare(api)?;
        ACCOUNTS
            .into_iter()
            .try_for_each(|name| Proxied::account(api, name).map(drop))
    };
    on_prepared("a migration", place, prepare, |servers| {
        let migration = Migration::prepared(servers.api);
        servers.node("node1", "192.0.2.1");
        servers.create(&information().collection(), &ready_information());
        objects::sources()
            .iter()
            .for_each(|source| source.create(servers.admin()));
        test(&MigratedCluster {
            servers: *servers,
            migration,
        });
    });
}

impl MigratedCluster<'_> {
    /// Starts kube-controllers, whose objects in v1 are initialized as soon as this function
    /// returns.
    pub(crate) fn start(&self, name: &str) -> Controllers {
        let process = self
            .migration
            .setup(name)
            .start(self.servers.host, name)
            .unwrap();
        let has_tier = |name: &str| !self.servers.calico("tiers", name).is_null();
        self.migration.until(&process, "v1 is initialized", || {
            let settings = self
                .servers
                .calico("kubecontrollersconfigurations", "default");
            ["default", "kube-admin", "kube-baseline"]
                .into_iter()
                .all(has_tier)
                && !settings["status"].is_null()
        });
        process
    }

    /// Waits until the migration has locked v1 and says so. Copying begins ten seconds after the
    /// lock.
    #[track_caller]
    pub(crate) fn await_lock(&self, process: &Controllers) {
        self.migration.until(process, "v1 is locked", || {
            !self.migration.is_ready(ApiGroup::CrdV1)
        });
        self.migration
            .await_message(process, "Waiting for in-flight datastore writes to drain");
    }

    /// Creates the plugins of a node, which may do everything and follow a migration.
    pub(crate) fn node(&self, name: &str) -> Node {
        let account = Proxied::account(self.servers.api, PLUGIN).unwrap();
        kubelet::following_node(self.servers.host, name, (self.servers.api, &account))
    }

    /// Reads all objects of a group, without the resourceVersion of its ClusterInformation.
    pub(crate) fn dump(&self, group: ApiGroup) -> BTreeMap<String, Value> {
        let api = self.servers.api;
        let mut all = Objects::new(api.admin(), group, api.admin_kubeconfig())
            .dump()
            .unwrap();
        all.retain(|key, _| !key.starts_with("pods/"));
        if let Some(information) = all.get_mut("clusterinformations/default") {
            information["metadata"]["resourceVersion"] = Value::Null;
        }
        all
    }

    /// Creates an object of v3 without marks.
    pub(crate) fn create_in_v3(
        &self,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        spec: &Value,
    ) -> Value {
        create(
            self.servers.admin(),
            &at(ApiGroup::V3, kind, namespace, name),
            json!({}),
            spec,
        )
    }

    /// Returns an object of v3; null if it is missing.
    pub(crate) fn in_v3(&self, kind: &str, namespace: Option<&str>, name: &str) -> Value {
        let answer = self
            .servers
            .admin()
            .get(&at(ApiGroup::V3, kind, namespace, name).url_path())
            .unwrap();
        if answer.code == 404 {
            Value::Null
        } else {
            answer.success()
        }
    }

    /// Makes the API server refuse to create an object of this resource and name, except in dry
    /// runs if `only_in_earnest`.
    pub(crate) fn refuse(&self, resource: Resource, name: &str, only_in_earnest: bool) {
        let rule = json!({
            "apiGroups": [ApiGroup::V3.name()], "apiVersions": ["*"], "operations": ["CREATE"],
            "resources": [resource.plural],
        });
        let expression =
            format!("object.metadata.name != '{name}' || ({only_in_earnest} && request.dryRun)");
        let validations = json!([{ "expression": expression }]);
        let policy =
            json!({ "matchConstraints": { "resourceRules": [rule] }, "validations": validations });
        let binding = json!({ "policyName": "refusal-of-a-test", "validationActions": ["Deny"] });
        for (kind, spec) in [
            ("ValidatingAdmissionPolicy", policy),
            ("ValidatingAdmissionPolicyBinding", binding),
        ] {
            self.servers.apply(json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": { "name": "refusal-of-a-test" }, "spec": spec,
            }));
        }
        let at = Location::global(resource, name);
        let attempt = |query: &str| {
            let path = format!("{}{query}", at.collection());
            Ok::<u16, anyhow::Error>(
                self.servers
                    .admin()
                    .create(&path, &body(&at, json!({}), &json!({})))?
                    .code,
            )
        };
        // A policy takes effect a moment after it was written.
        let is_in_effect = || {
            if attempt("")? == 201 {
                self.servers.admin().delete(&at.url_path())?.checked()?;
                return Ok(false);
            }
            Ok((attempt("?dryRun=All")? == 201) == only_in_earnest)
        };
        await_that(PATIENCE, is_in_effect).unwrap();
    }
}

/// Returns the location of an object of a kind that a migration copies. `kind` is the kind in v3.
pub(crate) fn at(group: ApiGroup, kind: &str, namespace: Option<&str>, name: &str) -> Location {
    let moved = moved_kinds()
        .into_iter()
        .find(|moved| moved.v3.kind == kind)
        .unwrap();
    let resource = if group == ApiGroup::V3 {
        moved.v3
    } else {
        moved.v1
    };
    Location {
        resource,
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    }
}

/// Creates an object with these annotations, and returns the stored object.
pub(crate) fn create(client: &Client, at: &Location, annotations: Value, spec: &Value) -> Value {
    client
        .create(&at.collection(), &body(at, annotations, spec))
        .unwrap()
        .success()
}

fn body(at: &Location, annotations: Value, spec: &Value) -> Value {
    let mut metadata = json!({ "name": at.name, "annotations": annotations });
    if let Some(namespace) = &at.namespace {
        metadata["namespace"] = namespace.as_str().into();
    }
    let Resource {
        api_version, kind, ..
    } = at.resource;
    json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec })
}

fn information() -> Location {
    libcalico::migration::cluster_information(ApiGroup::CrdV1)
}

fn ready_information() -> Value {
    let spec = json!({ "clusterGUID": "0123456789abcdef0123456789abcdef", "datastoreReady": true });
    body(&information(), json!({}), &spec)
}
