//! [`PendingDel`]: a deferred DEL. [`DatastoreIdentity`]: the datastore on which deferred DELs are
//! replayed.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use datastore::DatastoreConfig;
use libcalico::ipam::{HandleId, OldHandle};
use libcalico::names::EndpointIdentifiers;
use libcalico::workload::{ContainerIdentity, Orchestrator, PodIdentity, WorkloadIdentity};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// A deferred DEL: the endpoint and the addresses of an attachment that are still to be released.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingDel {
    /// Network name.
    pub network: String,
    /// Container ID.
    pub container_id: String,
    /// Interface name inside the container.
    pub ifname: String,
    /// The node of the attachment; empty if the DEL could not determine it.
    pub node: String,
    /// The datastore as the DEL's configuration named it, see [`datastore_name`]. Never contains
    /// credentials.
    pub datastore: String,
    /// The identity of the datastore, see [`datastore::ClusterStore::identity`]. While it is empty,
    /// the entry belongs to the first datastore that a call or the agent reaches under the name in
    /// `datastore`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// Namespace and name of the WorkloadEndpoint to delete if it still belongs to this container.
    pub endpoint: (String, String),
    /// The pod's UID, if endpoints are derived from pods and the runtime passed it; otherwise
    /// empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    /// The container's handles; empty if another IPAM plugin manages the addresses.
    pub handles: Vec<String>,
    /// The addresses of the ADD, as far as the DEL's input contained them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Time of the first DEL that was deferred, in seconds since 1970; zero in entries of earlier
    /// releases.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub noted: u64,
    /// Time of the last DEL that was deferred, in nanoseconds since 1970: the addresses of later
    /// ADDs are not this entry's. Zero in entries of earlier releases, which have no such limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub allocated_before: u64,
    /// The reason why the DEL was deferred.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The datastore that a call or the agent has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatastoreIdentity {
    /// The name in the configuration, see [`datastore_name`].
    pub name: String,
    /// The identity; empty if the datastore has none or does not return it.
    pub identity: String,
}

impl PendingDel {
    /// Returns true if the entry is for this attachment.
    pub fn is_of_attachment(&self, network: &str, container_id: &str, ifname: &str) -> bool {
        (
            self.network.as_str(),
            self.container_id.as_str(),
            self.ifname.as_str(),
        ) == (network, container_id, ifname)
    }

    /// Returns true if the entry is for this container, with any interface name: the handle, which
    /// the entry releases, does not contain the interface name.
    pub fn is_of_container(&self, network: &str, container_id: &str) -> bool {
        (self.network.as_str(), self.container_id.as_str()) == (network, container_id)
    }

    /// Returns the time before which the addresses of this entry were allocated; `None` for an
    /// entry without limit.
    pub fn limit(&self) -> Option<OffsetDateTime> {
        let limit = (self.allocated_before != 0).then_some(i128::from(self.allocated_before))?;
        OffsetDateTime::from_unix_timestamp_nanos(limit).ok()
    }

    /// Returns true if the datastore is a file, which only programs of this node reach.
    pub fn is_in_a_file(&self) -> bool {
        self.datastore.starts_with(FILE)
    }

    /// Returns namespace and name of the pod, or `None` for a plain container and for an invalid
    /// name of the endpoint.
    pub fn pod(&self) -> Option<(&str, String)> {
        let (namespace, endpoint) = &self.endpoint;
        let ids = EndpointIdentifiers::parse(endpoint).ok()?;
        (ids.orchestrator == "k8s").then_some((namespace.as_str(), ids.pod))
    }

