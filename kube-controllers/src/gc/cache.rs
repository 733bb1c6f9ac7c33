use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libcalico::api::{IpPool, IpReservation, Node as CalicoNode, ObjectKey};
use libcalico::ipam::gc::{Index, PoolShape, WatchedKind};
use libcalico::ipam::{Block, PodState, PodView, enabled_pool};
use libcalico::kubernetes::{AddressAnnotations, PodAddresses};
use libcalico::net::Cidr;
use libcalico::store::Entry;
use tokio::sync::Notify;

use crate::settings::Mode;
use crate::watched::{Node, Pod, Service, Watched, WatchedVm, WatchedVmi};
use crate::watches::{Event, Watches};

/// Label of a node whose pods are being migrated from flannel, unless its value is `calico`
/// (KC-457).
const MIGRATION_LABEL: &str = "projectcalico.org/node-network-during-migration";

/// The index of garbage collection, with a notification of changes. Cheap to clone.
#[derive(Clone)]
pub struct ClusterCache {
    shared: Arc<Shared>,
}

struct Shared {
    index: Mutex<Index>,
    changed: Notify,
    listed: Mutex<HashSet<WatchedKind>>,
}

/// The kinds that must have been listed before any address is assessed, with their names for
/// operators. Addresses of Services stay until Services are listed, those of virtual machines until
/// their kinds are listed or known to be missing, and reservations are only counted.
const REQUIRED: [(WatchedKind, &str); 5] = [
    (WatchedKind::Blocks, "IPAMBlock"),
    (WatchedKind::Pods, "Pod"),
    (WatchedKind::KubernetesNodes, "Node of Kubernetes"),
    (WatchedKind::CalicoNodes, "Node of Calico"),
    (WatchedKind::Pools, "IPPool"),
];

impl ClusterCache {
    /// Creates the cache of an index, and subscribes it to the watches.
    pub fn new(mode: Mode, index: Index, watches: &mut Watches) -> Self {
        let shared = Shared {
            index: Mutex::new(index),
            changed: Notify::new(),
            listed: Mutex::default(),
        };
        let cache = ClusterCache {
            shared: Arc::new(shared),
        };
        let remove_block = |index: &mut Index, key: &Cidr| index.remove_block(key);
        watches
            .blocks
            .subscribe(cache.handler(WatchedKind::Blocks, put_block, remove_block));
        watches.pods.subscribe(cache.handler(
            WatchedKind::Pods,
            put_pod,
            by_names(Index::remove_pod),
        ));
        watches.services.subscribe(cache.handler(
            WatchedKind::Services,
            put_service,
            by_names(Index::remove_service),
        ));
        let put_vm = |index: &mut Index, vm: &WatchedVm| {
            by_names(Index::put_virtual_machine)(index, &vm.name)
        };
        let remove_vm = by_names(Index::remove_virtual_machine);
        watches.virtual_machines.subscribe(cache.handler(
            WatchedKind::VirtualMachines,
            put_vm,
            remove_vm,
        ));
        let put_vmi =
            |index: &mut Index, vmi: &WatchedVmi| by_names(Index::put_vmi)(index, &vmi.name);
        watches.vmis.subscribe(cache.handler(
            WatchedKind::Vmis,
            put_vmi,
            by_names(Index::remove_vmi),
        ));
        let remove_pool = |index: &mut Index, key: &ObjectKey| index.remove_pool(&key.name);
        watches
            .ip_pools
            .subscribe(cache.handler(WatchedKind::Pools, put_pool, remove_pool));
        let put_reservation = |index: &mut Index, reservation: &Entry<IpReservation>| {
            index.put_reservation(&reservation.value)
        };
        let remove_reservation =
            |index: &mut Index, key: &ObjectKey| index.remove_reservation(&key.name);
        let reservations = cache.handler(
            WatchedKind::Reservations,
            put_reservation,
            remove_reservation,
        );
        watches.ip_reservations.subscribe(reservations);
        cache.subscribe_to_nodes(mode, watches);
        cache
    }

    /// Subscribes the index to nodes. On a Kubernetes datastore, a Calico node is a Kubernetes
    /// node, and one watch delivers both.
    fn subscribe_to_nodes(&self, mode: Mode, watches: &mut Watches) {
        let put_kubernetes = |index: &mut Index, node: &Node| {
            index.put_kubernetes_node(&node.name.name, is_migrating(node))
        };
        let remove_kubernetes =
            |index: &mut Index, key: &ObjectKey| index.remove_kubernetes_node(&key.name);
        watches.nodes.subscribe(self.handler(
            WatchedKind::KubernetesNodes,
            put_kubernetes,
            remove_kubernetes,
        ));
        let put_entry = |index: &mut Index, node: &Entry<CalicoNode>| {
            index.put_calico_node(&node.key.name, node.value.spec.kubernetes_name());
        };
        let put_node = |index: &mut Index, node: &Node| {
            index.put_calico_node(&node.name.name, Some(&node.name.name))
        };
        let remove_calico =
            |index: &mut Index, key: &ObjectKey| index.remove_calico_node(&key.name);
        let kind = WatchedKind::CalicoNodes;
        match mode {
            Mode::Etcd => {
                watches
                    .calico_nodes
                    .subscribe(self.handler(kind, put_entry, remove_calico))
            }
            Mode::Kubernetes(_) => {
                watches
                    .nodes
                    .subscribe(self.handler(kind, put_node, remove_calico))
            }
        }
    }

