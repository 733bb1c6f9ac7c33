//! Workload endpoints that still list a leaked address, if endpoints are objects. An
//! address is released only when no endpoint of the pods that its allocation names lists it; of a
//! pod that is no launcher, only the endpoints on the allocation's node count, if the allocation
//! names one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use allocation::write_gate::WriteGate;
use futures::{StreamExt, stream};
use libcalico::api::{ObjectKey, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::gc::{Plan, Suspect};
use libcalico::ipam::{HandleId, LeakReason, Lookup, OwnerKind};
use libcalico::names::EndpointIdentifiers;
use libcalico::net::Cidr;
use libcalico::store::{EndpointForm, Entry, ReadBatch, Store, StoreError};
use libcalico::workload::KUBERNETES;

use super::GcPass;
use crate::gc::recheck::CurrentState;
use crate::gc::world::{PassGate, World};

/// The endpoints of a namespace, on one node if the node is known: namespace and node.
type EndpointGroup = (String, Option<String>);

/// A pod that an allocation names, whose endpoint may list the address.
struct NamedPod<'s> {
    namespace: &'s str,
    name: &'s str,
    node: Option<&'s str>,
    /// True if the pod is running, or cannot be looked up. The endpoint of a running pod stays,
    /// because it may be newer than the addresses that kubelet reports.
    is_running: bool,
}

/// Endpoints by their keys. Unreadable ones have the error instead.
type Endpoints = Vec<(ObjectKey, Result<Entry<WorkloadEndpoint>, StoreError>)>;

impl<W: World> GcPass<W> {
    /// Deletes the endpoints that list addresses of the plan, except those of running pods and of
    /// other sandboxes. Removes from the plan the addresses that an endpoint still lists or may
    /// list, together with all addresses of their handles.
    pub(super) async fn delete_listing_endpoints(&self, plan: &mut Plan, state: &CurrentState) {
        match self.inputs.calico.endpoint_form() {
            EndpointForm::Object => {}
            EndpointForm::PodAnnotations => return,
        }
        let suspects = || plan.blocks.values().flatten();
        let groups: BTreeSet<EndpointGroup> = suspects()
            .flat_map(|suspect| named_pods(suspect, state))
            .map(|pod| endpoint_group(&pod))
            .collect();
        let read = groups.into_iter().map(|group| self.endpoints_of(group));
        let read: BTreeMap<_, _> = stream::iter(read)
            .buffer_unordered(self.parallel())
            .collect()
            .await;
        let mut listed_handles = BTreeSet::<HandleId>::new();
        for suspect in suspects() {
            for pod in named_pods(suspect, state) {
                let deleted = match read.get(&endpoint_group(&pod)) {
                    Some(Some(endpoints)) => self.delete_endpoints(suspect, &pod, endpoints).await,
                    _ => false,
                };
                if !deleted {
                    listed_handles.insert(suspect.handle.clone());
                }
            }
        }
        let now = self.now();
        let mut index = self.inputs.cache.index();
        for suspects in plan.blocks.values_mut() {
            suspects.retain(|suspect| {
                let is_listed = listed_handles.contains(&suspect.handle);
                if is_listed {
                    tracing::info!(address = %suspect.address, handle = %suspect.handle,
                        "kept a leaked address, which an endpoint may list");
                    index.postpone(suspect, now);
                }
                !is_listed
            });
        }
        plan.blocks.retain(|_, suspects| !suspects.is_empty());
    }

    /// Returns the endpoints of pods in the group, or `None` if they cannot be read.
    async fn endpoints_of(&self, group: EndpointGroup) -> (EndpointGroup, Option<Endpoints>) {
        let (namespace, node) = group.clone();
        let prefix = node.map_or(Ok(String::new()), |node| {
            let ids = EndpointIdentifiers {
                node,
                orchestrator: KUBERNETES.into(),
                ..EndpointIdentifiers::default()
            };
            ids.prefix()
        });
        // A node name that forms no prefix cannot occur in the name of an endpoint.
        let Ok(name_prefix) = prefix else {
            return (group, Some(Vec::new()));
        };
        self.inputs.gate.pace(1).await;
        let select = ObjectSelect {
            namespace: Some(namespace),
            name_prefix,
        };
        let mut batch = ReadBatch::new();
        let ticket = batch.list::<WorkloadEndpoint>(&select);
        match self.inputs.calico.read(&batch).await {
            Ok(answers) => (group, Some(answers.each(&ticket).collect())),
            Err(error) => {
                tracing::warn!(node = group.1, namespace = group.0, %error,
                    "cannot list the endpoints of pods with leaked addresses");
                (group, None)
            }
        }
    }