    /// Returns the pod or plain container and its interface, as the name of the endpoint gives
    /// them.
    pub fn attachment(&self) -> WorkloadIdentity {
        let (namespace, name) = &self.endpoint;
        let ids = EndpointIdentifiers::parse(name).unwrap_or_default();
        let namespace = namespace.clone();
        let orchestrator = match ids.pod.as_str() {
            "" => Orchestrator::Cni(ContainerIdentity {
                namespace,
                ..ContainerIdentity::new(&self.network)
            }),
            pod => Orchestrator::Kubernetes(PodIdentity {
                namespace,
                name: pod.into(),
                ..PodIdentity::default()
            }),
        };
        let (node, container_id, endpoint) = (
            self.node.clone(),
            self.container_id.clone(),
            self.ifname.clone(),
        );
        WorkloadIdentity {
            node,
            container_id,
            endpoint,
            orchestrator,
        }
    }

    /// Returns the handle that Calico before v3 gave the container. Returns `None` if the
    /// endpoint's name is invalid, or if that handle equals the present one or may be a virtual
    /// machine's.
    pub fn old_handle(&self) -> Option<OldHandle> {
        let (namespace, endpoint) = &self.endpoint;
        let ids = EndpointIdentifiers::parse(endpoint).ok()?;
        let old = match ids.orchestrator.as_str() {
            "k8s" => OldHandle::of_pod(namespace, &ids.pod),
            _ => OldHandle::of_container(&self.container_id),
        };
        old.filter(|old| *old.id() != self.own_handle())
    }

    /// Returns the entry with the node `node` if it has none.
    #[must_use]
    pub fn with_default_node(mut self, node: &str) -> Self {
        if self.node.is_empty() {
            self.node = node.to_owned();
        }
        self
    }

    /// Returns the handle under which the container's own addresses are allocated, not those of a
    /// virtual machine.
    pub fn own_handle(&self) -> HandleId {
        HandleId::for_container(&self.network, &self.container_id)
    }

    /// Returns true if the entry is to be replayed on this datastore: by their identities, or by
    /// their names if the entry has no identity.
    pub fn belongs_to(&self, target: &DatastoreIdentity) -> bool {
        if self.identity.is_empty() {
            self.datastore == target.name
        } else {
            self.identity == target.identity
        }
    }

    /// Returns true if the entry and the datastore both have an identity and these differ.
    pub fn belongs_elsewhere(&self, target: &DatastoreIdentity) -> bool {
        !self.identity.is_empty() && !target.identity.is_empty() && self.identity != target.identity
    }

    /// Returns true if both entries are for the same datastore: by their identities if both are
    /// known, otherwise by the names.
    pub fn has_same_datastore(&self, other: &PendingDel) -> bool {
        if self.identity.is_empty() || other.identity.is_empty() {
            return self.datastore == other.datastore;
        }
        self.identity == other.identity
    }

    /// Returns a description of the pod or plain container, for messages.
    pub fn workload(&self) -> String {
        match self.pod() {
            Some((namespace, pod)) => format!("pod {namespace}/{pod}"),
            None => format!("container {}", self.container_id),
        }
    }

    /// Returns the age of the entry at `now`. `written` is the file's modification time.
    pub fn age(&self, written: SystemTime, now: SystemTime) -> Duration {
        let noted = if self.noted == 0 {
            written
        } else {
            UNIX_EPOCH + Duration::from_secs(self.noted)
        };
        now.duration_since(noted).unwrap_or_default()
    }
}

/// Returns an age in its two largest units, or in seconds, similar to kubectl.
pub fn short_age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (1.., ..) => format!("{days}d{}h", hours % 24),
        (0, 1.., _) => format!("{hours}h{}m", minutes % 60),
        (0, 0, 1..) => format!("{minutes}m{}s", seconds % 60),
        (0, 0, 0) => format!("{seconds}s"),
    }
}

/// The beginning of the description of a datastore file.
const FILE: &str = "local ";

