//! [`EndpointsOf`]: takes the addresses of one container off the endpoints that list them, before they become free.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_plugin::error::IpamError;
use ipam_plugin::release::{Leaving, Listings, still_held};
use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::conversion::{EndpointFacts, Orchestrator, PodFacts};
use libcalico::kubernetes::Pod;
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write, identifier};
use libcalico::validation::ValidationError;
use tokio::sync::OnceCell;

use super::{Listing, is_of_container};

/// How often an endpoint that others write meanwhile is written.
const TRIES: u32 = 6;

/// The endpoints of one container: its own, and those of the pods that its allocations name.
///
/// The own endpoint gives up all it lists. An endpoint that is another container's by now gives up the addresses that are
/// about to become free, and nothing else.
pub struct EndpointsOf<'a, S> {
    store: &'a S,
    /// Endpoints are pods.
    in_pods: bool,
    /// The attachment. Without an interface's name every endpoint of the container is its own.
    facts: EndpointFacts,
    /// Which endpoint that names no container is the container's, see [`is_of_container`].
    unnamed: Option<String>,
    /// The own endpoints, if they were read before.
    known: Option<Vec<Listing>>,
    /// Those of them that are not the container's any more.
    others: OnceCell<Result<Vec<Listing>, IpamError>>,
}

impl<'a, S: Store> EndpointsOf<'a, S> {
    /// The endpoints of the attachment that `facts` describe. `in_pods`: the store keeps them as annotations of pods.
    pub fn new(store: &'a S, in_pods: bool, facts: EndpointFacts) -> Self {
        EndpointsOf { store, in_pods, facts, unnamed: None, known: None, others: OnceCell::new() }
    }

    /// Takes an endpoint that names no container for the container's, unless it is of a pod with another uid. An empty uid
    /// is an unknown one.
    #[must_use]
    pub fn or_unnamed(mut self, pod_uid: &str) -> Self {
        self.unnamed = Some(pod_uid.to_owned());
        self
    }

    /// Goes by own endpoints that were read already.
    #[must_use]
    pub fn known(mut self, listings: Option<Vec<Listing>>) -> Self {
        self.known = listings;
        self
    }

    /// Has the own endpoint give up all it lists: on Kubernetes by a patch, elsewhere it is deleted. Done once, however often
    /// it is asked for.
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

    /// Takes addresses off an endpoint, or all if it is the own one. Returns an endpoint that was left alone.
    async fn take_off(&self, mut listing: Listing, leaving: &[Leaving]) -> Result<Option<Listing>, IpamError> {
        for _ in 0..TRIES {
            let addresses = &self.leaving_off(&listing, leaving).await?;
            let written = match self.write(&listing, addresses) {
                None => return Ok(Some(listing)),
                Some(Ok(write)) => self.store.write_one(write).await,
                Some(Err(error)) => Err(error),
            };
            match written {
                Ok(_) => {
                    match self.is_own(&listing) {
                        true => tracing::info!(endpoint = %listing.key, "deleted the endpoint"),
                        false => {
                            tracing::warn!(endpoint = %listing.key, ?addresses, "took addresses off another's endpoint")
                        }
                    }
                    return Ok(None);
                }
                Err(StoreError::NotFound { .. }) => return Ok(None),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return refused(&listing, error),
            }
            listing = match self.read_again(&listing).await {
                Ok(listing) => listing,
                Err(StoreError::NotFound { .. }) => return Ok(None),
                Err(error) => return refused(&listing, error),
            };
        }
        let key = listing.key.to_string();
        refused(&listing, StoreError::Conflict { key })
    }

    /// Returns the addresses that the endpoint is to give up. The ADD of a later sandbox takes an address over in the block, then
    /// writes the endpoint. So another container's endpoint is read before the blocks, and written only in the revision that was
    /// read.
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

    /// The endpoints of a pod or container, whatever their interface is called.
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
                // An endpoint that cannot be read may list the addresses.
                found.map(|(_, endpoint)| endpoint.map(Listing::from).map_err(unread)).collect()
            }
        }
    }

    /// What another pod's endpoint is found by; `None` for the own one.
    fn facts_of_other(&self, namespace: &str, name: &str) -> Option<EndpointFacts> {
        if matches!(&self.facts.orchestrator, Orchestrator::Kubernetes(own) if own.namespace == namespace && own.name == name)
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

/// A pod that has ended keeps no address, whatever becomes of its annotations.
fn refused(listing: &Listing, cause: StoreError) -> Result<Option<Listing>, IpamError> {
    let endpoint = identifier::<WorkloadEndpoint>(&listing.key);
    if listing.is_finished {
        tracing::warn!(%endpoint, error = %cause, "the pod has ended; its addresses are released although its endpoint lists them");
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
