//! The claims of a node's WorkloadEndpoints, on etcd and the embedded datastore, where the plugin
//! writes them.
//!
//! After a restore the endpoints may be old. An endpoint therefore claims an address only if the
//! node has its container, and if the pod's status lists the address, or without an API server if
//! the node has a route to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{ObjectSelect, WorkloadEndpoint};
use libcalico::failure::Failure;
use libcalico::ipam::{Claim, Claimant, HandleId, PodState, foreign_interface};
use libcalico::kubernetes::{Pod, VmiPod};
use libcalico::store::{ReadBatch, Store, StoreError};

use super::FoundClaim;
use super::evidence::{NodeEvidence, PodName, StoredEndpoint};
use super::pods::{self, ClusterPods};

const OF_PODS: &str = "k8s";
const OF_CONTAINERS: &str = "cni";

/// Reads the endpoints of all nodes. An endpoint that cannot be read is an error, because it may
/// have any address.
pub(super) async fn read(store: &impl Store) -> Result<Vec<WorkloadEndpoint>, StoreError> {
    let mut batch = ReadBatch::new();
    let ticket = batch.list::<WorkloadEndpoint>(&ObjectSelect::default());
    let answers = store.read(&batch).await?;
    answers
        .each(&ticket)
        .map(|(_, endpoint)| endpoint.map(|endpoint| endpoint.value))
        .collect()
}

/// Adds the addresses of the endpoints. With `pods`, endpoints of pods that do not exist or have
/// ended do not count: a restore brings them back.
pub(super) fn add_users(
    endpoints: &[WorkloadEndpoint],
    pods: Option<&ClusterPods>,
    users: &mut BTreeMap<IpAddr, BTreeSet<Claimant>>,
) {
    for endpoint in endpoints {
        let Some(claimant) = claimant(endpoint) else {
            continue;
        };
        let is_gone = |pods: &ClusterPods| match &claimant {
            Claimant::Pod { namespace, name } => pods
                .get(namespace, name)
                .is_none_or(|pod| !pods::may_have_network(pod)),
            Claimant::Container(_) | Claimant::Tunnel(_) => false,
        };
        if !pods.is_some_and(is_gone) {
            addresses(endpoint)
                .for_each(|ip| _ = users.entry(ip).or_default().insert(claimant.clone()));
        }
    }
}

fn claimant(endpoint: &WorkloadEndpoint) -> Option<Claimant> {
    let (spec, namespace) = (&endpoint.spec, &endpoint.metadata.namespace);
    match spec.orchestrator.as_str() {
        OF_PODS => Some(Claimant::Pod {
            namespace: namespace.clone(),
            name: spec.pod.clone(),
        }),
        OF_CONTAINERS => Some(Claimant::Container(spec.container_id.clone())),
        _ => None,
    }
}

fn addresses(endpoint: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> {
    endpoint
        .spec
        .networks()
        .filter(|network| network.size() == 1)
        .map(|network| network.network())
}

/// Returns the claims of the endpoints of a node, and those of the node's pods that have no
/// endpoint. `api` and `pods` are `None` without an API server.
pub(super) async fn claims<S: Store, A: Store>(
    store: &S,
    api: Option<&A>,
    (endpoints, pods): (&[WorkloadEndpoint], Option<&ClusterPods>),
    node: &str,
    evidence: &NodeEvidence<'_>,
) -> Vec<FoundClaim> {
    let (mut claims, mut pods_with_endpoint) = (Vec::new(), BTreeSet::new());
    for endpoint in endpoints
        .iter()
        .filter(|endpoint| endpoint.spec.node == node)
    {
        let Some(claimant) = claimant(endpoint) else {
            continue;
        };
        let pod = match (&claimant, pods) {
            (Claimant::Pod { namespace, name }, Some(pods)) => {
                let may_claim = |pod: &&Pod| pods::may_claim(pod, Some(stored(endpoint)), evidence);
                let Some(pod) = pods.get(namespace, name).filter(may_claim) else {
                    continue;
                };
                Some(pod)
            }
            _ => None,
        };
        let owner = owner_of(store, api, endpoint, pod, evidence).await;
        let (handle, vmi) = pods::split(owner);
        for address in addresses(endpoint) {
            let is_used = ensure_is_used(endpoint, pod, address, evidence);
            let handle = handle.clone().and_then(|handle| is_used.map(|()| handle));
            let claim = Claim {
                address,
                claimant: claimant.clone(),
                handle,
            };
            claims.push(FoundClaim {
                claim,
                vmi: vmi.clone(),
            });
        }
        pods_with_endpoint.insert(claimant);
    }
    let pods_of_node = pods
        .into_iter()
        .flat_map(|pods| pods.claimants_on(node, evidence));
    for pod in pods_of_node.filter(|pod| !pods_with_endpoint.contains(&pods::claimant(pod))) {
        claims.extend(PodState::of(pod).addresses.in_status().map(|address| {
            let missing = Failure::new("the pod has no WorkloadEndpoint");
            let handle = Err(missing.way_out("restart the pod"));
            FoundClaim {
                claim: Claim {
                    address,
                    claimant: pods::claimant(pod),
                    handle,
                },
                vmi: None,
            }
        }));
    }
    claims
}

fn stored(endpoint: &WorkloadEndpoint) -> StoredEndpoint<'_> {
    StoredEndpoint {
        container: &endpoint.spec.container_id,
        interface: &endpoint.spec.interface_name,
    }
}

fn name_of<'a>(endpoint: &'a WorkloadEndpoint, pod: Option<&'a Pod>) -> PodName<'a> {
    let of_endpoint = PodName {
        namespace: &endpoint.metadata.namespace,
        name: &endpoint.spec.pod,
        uid: "",
    };
    pod.map_or(of_endpoint, pods::name_of)
}

async fn owner_of<S: Store, A: Store>(
    store: &S,
    api: Option<&A>,
    endpoint: &WorkloadEndpoint,
    pod: Option<&Pod>,
    evidence: &NodeEvidence<'_>,
) -> Result<(HandleId, Option<VmiPod>), Failure> {
    let container = match endpoint.spec.orchestrator.as_str() {
        OF_PODS => evidence.container_of_pod(name_of(endpoint, pod), Some(stored(endpoint)))?,
        _ => {
            // The network in the first profile assigned the addresses. The alias does not contain
            // it.
            if endpoint
                .spec
                .profiles
                .first()
                .is_some_and(|network| network != evidence.network)
            {
                return Err(foreign_interface(&endpoint.spec.interface_name));
            }
            evidence.plain_container(stored(endpoint))?
        }
    };
    pods::owner_of(api, store, evidence.network, pod, &container).await
}

fn ensure_is_used(
    endpoint: &WorkloadEndpoint,
    pod: Option<&Pod>,
    address: IpAddr,
    evidence: &NodeEvidence<'_>,
) -> Result<(), Failure> {
    if let Some(pod) = pod {
        let is_listed = PodState::of(pod)
            .addresses
            .in_status()
            .any(|listed| listed == address);
        return if is_listed {
            Ok(())
        } else {
            Err(Failure::new(
                "the WorkloadEndpoint lists the address, but the status of the pod does not",
            ))
        };
    }
    let interface = match endpoint.spec.orchestrator.as_str() {
        OF_PODS => evidence.interface_of_pod(name_of(endpoint, None), Some(stored(endpoint))),
        _ => endpoint.spec.interface_name.clone(),
    };
    evidence.ensure_route(&interface, address)
}
