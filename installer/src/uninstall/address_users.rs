//! Finds objects that list addresses to be released: pods in the API server, and WorkloadEndpoints on datastores that
//! store them as objects.
//!
//! The kernel of this node does not show such pods if the configuration names another node, or if their interfaces are
//! no longer Calico's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_plugin::cni::LeakedAddresses;
use libcalico::api::{ObjectKey, ObjectSelect, WorkloadEndpoint};
use libcalico::kubernetes::{AddressAnnotations, Pod, PodAddresses};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write};

use super::interfaces::TornDown;
use super::release_error::ReleaseError;

/// Checks that no pod would lose its address.
///
/// # Errors
/// Returns an error with the pods that would, their addresses and the remedy, or if the API server cannot be queried.
pub(super) async fn check_pods<S: Store>(
    api: &S,
    leaked: &LeakedAddresses,
    gone: TornDown<'_>,
) -> Result<(), ReleaseError> {
    let mut leaving = BTreeMap::<ObjectKey, BTreeSet<IpAddr>>::new();
    for (_, address) in leaked.held() {
        if let Some((namespace, name)) = &address.pod {
            leaving.entry(ObjectKey::namespaced(namespace, name)).or_default().insert(address.ip);
        }
    }
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = leaving.keys().map(|key| batch.get::<Pod>(key)).collect();
    let answers = api.read(&batch).await.map_err(ReleaseError::UnreadablePods)?;
    let mut used = Vec::new();
    for (ticket, (key, addresses)) in tickets.iter().zip(&leaving) {
        let Some(pod) = answers.get(ticket).map_err(ReleaseError::UnreadablePods)? else { continue };
        let Some(has) = addresses_of(&pod.value) else { continue };
        // A running ADD may have assigned the address while the pod reports no address yet, or that of its previous
        // sandbox.
        let is_here = gone.node == pod.value.spec.node_name;
        let may_have = |ip: &IpAddr| is_here || has.is_empty() || has.contains(ip);
        let is_used = |ip: &&IpAddr| may_have(ip) && !gone.has(&pod.value.spec.node_name, ip);
        used.extend(addresses.iter().filter(is_used).map(|ip| format!("{key} ({ip})")));
    }
    if used.is_empty() {
        return Ok(());
    }
    Err(ReleaseError::UsedByPods(used))
}

/// Returns the addresses in the pod's status and annotations. Both are read because kubelet updates the status some
/// time after the ADD. Returns `None` for a pod that has ended.
fn addresses_of(pod: &Pod) -> Option<BTreeSet<IpAddr>> {
    let listed: Vec<&str> = pod.status.pod_ips.iter().map(|address| address.ip.as_str()).collect();
    let addresses = PodAddresses {
        phase: &pod.status.phase,
        deleting: false,
        pod_ip: &pod.status.pod_ip,
        pod_ips: &listed,
        annotations: AddressAnnotations::of(&pod.metadata.annotations),
    };
    let reported = addresses.parse_reported().chain(addresses.parse_noted());
    (!addresses.has_ended()).then(|| reported.flatten().map(|cidr| cidr.network()).collect())
}

/// The endpoints that list such addresses, each with these addresses.
#[derive(Debug, Default)]
pub(super) struct Endpoints(Vec<(Entry<WorkloadEndpoint>, Vec<IpAddr>)>);

impl Endpoints {
    /// Reads the endpoints that list an address of `leaked`, the allocations on `node`.
    ///
    /// # Errors
    /// Returns an error if the datastore cannot be read, or if an endpoint of the node is invalid.
    pub(super) async fn listing<S: Store>(
        store: &S,
        node: &str,
        leaked: &LeakedAddresses,
    ) -> Result<Endpoints, ReleaseError> {
        let leaving: BTreeSet<IpAddr> = leaked.held().map(|(_, address)| address.ip).collect();
        let mut batch = ReadBatch::new();
        let all = batch.list::<WorkloadEndpoint>(&ObjectSelect::default());
        let answers = store.read(&batch).await;
        let answers = answers.map_err(ReleaseError::UnreadableEndpoints)?;
        let mut listing = Vec::new();
        for (key, endpoint) in answers.each(&all) {
            let endpoint = match endpoint {
                Ok(endpoint) => endpoint,
                Err(source) if EndpointIdentifiers::parse(&key.name).is_ok_and(|ids| ids.node == node) => {
                    return Err(ReleaseError::InvalidEndpoint { key, source });
                }
                Err(_) => continue,
            };
            let addresses = endpoint.value.spec.networks().map(|network| network.network());
            let listed: Vec<IpAddr> = addresses.filter(|ip| leaving.contains(ip)).collect();
            if !listed.is_empty() {
                listing.push((endpoint, listed));
            }
        }
        Ok(Endpoints(listing))
    }

    /// Checks that every listed address was behind an interface deleted on this node.
    ///
    /// # Errors
    /// Returns an error with the endpoints whose interfaces were not on this node, their addresses and the remedy.
    pub(super) fn check_unused(&self, gone: TornDown<'_>) -> Result<(), ReleaseError> {
        let mut used = Vec::new();
        for (endpoint, listed) in &self.0 {
            let is_used = |ip: &&IpAddr| !gone.has(&endpoint.value.spec.node, ip);
            used.extend(listed.iter().filter(is_used).map(|ip| format!("{} ({ip})", endpoint.key)));
        }
        if used.is_empty() {
            return Ok(());
        }
        Err(ReleaseError::UsedByEndpoints(used))
    }

    /// Deletes the endpoints at the revisions that were read.
    ///
    /// # Errors
    /// Returns an error if an endpoint was changed meanwhile, or if the datastore rejects the request.
    pub(super) async fn delete<S: Store>(&self, store: &S) -> Result<(), ReleaseError> {
        for (Entry { key, revision, .. }, _) in &self.0 {
            match store.write_one(Write::delete::<WorkloadEndpoint>(key, Some(revision))).await {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(source) => return Err(ReleaseError::RemainingEndpoint { key: key.clone(), source }),
            }
        }
        Ok(())
    }
}
