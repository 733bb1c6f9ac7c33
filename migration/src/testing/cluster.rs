//! [`MigratedCluster`]: a cluster before a migration, and the processes of kube-controllers that run on it.

use std::time::Duration;

use kube_controllers::leader::Leadership;
use kube_controllers::run::MigrationContext;
use kube_controllers::telemetry::Metrics;
use libcalico::kubernetes::{ApiGroup, Location, Preconditions, Resource};
use libcalico::migration::{
    DATASTORE_MIGRATIONS, cluster_information, definition_name, moved_kinds,
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::server::ApiServer;
use super::store::ObjectStore;
use crate::marks::V3Access;
use crate::{NAMESPACE, requests::Requests};

/// Simulated time within which a test ends.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

pub(crate) const DEFINITIONS: Resource = Resource {
    api_version: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    namespaced: false,
};
pub(crate) const API_SERVICES: Resource = Resource {
    api_version: "apiregistration.k8s.io/v1",
    kind: "APIService",
    plural: "apiservices",
    namespaced: false,
};
pub(crate) const DAEMON_SETS: Resource = Resource {
    api_version: "apps/v1",
    kind: "DaemonSet",
    plural: "daemonsets",
    namespaced: true,
};

/// The end of a process.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The migration ended the process, or was stopped.
    ByItself(Option<ApiGroup>),
    /// An interruption of the server ended the process.
    Killed,
    /// The condition of the caller held.
    Reached,
}

/// A cluster whose objects are in v1, with the definitions of both groups, the plugin's DaemonSet
/// and some objects.
pub(crate) struct MigratedCluster {
    pub(crate) server: ApiServer,
    /// The group in the environment of kube-controllers.
    pub(crate) configured: Option<ApiGroup>,
    /// The metrics of all processes, whose counters go on from one process to the next.
    pub(crate) metrics: Metrics,
}

impl MigratedCluster {
    pub(crate) fn new() -> Self {
        let server = ApiServer::new();
        server.with_store(|store| {
            for kind in moved_kinds() {
                define(store, &kind.v1);
                define(store, &kind.v3);
            }
            for group in [ApiGroup::CrdV1, ApiGroup::V3] {
                define(store, &cluster_information(group).resource);
            }
            define(store, &DATASTORE_MIGRATIONS);
            store.put(
                &cluster_information(ApiGroup::CrdV1),
                json!({ "spec": { "datastoreReady": true, "clusterGUID": "g" } }),
            );
            store.put(
                &Location::namespaced(DAEMON_SETS, NAMESPACE, "calico-cni"),
                plugin_daemon_set(),
            );
            for (kind, namespace, name, object) in objects() {
                store.put(&at(ApiGroup::CrdV1, kind, namespace, name), object);
            }
        });
        MigratedCluster {
            server,
            configured: None,
            metrics: Metrics::new(),
        }
    }

    /// Returns the requests of a process that is the leader.
    pub(crate) fn requests(&self) -> Requests {
        Requests::new(self.server.client(), Leadership::always())
    }

    /// Creates the object that starts a migration.
    pub(crate) fn start(&self) {
        self.server.with_store(|store| {
            store.put(&object(), json!({ "spec": { "type": "APIServerToCRDs" } }));
        });
    }

    /// Deletes the object of the migration as a user does: it stays until its finalizers are gone.
    pub(crate) async fn delete(&self) {
        self.requests()
            .delete(&object(), &Preconditions::default())
            .await
            .unwrap();
    }

    /// Puts an APIService of an aggregated API server in front of v3.
    pub(crate) fn aggregate(&self) {
        self.server.with_store(|store| {
            let service = json!({ "name": "calico-api", "namespace": "calico-apiserver" });
            let spec = json!({ "group": "projectcalico.org", "version": "v3", "service": service });
            store.put(&api_service(), json!({ "spec": spec }));
        });
    }

