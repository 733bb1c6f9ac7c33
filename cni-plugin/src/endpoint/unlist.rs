//! [`EndpointsOf`]: removes the addresses of one container from the endpoints that list them, before IPAM releases the
//! addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use datastore::Datastore;
use ipam_plugin::error::IpamError;
use ipam_plugin::release::{Leaving, Listings, still_held};
use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::kubernetes::Pod;
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write, identifier};
use libcalico::validation_error::ValidationError;
use libcalico::workload::{EndpointFacts, Orchestrator, PodFacts};
use tokio::sync::OnceCell;

use super::{Listing, is_of_container};

/// Maximum number of attempts to write an endpoint that other processes write at the same time.
const TRIES: u32 = 6;

/// The endpoints of one container: its own, and those of the pods that its allocations name.
///
/// The own endpoint loses all its addresses. An endpoint that belongs to another container by now loses only the
/// addresses that are about to be released.
pub struct EndpointsOf<'a, S> {
    store: &'a S,
    /// True if the store represents endpoints as annotations of pods.
    in_pods: bool,
    /// The attachment. If its interface name is empty, every endpoint of the container is its own.
    facts: EndpointFacts,
    /// The uid by which an endpoint without a container ID belongs to the container; see [`is_of_container`].
    unnamed: Option<String>,
    /// The own endpoints, if the caller has read them.
    known: Option<Vec<Listing>>,
    /// The endpoints among them that no longer belong to the container. Set when the own endpoint has lost its
    /// addresses.
    others: OnceCell<Result<Vec<Listing>, IpamError>>,
}

impl<'a> EndpointsOf<'a, Datastore> {
    /// Returns the endpoints of the attachment in `facts`.
    pub fn new(store: &'a Datastore, facts: EndpointFacts) -> Self {
        EndpointsOf::in_store(store, matches!(store, Datastore::Kubernetes(_)), facts)
    }
}

impl<'a, S: Store> EndpointsOf<'a, S> {
    pub(crate) fn in_store(store: &'a S, in_pods: bool, facts: EndpointFacts) -> Self {
        EndpointsOf { store, in_pods, facts, unnamed: None, known: None, others: OnceCell::new() }
    }

    /// Includes endpoints without a container ID, unless they belong to a pod with another uid. An empty uid means
    /// unknown.
    #[must_use]
    pub fn or_unnamed(mut self, pod_uid: &str) -> Self {
        self.unnamed = Some(pod_uid.to_owned());
        self
    }

    /// Uses own endpoints that the caller has read.
    #[must_use]
    pub fn known(mut self, listings: Option<Vec<Listing>>) -> Self {
        self.known = listings;
        self
    }

    /// Removes all addresses from the own endpoint: by a patch on Kubernetes, elsewhere by deleting the endpoint.
    /// Repeated calls have no further effect.
    pub async fn give_up(&self) -> Result<(), IpamError> {
        self.others().await.map(drop)
    }

    async fn others(&self) -> Result<&[Listing], IpamError> {
        let others = self.others.get_or_init(|| Box::pin(self.give_up_own())).await;
        others.as_deref().map_err(Clone::clone)
    }

    async fn give_up_own(&self) -> Result<Vec<Listing>, IpamError> {
        let known = match &self.known {
            Some(known) => known.clone(),
            None => self.read(&self.facts).await?,
        };
        let mut others = Vec::new();
        for listing in known {
            others.extend(self.take_off(listing, &[]).await?);
        }
        Ok(others)
    }

    /// Removes addresses from an endpoint, or all of its addresses if it is the own one. Returns the endpoint if there
    /// was nothing to remove.
    async fn take_off(&self, mut listing: Listing, leaving: &[Leaving]) -> Result<Option<Listing>, IpamError> {
        for _ in 0..TRIES {
            let addresses = &self.leaving_off(&listing, leaving).await?;
            let written = match self.write(&listing, addresses) {
                None => return Ok(Some(listing)),
                Some(Ok(write)) => self.store.write_one(write).await,
                Some(Err(error)) => Err(error),
            };
            let read_again = match written {
                Ok(_) => {
                    match self.is_own(&listing) {
                        true => tracing::info!(endpoint = %listing.key, "deleted the endpoint"),
                        false => {
                            tracing::warn!(
                                endpoint = %listing.key, ?addresses,
                                "removed addresses from the endpoint of another container"
                            );
                        }
                    }
                    return Ok(None);
                }
                Err(StoreError::Conflict { .. }) => self.read_again(&listing).await,
                Err(error) => Err(error),
            };
            listing = match read_again {
                Ok(listing) => listing,
                Err(StoreError::NotFound { .. }) => return Ok(None),
                Err(error) => return refused(&listing, error),
            };
        }
        let key = listing.key.to_string();
        refused(&listing, StoreError::Conflict { key })
    }

    /// Returns the addresses to remove from the endpoint. The ADD of a later sandbox first takes an address over in the
    /// block and then writes the endpoint. Therefore another container's endpoint is read before the blocks, and is
    /// written only if it is still at the revision read.
    async fn leaving_off(&self, listing: &Listing, leaving: &[Leaving]) -> Result<Vec<IpAddr>, IpamError> {
        let addresses = |leaving: &[Leaving]| leaving.iter().map(|address| address.ip).collect::<Vec<_>>();
        let all = addresses(leaving);
        if self.is_own(listing) || listing.without(&all).is_none() {
            return Ok(all);
        }
        match still_held(self.store, leaving).await {
            Ok(held) => Ok(addresses(&held)),
            Err(cause) => Err(IpamError::StillListed { endpoint: identifier::<WorkloadEndpoint>(&listing.key), cause }),
        }
    }

