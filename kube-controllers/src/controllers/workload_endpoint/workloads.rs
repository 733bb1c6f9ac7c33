use std::collections::HashMap;

use libcalico::api::{Node as CalicoNode, ObjectKey, WorkloadEndpoint};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::Entry;
use libcalico::workload::KUBERNETES;
use uuid::Uuid;

use super::projections::{EndpointLabels, PodUidAndAddress, Sandbox, fingerprint};
use crate::controllers::cached::ResyncKey;
use crate::controllers::node_names::NodeNames;
use crate::watched::{Node, Pod};
use crate::watches::{Cache, Event};

/// The cached pods and their endpoints.
#[derive(Default)]
pub struct Workloads {
    workloads: HashMap<ObjectKey, Workload>,
    pods: ListProgress,
    endpoints: ListProgress,
    nodes: Cache<ObjectKey, ()>,
    calico_nodes: NodeNames,
}

/// A pod and its endpoints. The pod or the endpoints may be missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Workload {
    pub(super) pod: Option<CachedPod>,
    /// Number of the list during or after which the pod was last delivered.
    pod_list: u64,
    pub(super) endpoints: Vec<CachedEndpoint>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct CachedPod {
    /// Node of the pod by its name in Kubernetes; empty before scheduling.
    pub(super) node: Box<str>,
    /// Whether to copy the pod's fields to its endpoints: the pod has a network of its own, an
    /// address and a node (KC-261).
    pub(super) is_networked: bool,
    /// Fingerprint of the desired fields of the pod's endpoints.
    pub(super) labels_hash: u64,
    identity: PodUidAndAddress,
    host_network: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct CachedEndpoint {
    pub(super) name: Box<str>,
    /// Fingerprint of the endpoint's fields that are copied from the pod.
    pub(super) labels_hash: u64,
    sandbox: Sandbox,
    list: u64,
}

/// The number of the latest list of a kind, and true once a list has been complete.
#[derive(Debug, Default)]
struct ListProgress {
    number: u64,
    is_complete: bool,
}

impl Workloads {
    pub(super) fn apply_pod(&mut self, event: &Event<'_, Pod>) -> Vec<ResyncKey> {
        match event {
            Event::ListStart => self.pods.number += 1,
            Event::ListEnd => {
                self.pods.is_complete = true;
                let last = self.pods.number;
                self.workloads.retain(|_, workload| {
                    workload.pod.take_if(|_| workload.pod_list != last);
                    !workload.is_empty()
                });
                return vec![ResyncKey::All];
            }
            Event::Upsert(pod) => {
                let namespace = pod.name.namespace.as_deref().unwrap_or_default();
                let labels_hash = fingerprint(&EndpointLabels::for_pod(
                    namespace,
                    &pod.labels,
                    &pod.service_account,
                ));
                let has_address = pod.pod_ip.is_some() || !pod.pod_ips.is_empty();
                let is_networked = !pod.host_network && has_address && !pod.node.is_empty();
                let node = pod.node.as_str().into();
                let (identity, host_network) = (PodUidAndAddress::new(pod), pod.host_network);
                let cached = CachedPod {
                    node,
                    is_networked,
                    labels_hash,
                    identity,
                    host_network,
                };
                let workload = self.workloads.entry(pod.name.clone()).or_default();
                let is_new = workload.pod.as_ref() != Some(&cached);
                workload
                    .endpoints
                    .iter_mut()
                    .for_each(|endpoint| endpoint.sandbox.match_pod(&cached.identity));
                (workload.pod, workload.pod_list) = (Some(cached), self.pods.number);
                return self.keys_for(is_new, &pod.name);
            }
            Event::Delete(pod) => {
                let was_there = self
                    .workloads
                    .get_mut(*pod)
                    .is_some_and(|workload| workload.pod.take().is_some());
                let work = self.keys_for(was_there, pod);
                self.remove_if_empty(pod);
                return work;
            }
        }
        Vec::new()
    }

    pub(super) fn apply_endpoint(
        &mut self,
        event: &Event<'_, Entry<WorkloadEndpoint>>,
    ) -> Vec<ResyncKey> {
        match event {
            Event::ListStart => self.endpoints.number += 1,
            Event::ListEnd => {
                self.endpoints.is_complete = true;
                let last = self.endpoints.number;
                self.workloads.values_mut().for_each(|workload| {
                    workload.endpoints.retain(|endpoint| endpoint.list == last)
                });
                self.workloads.retain(|_, workload| !workload.is_empty());
                return vec![ResyncKey::All];
            }
            Event::Upsert(entry) => {
                let Some((pod, _)) = pod_and_node(&entry.key) else {
                    return Vec::new();
                };
                let mut cached = CachedEndpoint {
                    name: entry.key.name.as_str().into(),
                    labels_hash: fingerprint(&EndpointLabels::from_endpoint(&entry.value)),
                    sandbox: Sandbox::new(&entry.value.spec),
                    list: self.endpoints.number,
                };
                let Workload {
                    pod: cached_pod,
                    endpoints,
                    ..
                } = self.workloads.entry(pod.clone()).or_default();
                if let Some(before) = endpoints
                    .iter()
                    .find(|endpoint| endpoint.name == cached.name)
                {
                    cached.sandbox.copy_pod_uid(&before.sandbox);
                }
                cached_pod
                    .iter()
                    .for_each(|pod| cached.sandbox.match_pod(&pod.identity));
                match endpoints
                    .iter_mut()
                    .find(|endpoint| endpoint.name == cached.name)
                {
                    Some(before) => *before = cached,
                    None => endpoints.push(cached),
                }
                return self.keys_for(true, &pod);
            }
            Event::Delete(key) => {
                let Some((pod, _)) = pod_and_node(key) else {
                    return Vec::new();
                };
                if let Some(workload) = self.workloads.get_mut(&pod) {
                    workload
                        .endpoints
                        .retain(|endpoint| *endpoint.name != *key.name);
                }
                self.remove_if_empty(&pod);
            }
        }
        Vec::new()
    }

    /// Applies an event about a Kubernetes node. A new or deleted node may affect every endpoint on
    /// the node, so all endpoints are compared.
    pub(super) fn apply_node(&mut self, event: &Event<'_, Node>) -> Vec<ResyncKey> {
        let changed = self.nodes.apply(event, |_| Some(()));
        if changed.is_empty() && !matches!(event, Event::ListEnd) {
            Vec::new()
        } else {
            vec![ResyncKey::All]
        }
    }

    /// Applies an event about a Calico node. If the node's name in Kubernetes changed, or at the
    /// end of a list, all endpoints are compared.
    pub(super) fn apply_calico_node(
        &mut self,
        event: &Event<'_, Entry<CalicoNode>>,
    ) -> Vec<ResyncKey> {
        let changed = self.calico_nodes.apply(event);
        if changed.is_empty() && !matches!(event, Event::ListEnd) {
            Vec::new()
        } else {
            vec![ResyncKey::All]
        }
    }

    /// Returns true if all kinds have been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.pods.is_complete
            && self.endpoints.is_complete
            && self.nodes.is_synced()
            && self.calico_nodes.is_synced()
    }

    /// Returns a pod and its endpoints, or `None` if neither the pod nor an endpoint is cached.
    pub(super) fn get(&self, pod: &ObjectKey) -> Option<&Workload> {
        self.workloads.get(pod)
    }

    pub(super) fn has_endpoint(&self, endpoint: &ObjectKey) -> bool {
        let workload = pod_and_node(endpoint).and_then(|(pod, _)| self.workloads.get(&pod));
        workload.is_some_and(|workload| {
            workload
                .endpoints
                .iter()
                .any(|cached| *cached.name == *endpoint.name)
        })
    }

    /// Returns the uid of the pod for which the endpoint with this container was created, if it is
    /// known.
    pub(super) fn pod_uid(&self, endpoint: &ObjectKey, container_id: &str) -> Option<Uuid> {
        let workload = pod_and_node(endpoint).and_then(|(pod, _)| self.workloads.get(&pod))?;
        workload
            .endpoints
            .iter()
            .find(|cached| *cached.name == *endpoint.name)?
            .sandbox
            .pod_uid(container_id)
    }

    pub(super) fn pods_to_check(&self) -> Vec<ObjectKey> {
        let pods_to_check = self.workloads.iter().filter(|(_, workload)| {
            let mut endpoints = workload.endpoints.iter();
            endpoints.any(|cached| {
                workload.has_outdated_labels(cached) || self.may_be_orphaned(workload, cached)
            })
        });
        pods_to_check.map(|(pod, _)| pod.clone()).collect()
    }

    pub(super) fn may_be_orphaned(&self, workload: &Workload, endpoint: &CachedEndpoint) -> bool {
        let Some(pod) = &workload.pod else {
            return true;
        };
        let node = self.kubernetes_node(&endpoint.node());
        let is_elsewhere = *node.name != *pod.node && !pod.node.is_empty();
        pod.host_network
            || endpoint.sandbox.belongs_to_other_pod(&pod.identity)
            || is_elsewhere
            || (*node.name == *pod.node && self.nodes.get(&node).is_none())
    }

    /// Returns the node's name in Kubernetes. It equals the name in Calico, unless the Calico node
    /// names another Kubernetes node.
    fn kubernetes_node(&self, calico: &str) -> ObjectKey {
        let calico = ObjectKey::global(calico);
        self.calico_nodes
            .names
            .group(&calico)
            .cloned()
            .unwrap_or(calico)
    }

    fn keys_for(&self, is_new: bool, pod: &ObjectKey) -> Vec<ResyncKey> {
        let has_endpoints = self
            .workloads
            .get(pod)
            .is_some_and(|workload| !workload.endpoints.is_empty());
        if is_new && has_endpoints {
            vec![ResyncKey::One(pod.clone())]
        } else {
            Vec::new()
        }
    }

    fn remove_if_empty(&mut self, pod: &ObjectKey) {
        if self.workloads.get(pod).is_some_and(Workload::is_empty) {
            self.workloads.remove(pod);
        }
    }
}