    /// Returns the group that a process uses which starts now, by the rule of discovery.
    pub(crate) fn used_group(&self) -> ApiGroup {
        if let Some(group) = self.configured {
            return group;
        }
        let is_v1_ready = self.spec_of_information(ApiGroup::CrdV1)["datastoreReady"] == true;
        let has_v1 = self
            .server
            .object(&definition(&cluster_information(ApiGroup::CrdV1).resource))
            .is_some();
        let is_open = || {
            V3Access::of(
                self.server
                    .object(&cluster_information(ApiGroup::V3))
                    .as_ref(),
            ) == V3Access::Open
        };
        let is_v3 = !has_v1 || !is_v1_ready && is_open();
        if is_v3 { ApiGroup::V3 } else { ApiGroup::CrdV1 }
    }

    /// Runs one process until it ends, is killed or has reached `condition`.
    pub(crate) async fn run_once(&self, condition: impl Fn(&ObjectStore) -> bool) -> Ended {
        self.run_as(Leadership::always(), condition).await
    }

    /// Does the same as [`MigratedCluster::run_once`], with another right to write.
    pub(crate) async fn run_as(
        &self,
        elected: Leadership,
        condition: impl Fn(&ObjectStore) -> bool,
    ) -> Ended {
        let run = crate::run(MigrationContext {
            kubernetes: self.server.client(),
            configured: self.configured,
            used: self.used_group(),
            elected,
            metrics: self.metrics.clone(),
            stop: CancellationToken::new(),
        });
        tokio::select! {
            biased;
            () = self.server.reached(condition) => Ended::Reached,
            () = self.server.interrupted() => {
                self.server.revive();
                Ended::Killed
            }
            ended = run => Ended::ByItself(ended),
        }
    }

    /// Runs one process after another until `condition` holds. Returns the number of processes.
    ///
    /// # Panics
    /// Panics if the condition does not hold within a simulated day.
    pub(crate) async fn run_until(&self, condition: impl Fn(&ObjectStore) -> bool) -> usize {
        let running = async {
            let mut processes = 1;
            while !matches!(self.run_once(&condition).await, Ended::Reached) {
                processes += 1;
            }
            processes
        };
        match timeout(LIMIT, running).await {
            Ok(processes) => processes,
            Err(_) => panic!("no end: {:#?}", self.server.object(&object())),
        }
    }

    /// Lets one process run for a simulated time.
    pub(crate) async fn run_for(&self, time: Duration) {
        let _ = timeout(time, self.run_once(|_| false)).await;
    }

    pub(crate) fn spec_of_information(&self, group: ApiGroup) -> Value {
        self.server
            .object(&cluster_information(group))
            .map_or(Value::Null, |found| found["spec"].clone())
    }

    /// Returns the status of the object of the migration.
    pub(crate) fn status(&self) -> Value {
        self.server
            .object(&object())
            .map_or(Value::Null, |found| found["status"].clone())
    }

