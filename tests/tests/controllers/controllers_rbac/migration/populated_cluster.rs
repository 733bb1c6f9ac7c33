//! [`PopulatedCluster`]: a cluster with an object of each kind in v1 and with the objects that
//! kube-controllers check before a migration. [`Rights`]: the role of the migration.

use std::fs;

use integration_tests::controllers::{
    Controllers, ControllersCluster, METRICS_PORT, PATIENCE, await_that, metrics,
};
use integration_tests::kubernetes::Role;
use integration_tests::manifests::{compose, deploy, parse};
use libcalico::kubernetes::{ApiGroup, Location, Resource};
use libcalico::migration::{
    DATASTORE_MIGRATIONS, DRY_RUN, MIGRATION_NAME, MIGRATION_TYPE, moved_kinds,
};
use serde_json::{Value, json};

use crate::controllers_rbac::NAMESPACE;

pub(super) const NAME: &str = "calico-kube-controllers-migration";
/// The pod of kube-controllers.
pub(super) const POD: &str = "controllers-1";
/// An object of v1 that v3 refuses after [`PopulatedCluster::refuse_before_the_lock`] or
/// [`PopulatedCluster::refuse_under_the_lock`].
pub(super) const REFUSED: &str = "refused";

/// An object that starts no migration.
const IGNORED: &str = "of-another-name";

const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v3.projectcalico.org";
const OF_V3: &str = "/apis/projectcalico.org/v3";

/// The permissions of a migration.
pub(super) struct Rights {
    pub(super) cluster: Role,
    /// The rules in the namespace of kube-controllers.
    pub(super) namespace: Role,
}

impl Rights {
    /// Reads the roles of the component. A rule about named objects counts as one about all
    /// objects.
    pub(super) fn read() -> Rights {
        let objects = parse(&manifest()).unwrap();
        let role = |kind: &str, place: &str| {
            let mut rules =
                objects[&format!("{kind}.rbac.authorization.k8s.io {place}{NAME}")]["rules"]
                    .clone();
            for rule in rules.as_array_mut().unwrap() {
                rule.as_object_mut().unwrap().remove("resourceNames");
            }
            Role::of_rules(&rules).unwrap()
        };
        Rights {
            cluster: role("ClusterRole", ""),
            namespace: role("Role", &format!("{NAMESPACE}/")),
        }
    }

    pub(super) fn all(&self) -> Role {
        Role(self.cluster.0.union(&self.namespace.0).cloned().collect())
    }
}

pub(super) fn manifest() -> String {
    fs::read_to_string(deploy("components/migrate-to-v3/rbac.yaml")).unwrap()
}

pub(super) struct PopulatedCluster<'a> {
    pub(super) cluster: ControllersCluster<'a>,
}