/// Returns a description of a configuration's datastore, without credentials.
pub fn datastore_name(config: &DatastoreConfig) -> String {
    match config {
        DatastoreConfig::Etcd(etcd) => {
            // The order of the endpoints does not distinguish datastores.
            let mut endpoints = etcd.endpoints.clone();
            endpoints.sort();
            format!("etcd {}", endpoints.join(","))
        }
        DatastoreConfig::Local(local) => format!("{FILE}{}", local.path.display()),
        DatastoreConfig::Kubernetes(kubernetes) => format!("kubernetes {kubernetes}"),
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of every version contain these fields.
    #[test]
    fn deferred_del_names_the_pod_of_its_old_handle() {
        let noted = |endpoint: [&str; 2]| {
            let id = "c".repeat(64);
            let text = format!(
                r#"{{"network": "net", "container_id": "{id}", "ifname": "eth0", "node": "node1", "datastore": "one",
                    "endpoint": ["{}", "{}"], "handles": ["net.{id}", "x"]}}"#,
                endpoint[0], endpoint[1]
            );
            serde_json::from_str::<PendingDel>(&text)
                .unwrap()
                .old_handle()
        };
        assert_eq!(
            noted(["ns", "node--1-k8s-my--web.x-eth0"]),
            OldHandle::of_pod("ns", "my-web.x")
        );
        assert_eq!(
            noted(["default", &format!("node1-cni-{}-eth0", "c".repeat(64))]),
            OldHandle::of_container(&"c".repeat(64))
        );
        // The first two names give a VMI's handle and the container's present handle.
        assert_eq!(noted(["net", "node1-k8s-vmi.prod.db-eth0"]), None);
        assert_eq!(
            noted(["net", &format!("node1-k8s-{}-eth0", "c".repeat(64))]),
            None
        );
        assert_eq!(noted(["", ""]), None);
    }

    #[test]
    fn deferred_del_with_an_identity_matches_that_datastore_under_any_name() {
        let pending_del = |datastore: &str, identity: &str| PendingDel {
            datastore: datastore.into(),
            identity: identity.into(),
            ..PendingDel::default()
        };
        let target = |name: &str, identity: &str| DatastoreIdentity {
            name: name.into(),
            identity: identity.into(),
        };
        for (pending, to, expected) in [
            (
                pending_del("etcd a", "etcd 1"),
                target("etcd b", "etcd 1"),
                true,
            ),
            (
                pending_del("etcd a", "etcd 1"),
                target("etcd a", "etcd 2"),
                false,
            ),
            (pending_del("etcd a", "etcd 1"), target("etcd a", ""), false),
            (pending_del("etcd a", ""), target("etcd a", "etcd 1"), true),
            (pending_del("etcd a", ""), target("etcd a", ""), true),
            (pending_del("etcd a", ""), target("etcd b", "etcd 1"), false),
        ] {
            assert_eq!(pending.belongs_to(&to), expected, "{pending:?} {to:?}");
            let is_other = pending.identity == "etcd 1" && to.identity == "etcd 2";
            assert_eq!(
                pending.belongs_elsewhere(&to),
                is_other,
                "{pending:?} {to:?}"
            );
        }
    }

    #[test]
    fn age_is_printed_in_its_two_largest_units() {
        let short = |seconds| short_age(Duration::from_secs(seconds));
        assert_eq!(
            [short(59), short(61), short(7320), short(90_000)],
            ["59s", "1m1s", "2h2m", "1d1h"]
        );
    }

    #[test]
    fn age_of_an_entry_without_a_time_is_the_age_of_the_file() {
        let hour = Duration::from_secs(3600);
        let now = SystemTime::now();
        let noted = now.duration_since(UNIX_EPOCH).unwrap().as_secs() - 7200;
        let age = |noted| {
            PendingDel {
                noted,
                ..PendingDel::default()
            }
            .age(now - hour, now)
            .as_secs()
                / 3600
        };
        assert_eq!((age(0), age(noted)), (1, 2));
        assert_eq!(
            PendingDel::default().age(now + hour, now),
            Duration::ZERO,
            "a clock that was set back"
        );
    }
}