    /// Deletes the pod's endpoints that list the address of a suspect. Returns true if no such
    /// endpoint is left.
    async fn delete_endpoints(
        &self,
        suspect: &Suspect,
        pod: &NamedPod<'_>,
        endpoints: &Endpoints,
    ) -> bool {
        let is_pods = |key: &ObjectKey| {
            EndpointIdentifiers::parse(&key.name).is_ok_and(|ids| ids.pod == pod.name)
        };
        for (key, found) in endpoints.iter().filter(|(key, _)| is_pods(key)) {
            let Entry {
                revision, value, ..
            } = match found {
                Ok(endpoint) if lists_address(&endpoint.value, suspect.address) => endpoint,
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(
                        endpoint = %key, address = %suspect.address, %error,
                        hint = "correct or delete the endpoint",
                        "cannot read an endpoint; keeping the leaked addresses of its pod"
                    );
                    return false;
                }
            };
            // The endpoint belongs to another sandbox of the pod, or of a successor with the same
            // name. That sandbox may have the address by now. The handle of a virtual machine
            // contains no container ID, so that handle is not compared.
            if suspect.owner.kind == OwnerKind::Pod
                && !suspect.handle.is_of_container(&value.spec.container_id)
            {
                return false;
            }
            if pod.is_running || !self.inputs.gate.admit(1).await {
                return false;
            }
            tracing::info!(address = %suspect.address, handle = %suspect.handle,
                node = suspect.node.as_deref().map(display),
                pod = %format_args!("{}/{}", pod.namespace, pod.name), endpoint = %key,
                reason = %suspect.reason,
                "releasing a leaked address: deleting the endpoint that lists it");
            match self
                .inputs
                .calico
                .delete::<WorkloadEndpoint>(key, Some(revision))
                .await
            {
                Ok(()) => {
                    tracing::info!(
                        endpoint = %key, "deleted an endpoint that lists a leaked address",
                    )
                }
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(endpoint = %key, %error,
                        "cannot delete an endpoint that lists a leaked address");
                    return false;
                }
            }
        }
        true
    }
}

/// Returns the pod that the suspect's allocation names or, for an address of a virtual machine, the
/// pods that it names as owners instead; none for other owners.
fn named_pods<'s>(suspect: &'s Suspect, state: &CurrentState) -> Vec<NamedPod<'s>> {
    let pod = suspect
        .required_lookups()
        .pod
        .map(|(namespace, name)| NamedPod {
            namespace,
            name,
            node: suspect.node.as_deref(),
            is_running: suspect.reason == LeakReason::OtherAddresses,
        });
    let lookups = state.current_facts(suspect).owners;
    let owners = suspect
        .owners
        .iter()
        .zip(lookups)
        .map(|((namespace, name), lookup)| NamedPod {
            namespace,
            name,
            node: None,
            is_running: match lookup {
                Lookup::Absent => false,
                Lookup::Present(pod) => pod.ended.is_none(),
                Lookup::Unknown => true,
            },
        });
    pod.into_iter().chain(owners).collect()
}

fn endpoint_group(pod: &NamedPod<'_>) -> EndpointGroup {
    (pod.namespace.to_owned(), pod.node.map(str::to_owned))
}

/// Returns true if the endpoint lists the address or a network that contains it. A text that cannot
/// be parsed counts as any address.
fn lists_address(endpoint: &WorkloadEndpoint, address: IpAddr) -> bool {
    let mut listed = endpoint
        .spec
        .ip_networks
        .iter()
        .map(|text| Cidr::parse_or_host(text));
    listed.any(|network| network.is_none_or(|network| network.contains(address)))
}