    fn handler<T: Watched>(
        &self,
        kind: WatchedKind,
        put: impl Fn(&mut Index, &T) + Send + 'static,
        gone: impl Fn(&mut Index, &T::Key) + Send + 'static,
    ) -> impl FnMut(&Event<'_, T>) + Send + 'static {
        let cache = self.clone();
        move |event| {
            let mut index = cache.index();
            match event {
                Event::ListStart => index.begin_list(kind),
                Event::Upsert(object) => put(&mut index, object),
                Event::Delete(key) => gone(&mut index, key),
                Event::ListEnd => index.end_list(kind),
            }
            drop(index);
            if matches!(event, Event::ListEnd) {
                cache.listed().insert(kind);
            }
            cache.shared.changed.notify_one();
        }
    }

    fn listed(&self) -> MutexGuard<'_, HashSet<WatchedKind>> {
        self.shared
            .listed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if all required kinds have been listed.
    pub fn is_complete(&self) -> bool {
        self.required().all(|(_, awaited)| !awaited)
    }

    /// Returns the required kinds, with true for each that has not been listed yet.
    pub(super) fn required(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let listed = self.listed().clone();
        REQUIRED
            .into_iter()
            .map(move |(kind, name)| (name, !listed.contains(&kind)))
    }

    pub(super) fn has_listed_vms(&self) -> bool {
        let listed = self.listed();
        listed.contains(&WatchedKind::VirtualMachines) && listed.contains(&WatchedKind::Vmis)
    }

    pub(super) fn has_listed_services(&self) -> bool {
        self.listed().contains(&WatchedKind::Services)
    }

    /// Wakes the next pass, as an event of a watch does.
    pub(super) fn wake(&self) {
        self.shared.changed.notify_one();
    }

    /// Waits for a change of the index, or for [`ClusterCache::wake`]. Returns at once if one of
    /// them happened since the last call.
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Locks the index. A panic during a change may leave the index inconsistent. The next full
    /// list repairs most of that, and every release of a leaked address first checks the current
    /// state in the API.
    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        self.shared
            .index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn by_names(gone: fn(&mut Index, &str, &str)) -> impl Fn(&mut Index, &ObjectKey) + Send + 'static {
    move |index, key| {
        let (namespace, name) = names(key);
        gone(index, namespace, name);
    }
}

/// Returns the namespace and the name of an object in a namespace.
fn names(key: &ObjectKey) -> (&str, &str) {
    (key.namespace.as_deref().unwrap_or_default(), &key.name)
}

pub(super) fn pod_state(pod: &Pod) -> PodState<'_> {
    let annotations = &pod.annotations;
    let pod_ips: Vec<&str> = pod.pod_ips.iter().map(|ip| &**ip).collect();
    let addresses = PodAddresses {
        phase: &pod.phase,
        deleting: pod.is_deleting,
        pod_ip: pod.pod_ip.as_deref().unwrap_or_default(),
        pod_ips: &pod_ips,
        annotations: AddressAnnotations {
            pod_ip: annotations.pod_ip.as_deref(),
            pod_ips: annotations.pod_ips.as_deref(),
            aws_pod_ips: annotations.aws_pod_ips.as_deref(),
        },
    };
    let network_status = annotations.network_status.as_deref();
    let (node, reason, host_network) = (&*pod.node, &*pod.reason, pod.host_network);
    PodState::read(&PodView {
        node,
        reason,
        host_network,
        network_status,
        addresses,
    })
}

/// Returns true if the node still uses flannel's network.
fn is_migrating(node: &Node) -> bool {
    node.labels
        .get(MIGRATION_LABEL)
        .is_some_and(|network| network != "calico")
}

fn put_block(index: &mut Index, block: &Entry<Block>) {
    if let Err(problem) = index.put_block(&block.value) {
        tracing::error!(
            block = %block.key, %problem,
            hint = "run `calico-ipam check`",
            "garbage collection ignores an invalid block"
        );
    }
}

fn put_pod(index: &mut Index, pod: &Pod) {
    let (namespace, name) = names(&pod.name);
    // The index also contains pods on the host network. Their addresses are the host's, normally in
    // no pool.
    index.put_pod(namespace, name, &pod_state(pod));
}