impl<'a> PopulatedCluster<'a> {
    /// Defines all kinds, and applies the workload on nodes as if it were rolled out, and the pod
    /// of kube-controllers, whose account exists.
    pub(super) fn new(cluster: &ControllersCluster<'a>) -> PopulatedCluster<'a> {
        cluster.api.define_for_migration().unwrap();
        let overlay = ["overlays/kubernetes-v1"];
        let objects = compose(
            &cluster.host.dir("manifests"),
            &overlay,
            &["components/migrate-to-v3"],
        )
        .unwrap();
        for (_, object) in objects.iter().filter(|(name, _)| {
            ["ConfigMap ", "DaemonSet."]
                .iter()
                .any(|kind| name.starts_with(kind))
        }) {
            cluster.apply(object.clone());
        }
        let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/calico-cni");
        let daemon_set = cluster.get(&path);
        let status = json!({
            "observedGeneration": daemon_set["metadata"]["generation"], "desiredNumberScheduled": 1,
            "currentNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": 1,
            "updatedNumberScheduled": 1,
            "numberAvailable": 1,
        });
        cluster.merge(&format!("{path}/status"), &json!({ "status": status }));
        cluster.apply(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": POD, "namespace": NAMESPACE },
            "spec": {
                "nodeName": "n1", "hostNetwork": true, "serviceAccountName": crate::controllers_rbac::NAME,
                "containers": [{ "name": "c", "image": "i" }],
            },
        }));
        PopulatedCluster { cluster: *cluster }
    }

    /// Creates an object of each kind in v1, except those that kube-controllers create.
    pub(super) fn populate(&self) {
        let cluster = &self.cluster;
        self.cluster.admin().node("n1").unwrap();
        cluster.pool("pool4", "10.65.0.0/16", "Workload");
        cluster.address_left_behind("n1", "10.65.1.0");
        cluster.put(
            "IPReservation",
            "ipreservations",
            "some",
            &json!({ "reservedCIDRs": ["10.65.0.0/30"] }),
        );
        let settings = json!({ "strictAffinity": false, "autoAllocateBlocks": true });
        cluster.put("IPAMConfig", "ipamconfigs", "default", &settings);
        cluster.put(
            "HostEndpoint",
            "hostendpoints",
            "n1",
            &json!({ "node": "n1", "interfaceName": "eth0" }),
        );
        cluster.put(
            "CalicoNodeStatus",
            "caliconodestatuses",
            REFUSED,
            &json!({}),
        );
        let policy = json!({ "tier": "default", "selector": "all()" });
        for (kind, spec) in [
            ("BGPConfiguration", &json!({})),
            ("BGPFilter", &json!({})),
            ("BGPPeer", &json!({})),
            ("CalicoNodeStatus", &json!({})),
            ("FelixConfiguration", &json!({})),
            ("GlobalNetworkPolicy", &policy),
            ("GlobalNetworkSet", &json!({})),
            ("NetworkPolicy", &policy),
            ("NetworkSet", &json!({})),
            ("StagedGlobalNetworkPolicy", &policy),
            ("StagedKubernetesNetworkPolicy", &json!({})),
            ("StagedNetworkPolicy", &policy),
        ] {
            let moved = moved_kinds()
                .into_iter()
                .find(|moved| moved.v1.kind == kind)
                .unwrap();
            cluster.put(kind, moved.v1.plural, "a", spec);
        }
    }

    /// Sets the finalizers of all objects in v1 that a migration copies.
    pub(super) fn set_finalizers(&self, finalizers: &Value) {
        for resource in moved_kinds().into_iter().map(|moved| moved.v1) {
            let objects = self.list(resource);
            assert!(!objects.is_empty(), "v1 has no {}", resource.kind);
            for at in objects {
                self.cluster.merge(
                    &at.url_path(),
                    &json!({ "metadata": { "finalizers": finalizers } }),
                );
            }
        }
    }

    /// Returns the locations of all objects of a kind.
    pub(super) fn list(&self, resource: Resource) -> Vec<Location> {
        let list = self.cluster.read(&resource.collection(None));
        let location = |object: &Value| {
            let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
            Location {
                resource,
                namespace: text("namespace"),
                name: text("name").unwrap(),
            }
        };
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(location)
            .collect()
    }

    // === The object that starts a migration ===

    pub(super) fn create_migration(&self, dry_run: Option<&str>) {
        self.create(MIGRATION_NAME, dry_run.map(|text| json!({ DRY_RUN: text })));
    }

    /// Creates the object [`IGNORED`].
    pub(super) fn create_ignored(&self) {
        self.create(IGNORED, None);
    }

    fn create(&self, name: &str, annotations: Option<Value>) {
        let object = json!({
            "apiVersion": DATASTORE_MIGRATIONS.api_version, "kind": DATASTORE_MIGRATIONS.kind,
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "type": MIGRATION_TYPE },
        });
        self.cluster
            .create(&DATASTORE_MIGRATIONS.collection(None), &object);
    }

    pub(super) fn annotate_dry_run(&self, text: Option<&str>) {
        self.cluster.merge(
            &path_of_migration(),
            &json!({ "metadata": { "annotations": { DRY_RUN: text } } }),
        );
    }

    pub(super) fn delete_migration(&self) {
        self.cluster.remove(&path_of_migration());
    }

    /// Returns the status of the object.
    pub(super) fn status(&self) -> Value {
        self.cluster.get(&path_of_migration())["status"].take()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.cluster.admin().get(&path_of_migration()).unwrap().code == 404
    }

    pub(super) fn message(&self) -> String {
        self.status()["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Returns true if kube-controllers have reported this dry run.
    pub(super) fn has_made_dry_run(&self, text: &str) -> bool {
        let status = self.status();
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "DryRun" && condition["message"] == text)
    }

    // === Obstacles ===

    /// Makes the API server refuse to create [`REFUSED`] in v3, but accept it in a dry run.
    pub(super) fn refuse_under_the_lock(&self) {
        self.refuse("request.dryRun", "");
    }

    /// Makes the API server refuse to create [`REFUSED`] in v3, also in a dry run.
    pub(super) fn refuse_before_the_lock(&self) {
        self.refuse("false", "?dryRun=All");
    }

    fn refuse(&self, exception: &str, query: &str) {
        let name = "refusal-of-a-test";
        let rule = json!({
            "apiGroups": [ApiGroup::V3.name()], "apiVersions": ["*"], "operations": ["CREATE"],
            "resources": ["caliconodestatuses"],
        });
        let expression = format!("object.metadata.name != '{REFUSED}' || {exception}");
        let api_version = "admissionregistration.k8s.io/v1";
        self.cluster.apply(json!({
            "apiVersion": api_version, "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "matchConstraints": { "resourceRules": [rule] },
                "validations": [{ "expression": expression }],
            },
        }));
        self.cluster.apply(json!({
            "apiVersion": api_version, "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        }));
        let (all, kind) = (format!("{OF_V3}/caliconodestatuses"), "CalicoNodeStatus");
        let metadata = json!({ "name": REFUSED });
        let object =
            json!({ "apiVersion": ApiGroup::V3.api_version(), "kind": kind, "metadata": metadata });
        // The server applies a policy a moment after the write.
        let is_refused = || {
            let answer = self
                .cluster
                .admin()
                .create(&format!("{all}{query}"), &object)?;
            if answer.code == 201 && query.is_empty() {
                self.cluster.remove(&format!("{all}/{REFUSED}"));
            }
            Ok(answer.code == 422)
        };
        await_that(PATIENCE, is_refused).unwrap();
    }

    /// Makes a server that does not exist serve v3, in place of Calico's API server.
    pub(super) fn aggregate(&self) {
        // The API server also writes the object, so it is not replaced.
        let service = json!({ "namespace": "calico-apiserver", "name": "calico-api" });
        let spec = json!({ "service": service, "insecureSkipTLSVerify": true });
        self.cluster.merge(
            API_SERVICE,
            &json!({ "metadata": { "labels": null }, "spec": spec }),
        );
        let is_unavailable = || Ok(self.cluster.admin().get(OF_V3)?.code == 503);
        await_that(PATIENCE, is_unavailable).unwrap();
    }

    pub(super) fn is_aggregated(&self) -> bool {
        self.cluster.get(API_SERVICE)["spec"]["service"].is_object()
    }

    /// Waits until a condition holds, for longer than the pause between two looks for the object.
    #[track_caller]
    pub(super) fn until(&self, controllers: &Controllers, what: &str, is_so: impl Fn() -> bool) {
        let seen = await_that(PATIENCE * 3, || Ok(is_so()));
        assert!(
            seen.is_ok(),
            "{what}: not seen\n{:#}\n{}",
            self.status(),
            controllers.log().unwrap_or_default()
        );
    }
}

/// Returns true if the metrics show that the role of the migration is missing.
pub(super) fn is_role_missing() -> bool {
    let line = "kube_controllers_missing_rights{role=\"migration\"} 1";
    metrics(METRICS_PORT).is_ok_and(|page| page.lines().any(|shown| shown == line))
}

fn path_of_migration() -> String {
    Location::global(DATASTORE_MIGRATIONS, MIGRATION_NAME).url_path()
}