    pub(crate) fn phase(&self) -> String {
        self.status()["phase"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) fn message(&self) -> String {
        self.status()["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// Returns the location of the object of the migration.
pub(crate) fn object() -> Location {
    Location::global(DATASTORE_MIGRATIONS, "v1-to-v3")
}

pub(crate) fn api_service() -> Location {
    Location::global(API_SERVICES, "v3.projectcalico.org")
}

/// Returns the location of an object of one of the moved kinds. `kind` is the kind in v3; an empty
/// namespace means that the object is cluster-scoped.
pub(crate) fn at(group: ApiGroup, kind: &str, namespace: &str, name: &str) -> Location {
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
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        name: name.to_owned(),
    }
}

/// Returns true if the object of the migration is in the phase.
pub(crate) fn is_in_phase(store: &ObjectStore, phase: &str) -> bool {
    store
        .get(&object())
        .is_some_and(|found| found["status"]["phase"] == phase)
}

pub(crate) fn definition(of: &Resource) -> Location {
    Location::global(DEFINITIONS, definition_name(of))
}

/// Adds the definition of a kind.
pub(crate) fn define(store: &mut ObjectStore, resource: &Resource) {
    let (group, version) = resource.api_version.split_once('/').unwrap();
    let with_status = [
        "DatastoreMigration",
        "IPPool",
        "Tier",
        "KubeControllersConfiguration",
        "CalicoNodeStatus",
    ];
    let subresources = if with_status.contains(&resource.kind) {
        json!({ "status": {} })
    } else {
        json!({})
    };
    let version =
        json!({ "name": version, "served": true, "storage": true, "subresources": subresources });
    let scope = if resource.namespaced {
        "Namespaced"
    } else {
        "Cluster"
    };
    let names = json!({ "plural": resource.plural, "kind": resource.kind });
    let spec = json!({ "group": group, "scope": scope, "names": names, "versions": [version] });
    store.put(&definition(resource), json!({ "spec": spec }));
}

/// Returns a rolled-out DaemonSet whose configuration lets the plugin follow a migration.
fn plugin_daemon_set() -> Value {
    let environment = json!([
        { "name": "CALICO_API_GROUP", "value": "" },
        { "name": "CNI_NETWORK_CONFIG", "value": r#"{"plugins": [{"type": "calico"}]}"# },
    ]);
    let containers = json!([{ "name": "install", "env": environment }]);
    json!({
        "metadata": { "generation": 1 },
        "spec": { "template": { "spec": { "containers": containers } } },
        "status": {
            "observedGeneration": 1, "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
            "updatedNumberScheduled": 1,
        },
    })
}

/// Returns objects of v1 as Calico stores them: kind in v3, namespace, name and object.
fn objects() -> Vec<(&'static str, &'static str, &'static str, Value)> {
    let mut allocations = vec![Value::Null; 64];
    allocations[5] = json!(0);
    let unallocated: Vec<usize> = (0..64).filter(|ordinal| *ordinal != 5).collect();
    let block = json!({
        "cidr": "10.0.0.0/26", "affinity": "host:node-1", "allocations": allocations,
        "unallocated": unallocated,
        "attributes": [{
            "handle_id": "k8s-pod-network.ab", "secondary": { "pod": "web", "namespace": "ns" },
        }],
        "strictAffinity": false, "deleted": false, "sequenceNumber": 7,
    });
    let affinity = json!({
        "cidr": "10.0.0.0/26", "node": "node-1", "state": "confirmed", "deleted": "false",
    });
    let handle =
        |id: &str| json!({ "handleID": id, "block": { "10.0.0.0/26": 1 }, "deleted": false });
    let tier = json!({ "order": 1_000_000, "defaultAction": "Deny" });
    let settings = json!({ "strictAffinity": false, "autoAllocateBlocks": true });
    vec![
        ("Tier", "", "default", json!({ "spec": tier })),
        (
            "IPPool",
            "",
            "pool",
            json!({ "spec": { "cidr": "10.0.0.0/24", "blockSize": 26, "vxlanMode": "Never" } }),
        ),
        (
            "GlobalNetworkSet",
            "",
            "office",
            json!({ "spec": { "nets": ["192.0.2.0/24"] } }),
        ),
        (
            "NetworkSet",
            "ns",
            "partners",
            json!({ "spec": { "nets": ["198.51.100.0/24"] } }),
        ),
        (
            "IPAMConfiguration",
            "",
            "default",
            json!({ "spec": settings }),
        ),
        (
            "BlockAffinity",
            "",
            "node-1-10-0-0-0-26",
            json!({ "spec": affinity }),
        ),
        ("IPAMBlock", "", "10-0-0-0-26", json!({ "spec": block })),
        (
            "IPAMHandle",
            "",
            "k8s-pod-network.ab",
            json!({ "spec": handle("k8s-pod-network.ab") }),
        ),
        (
            "IPAMHandle",
            "",
            "lb-mixed",
            json!({ "spec": handle("lb-Mixed") }),
        ),
    ]
}