    fn write(&self, listing: &Listing, addresses: &[IpAddr]) -> Option<Result<Write, StoreError>> {
        let Listing { key, revision, .. } = listing;
        if self.is_own(listing) {
            return (!listing.is_detached).then(|| Ok(Write::delete::<WorkloadEndpoint>(key, Some(revision))));
        }
        let left = listing.without(addresses)?;
        Some(Write::update_status::<WorkloadEndpoint>(key, &left, revision))
    }

    fn is_own(&self, listing: &Listing) -> bool {
        let names_it = self.facts.endpoint.is_empty() || self.facts.key().is_ok_and(|key| key == listing.key);
        let is_ours = is_of_container(&listing.endpoint, &self.facts.container_id, self.unnamed.as_deref());
        names_it && is_ours && !listing.is_elsewhere
    }

    /// Reads the endpoints of a pod or container, with any interface name.
    async fn read(&self, facts: &EndpointFacts) -> Result<Vec<Listing>, IpamError> {
        let unread = |cause| IpamError::StillListed { endpoint: described(facts), cause };
        match (self.in_pods, &facts.orchestrator) {
            (true, Orchestrator::Cni(_)) => Ok(Vec::new()),
            (true, Orchestrator::Kubernetes(pod)) => {
                let key = ObjectKey::namespaced(pod.namespace.clone(), pod.name.clone());
                match self.pod(&key).await {
                    Ok(listing) => Ok(vec![listing]),
                    Err(StoreError::NotFound { .. }) => Ok(Vec::new()),
                    Err(cause) => Err(unread(cause)),
                }
            }
            (false, _) => {
                let select = facts.select().map_err(|error| unread(unnamed(&error)))?;
                let mut batch = ReadBatch::new();
                let ticket = batch.list::<WorkloadEndpoint>(&select);
                let answers = self.store.read(&batch).await.map_err(unread)?;
                let found = answers.each(&ticket).filter(|(key, _)| facts.owns(&key.name));
                // An endpoint that cannot be decoded may list the addresses, so it is an error.
                found.map(|(_, endpoint)| endpoint.map(Listing::from).map_err(unread)).collect()
            }
        }
    }

    /// Returns the identity of another pod's endpoint; `None` for the own pod.
    fn facts_of_other(&self, namespace: &str, name: &str) -> Option<EndpointFacts> {
        if let Orchestrator::Kubernetes(own) = &self.facts.orchestrator
            && (own.namespace.as_str(), own.name.as_str()) == (namespace, name)
        {
            return None;
        }
        let pod = PodFacts { namespace: namespace.into(), name: name.into(), ..PodFacts::default() };
        Some(EndpointFacts { orchestrator: Orchestrator::Kubernetes(pod), ..self.facts.clone() })
    }

    async fn read_again(&self, listing: &Listing) -> Result<Listing, StoreError> {
        match &listing.pod {
            Some(pod) => self.pod(pod).await,
            None => self.store.get::<WorkloadEndpoint>(&listing.key).await.map(Listing::from),
        }
    }

    async fn pod(&self, key: &ObjectKey) -> Result<Listing, StoreError> {
        let entry: Entry<Pod> = self.store.get(key).await?;
        Listing::of_pod(entry, &self.facts.node).map_err(|error| unnamed(&error))
    }
}

impl<S: Store> Listings for EndpointsOf<'_, S> {
    async fn unlist(&self, leaving: &[Leaving]) -> Result<(), IpamError> {
        let others = self.others().await?;
        let mut by_pod = BTreeMap::<_, Vec<Leaving>>::new();
        for address in leaving {
            by_pod.entry(&address.pod).or_default().push(address.clone());
        }
        for (pod, addresses) in by_pod {
            let listings = match pod.as_ref().and_then(|(namespace, name)| self.facts_of_other(namespace, name)) {
                None => others.to_vec(),
                Some(facts) => self.read(&facts).await?,
            };
            for listing in listings {
                self.take_off(listing, &addresses).await?;
            }
        }
        Ok(())
    }
}

/// Returns the error of a failed write. A pod that has terminated no longer uses its addresses, so the failure is only
/// logged then, although the annotations still list them.
fn refused(listing: &Listing, cause: StoreError) -> Result<Option<Listing>, IpamError> {
    let endpoint = identifier::<WorkloadEndpoint>(&listing.key);
    if listing.is_finished {
        tracing::warn!(
            %endpoint, error = %cause,
            "cannot remove the addresses of a terminated pod from its endpoint; releasing the addresses nevertheless"
        );
        return Ok(None);
    }
    Err(IpamError::StillListed { endpoint, cause })
}

fn described(facts: &EndpointFacts) -> String {
    match &facts.orchestrator {
        Orchestrator::Cni(_) => format!("the endpoint of container {}", facts.container_id),
        Orchestrator::Kubernetes(pod) => format!("pod {}/{}", pod.namespace, pod.name),
    }
}

fn unnamed(error: &ValidationError) -> StoreError {
    StoreError::Other(error.to_string())
}
