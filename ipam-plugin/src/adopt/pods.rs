//! [`ClusterPods`]: the pods of the cluster and the addresses that their nodes report. The claims
//! of a node's pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{ObjectKey, ObjectSelect};
use libcalico::failure::Failure;
use libcalico::ipam::{Claim, Claimant, HandleId, PodState};
use libcalico::kubernetes::{Pod, VmiPod};
use libcalico::store::{ReadBatch, Store, StoreError};

use super::FoundClaim;
use super::evidence::{NodeEvidence, PodName, StoredEndpoint};
use allocation::vmi;

/// All pods of the cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterPods(BTreeMap<ObjectKey, Pod>);

impl ClusterPods {
    /// Reads the pods. A pod that cannot be read is an error, because it may use any address.
    pub(super) async fn read(api: &impl Store) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let ticket = batch.list::<Pod>(&ObjectSelect::default());
        let answers = api.read(&batch).await?;
        let pods = answers
            .each(&ticket)
            .map(|(key, pod)| pod.map(|pod| (key, pod.value)));
        Ok(ClusterPods(pods.collect::<Result<_, _>>()?))
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.0.get(&ObjectKey::namespaced(namespace, name))
    }

    /// Returns the pods of a node whose addresses it may have to adopt.
    pub(super) fn claimants_on<'a>(
        &'a self,
        node: &'a str,
        evidence: &'a NodeEvidence<'_>,
    ) -> impl Iterator<Item = &'a Pod> {
        self.0
            .values()
            .filter(move |pod| pod.spec.node_name == node && may_claim(pod, None, evidence))
    }

    /// Adds the addresses in the status of all pods that have not ended, also of those that are
    /// being deleted. The annotations of a pod do not count.
    pub(super) fn add_users(&self, users: &mut BTreeMap<IpAddr, BTreeSet<Claimant>>) {
        for pod in self.0.values().filter(|pod| may_have_network(pod)) {
            let reported = PodState::of(pod).addresses;
            reported
                .in_status()
                .for_each(|ip| _ = users.entry(ip).or_default().insert(claimant(pod)));
        }
    }
}

/// Returns true if the pod may have a sandbox with a network of its own.
pub(super) fn may_have_network(pod: &Pod) -> bool {
    !pod.spec.host_network && PodState::of(pod).ended.is_none()
}

/// Returns true if the pod may claim addresses. A pod has its sandbox before it runs, for example
/// while it waits for an image or for an init container, and keeps it during its deletion until the
/// DEL.
pub(super) fn may_claim(
    pod: &Pod,
    endpoint: Option<StoredEndpoint<'_>>,
    evidence: &NodeEvidence<'_>,
) -> bool {
    let state = PodState::of(pod);
    let is_deleted =
        || pod.metadata.deletion_timestamp.is_some() && evidence.is_gone(name_of(pod), endpoint);
    let is_reported = || state.addresses.in_status().next().is_some();
    state.runs || (may_have_network(pod) && is_reported() && !is_deleted())
}

pub(super) fn claimant(pod: &Pod) -> Claimant {
    Claimant::Pod {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
    }
}

pub(super) fn name_of(pod: &Pod) -> PodName<'_> {
    PodName {
        namespace: &pod.metadata.namespace,
        name: &pod.metadata.name,
        uid: &pod.metadata.uid,
    }
}

/// Returns the claims of the node's pods, where endpoints are derived from pods.
pub(super) async fn claims<S: Store>(
    store: &S,
    pods: &ClusterPods,
    node: &str,
    evidence: &NodeEvidence<'_>,
) -> Vec<FoundClaim> {
    let mut claims = Vec::new();
    for pod in pods.claimants_on(node, evidence) {
        let container = evidence.container_of_pod(name_of(pod), None);
        let owner = match container {
            Ok(container) => {
                owner_of(Some(store), store, evidence.network, Some(pod), &container).await
            }
            Err(unproven) => Err(unproven),
        };
        let (handle, vmi) = split(owner);
        let interface = evidence.interface_of_pod(name_of(pod), None);
        for address in PodState::of(pod).addresses.in_status() {
            let is_current = evidence.ensure_no_other_route(&interface, address);
            let handle = handle
                .clone()
                .and_then(|handle| is_current.map(|()| handle));
            claims.push(FoundClaim {
                claim: Claim {
                    address,
                    claimant: claimant(pod),
                    handle,
                },
                vmi: vmi.clone(),
            });
        }
    }
    claims
}

/// Returns the handle that an ADD of the container uses, and the pod's virtual machine if it keeps
/// the addresses.
pub(super) async fn owner_of<A: Store, S: Store>(
    api: Option<&A>,
    store: &S,
    network: &str,
    pod: Option<&Pod>,
    container: &str,
) -> Result<(HandleId, Option<VmiPod>), Failure> {
    let detected = vmi::detect(api, store, pod).await?;
    let vmi = detected
        .map(vmi::DetectedVmi::for_add)
        .transpose()?
        .flatten();
    let handle = match &vmi {
        Some(vmi) => HandleId::for_vmi(network, &vmi.namespace, &vmi.vmi_name),
        None => HandleId::for_container(network, container),
    };
    Ok((handle, vmi))
}

pub(super) fn split(
    owner: Result<(HandleId, Option<VmiPod>), Failure>,
) -> (Result<HandleId, Failure>, Option<VmiPod>) {
    match owner {
        Ok((handle, vmi)) => (Ok(handle), vmi),
        Err(unproven) => (Err(unproven), None),
    }
}
