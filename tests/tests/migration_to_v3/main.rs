//! A migration to `projectcalico.org/v3` by kube-controllers, on real servers. The tests start in
//! the order of their names: the longest ones, in `abrupt_ends` and `aggregated`, are the first.

mod abrupt_ends;
mod aggregated;
mod collector;
mod course;
mod dry_run;
mod kubelet;
mod late_writes;
mod objects;
mod pods;
mod stand_in;
mod tenant;

use std::collections::BTreeMap;

use anyhow::Result;
use integration_tests::controllers::{Controllers, PATIENCE, World, await_that};
use integration_tests::kubernetes::{
    ApiServer, Client, Objects, ServiceAccount, on_prepared_kubernetes,
};
use integration_tests::migration::Migration;
use integration_tests::namespaces::Host;
use integration_tests::node::Node;
use libcalico::kubernetes::{ApiGroup, Location, Resource};
use libcalico::migration::moved_kinds;
use serde_json::{Value, json};

/// The accounts of plugins, and of a replica whose requests a test reads in the audit log.
const ACCOUNTS: [&str; 2] = [PLUGIN, AUDITED];
const PLUGIN: &str = "plugin";
pub(crate) const AUDITED: &str = "audited";

/// A cluster whose objects are in v1.
pub(crate) struct Scene<'a> {
    pub(crate) host: &'a Host,
    pub(crate) api: &'a ApiServer,
    pub(crate) world: World<'a>,
    pub(crate) migration: Migration<'a>,
}

/// Creates an account that may do everything. Writes nothing if it exists.
pub(crate) fn account(api: &ApiServer, name: &str) -> Result<ServiceAccount> {
    let account = api.service_account("kube-system", name)?;
    api.bind(&account, "cluster-admin")?;
    Ok(account)
}

/// Runs a test on a cluster with the node `node1` and an object of each kind in v1.
pub(crate) fn on(test: impl FnOnce(&Scene<'_>) + Send) {
    let group = Some(ApiGroup::CrdV1);
    let prepare = move |api: &ApiServer| {
        World::prepare(api, group)?;
        Migration::prepare(api)?;
        tenant::prepare(api)?;
        ACCOUNTS
            .into_iter()
            .try_for_each(|name| account(api, name).map(drop))
    };
    on_prepared_kubernetes("a migration", prepare, |host, servers| {
        let world = World::prepared(servers, group);
        let scene = Scene {
            host,
            api: world.api,
            world,
            migration: Migration::prepared(world.api),
        };
        world.node("node1", "192.0.2.1");
        scene
            .api
            .admin()
            .create(&information().collection(), &ready_information())
            .unwrap()
            .success()
            .unwrap();
        objects::sources()
            .iter()
            .for_each(|source| source.create(scene.api.admin()));
        test(&scene);
    });
}

impl Scene<'_> {
    /// Starts kube-controllers, whose objects in v1 are initialized as soon as this function
    /// returns.
    pub(crate) fn start(&self, name: &str) -> Controllers {
        let process = self.migration.setup(name).start(self.host, name).unwrap();
        let has_tier = |name: &str| !self.world.calico("tiers", name).is_null();
        self.migration.until(&process, "v1 is initialized", || {
            let settings = self
                .world
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
        let account = account(self.api, PLUGIN).unwrap();
        kubelet::following_node(self.host, name, (self.api, &account))
    }

    /// Reads all objects of a group, without the resourceVersion of its ClusterInformation.
    pub(crate) fn dump(&self, group: ApiGroup) -> BTreeMap<String, Value> {
        let mut all = Objects::new(self.api.admin(), group, self.api.admin_kubeconfig())
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
            self.api.admin(),
            &at(ApiGroup::V3, kind, namespace, name),
            json!({}),
            spec,
        )
    }

    /// Returns an object of v3; null if it is missing.
    pub(crate) fn in_v3(&self, kind: &str, namespace: Option<&str>, name: &str) -> Value {
        let answer = self
            .api
            .admin()
            .get(&at(ApiGroup::V3, kind, namespace, name).url_path())
            .unwrap();
        if answer.code == 404 {
            Value::Null
        } else {
            answer.success().unwrap()
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
            self.world.apply(json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": { "name": "refusal-of-a-test" }, "spec": spec,
            }));
        }
        let at = Location::global(resource, name);
        let attempt = |query: &str| {
            let path = format!("{}{query}", at.collection());
            Ok::<u16, anyhow::Error>(
                self.api
                    .admin()
                    .create(&path, &body(&at, json!({}), &json!({})))?
                    .code,
            )
        };
        // A policy takes effect a moment after it was written.
        let is_in_effect = || {
            if attempt("")? == 201 {
                self.api.admin().delete(&at.url_path())?.success()?;
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
        .unwrap()
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
