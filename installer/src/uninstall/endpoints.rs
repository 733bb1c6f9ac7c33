//! Finds and deletes WorkloadEndpoints that list addresses to be released, on datastores that store them as objects.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_plugin::cni::LeakedAddresses;
use libcalico::api::{ObjectSelect, WorkloadEndpoint};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write};

use super::interfaces::TornDown;
use super::release_error::ReleaseError;

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