impl Workload {
    /// Returns true if the pod's fields have to be copied to the endpoint, because they differ
    /// there.
    pub(super) fn has_outdated_labels(&self, endpoint: &CachedEndpoint) -> bool {
        self.pod
            .as_ref()
            .is_some_and(|pod| pod.is_networked && pod.labels_hash != endpoint.labels_hash)
    }

    fn is_empty(&self) -> bool {
        self.pod.is_none() && self.endpoints.is_empty()
    }
}

impl CachedEndpoint {
    /// Returns the node by its name in Calico, which is a part of the endpoint's name.
    fn node(&self) -> String {
        let ids = EndpointIdentifiers::parse(&self.name);
        ids.map(|ids| ids.node).unwrap_or_default()
    }
}

/// Returns the pod and the node of an endpoint, or `None` if the endpoint does not belong to a
/// Kubernetes pod.
pub(super) fn pod_and_node(endpoint: &ObjectKey) -> Option<(ObjectKey, String)> {
    let ids = EndpointIdentifiers::parse(&endpoint.name).ok()?;
    let is_pods = ids.orchestrator == KUBERNETES && !ids.pod.is_empty() && !ids.endpoint.is_empty();
    is_pods.then(|| {
        (
            ObjectKey {
                namespace: endpoint.namespace.clone(),
                name: ids.pod,
            },
            ids.node,
        )
    })
}