fn put_service(index: &mut Index, service: &Service) {
    let (namespace, name) = names(&service.name);
    match service.spec.type_.as_deref() {
        Some("LoadBalancer") => index.put_service(namespace, name),
        _ => index.remove_service(namespace, name),
    }
}

fn put_pool(index: &mut Index, pool: &Entry<IpPool>) {
    let (name, object) = (&pool.key.name, &pool.value);
    match object.spec.cidr.parse::<Cidr>() {
        Ok(cidr) if object.metadata.deletion_timestamp.is_none() => {
            index.put_pool(name, shape(object, cidr))
        }
        Ok(_) => index.remove_pool(name),
        Err(error) => {
            tracing::warn!(
                pool = name, %error, "leaving a pool out of the metrics: its range is invalid",
            );
            index.remove_pool(name);
        }
    }
}

fn shape(object: &IpPool, cidr: Cidr) -> PoolShape {
    let usable =
        enabled_pool(object, cidr.version()).is_ok_and(|pool| pool.check_block_size().is_ok());
    PoolShape {
        cidr,
        block_prefix: object.spec.block_prefix(cidr.version()),
        uid: object.metadata.uid.clone(),
        in_service: usable,
    }
}

#[cfg(test)]
mod tests {
    use libcalico::api::IpPoolSpec;
    use libcalico::ipam::EndedPod;
    use serde_json::{Value, json};

    use super::*;
    use crate::watched::{Projection, ProjectionOptions};

    impl ClusterCache {
        pub(in crate::gc) fn mark_all_listed(&self) {
            self.listed().extend(REQUIRED.map(|(kind, _)| kind));
            self.listed().extend([
                WatchedKind::Services,
                WatchedKind::VirtualMachines,
                WatchedKind::Vmis,
                WatchedKind::Reservations,
            ]);
        }
    }

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {}},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
        });
        change(&mut pod);
        Pod::project(&pod.to_string(), ProjectionOptions::default()).unwrap()
    }

    fn has(pod: &Pod, address: &str) -> Option<bool> {
        pod_state(pod).address_state(address.parse().unwrap()).has
    }

    #[test]
    fn pool_is_in_service_unless_disabled_or_with_an_invalid_block_size() {
        for (block_size, disabled, expected) in [
            (None, false, (26, true)),
            (Some(28), false, (28, true)),
            (Some(28), true, (28, false)),
            (Some(8), false, (8, false)),
        ] {
            let spec = IpPoolSpec {
                cidr: "10.0.0.0/16".into(),
                block_size,
                disabled,
                ..IpPoolSpec::default()
            };
            let found = shape(&IpPool::new("pool", spec), "10.0.0.0/16".parse().unwrap());
            assert_eq!(
                (found.block_prefix, found.in_service),
                expected,
                "{block_size:?}, disabled: {disabled}"
            );
        }
    }

    #[test]
    fn addresses_of_a_pod_come_from_its_status_and_annotations() {
        let running = pod(|_| {});
        assert_eq!(
            (has(&running, "10.0.0.1"), has(&running, "10.0.0.2")),
            (Some(true), Some(false))
        );
        assert_eq!(pod_state(&running).node, "n1");
        assert_eq!(has(&pod(|pod| pod["status"] = json!({})), "10.0.0.2"), None);
        let more = pod(|pod| {
            let status = r#"[{"name":"second","ips":["10.0.0.7"]}]"#;
            pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/network-status": status});
        });
        assert_eq!(
            (has(&more, "10.0.0.7"), has(&more, "10.0.0.8")),
            (Some(true), Some(false))
        );
    }

    #[test]
    fn pod_end_is_decided_by_the_phase_and_not_by_annotations() {
        for emptied in ["cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips"] {
            for (phase, ended) in [("Running", None), ("Failed", Some(EndedPod::Finished))] {
                let down = pod(|pod| {
                    pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T21:00:00Z");
                    pod["metadata"]["annotations"] = json!({emptied: ""});
                    pod["status"]["phase"] = json!(phase);
                });
                assert_eq!(
                    (pod_state(&down).ended, has(&down, "10.0.0.1")),
                    (ended, Some(true)),
                    "{emptied}"
                );
            }
        }
    }

    #[test]
    fn unrelated_annotations_do_not_hide_the_addresses_in_the_status() {
        for (key, text) in [
            ("cni.projectcalico.org/podIPs", "10.0.0.7/32"),
            ("cni.projectcalico.org/podIPs", "no address"),
            ("vpc.amazonaws.com/pod-ips", "10.0.0.7"),
            ("k8s.v1.cni.cncf.io/network-status", "{"),
        ] {
            let noted = pod(|pod| pod["metadata"]["annotations"] = json!({key: text}));
            assert_eq!(has(&noted, "10.0.0.1"), Some(true), "{key}: {text}");
        }
    }
}
