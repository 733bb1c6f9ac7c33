//! [`ContainerEndpoints`]: removes the addresses of one container from the endpoints that list
//! them, before IPAM releases the addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use allocation::error::IpamError;
use allocation::release::{AddressToRelease, Unlisted, still_allocated};
use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::kubernetes::Pod;
use libcalico::store::{EndpointForm, Entry, ReadBatch, Store, StoreError, Write, identifier};
use libcalico::validation_error::ValidationError;
use libcalico::workload::{Orchestrator, PodIdentity, WorkloadIdentity};

use super::{Listing, is_of_container};

/// Maximum number of attempts to write an endpoint that other processes write at the same time.
const MAX_ATTEMPTS: u32 = 6;

/// The endpoints of one container: its own, and those of the pods that its allocations name.
///
/// The own endpoint loses all its addresses. An endpoint that belongs to another container by now
/// loses only the addresses that are about to be released.
#[derive(Debug)]
pub struct ContainerEndpoints<'a, S> {
    store: &'a S,
    /// The attachment. If its interface name is empty, every endpoint of the container is its own.
    workload: WorkloadIdentity,
    /// The uid by which an endpoint without a container ID belongs to the container; see
    /// [`is_of_container`]. If `None`, no such endpoint belongs to the container.
    unnamed_of_pod: Option<String>,
    /// The own endpoints that the caller has read; `None` to read them.
    listings: Option<Vec<Listing>>,
}

/// The endpoints that may still list addresses of a container after its own endpoint was deleted.
#[derive(Debug)]
pub struct OtherEndpoints<'a, S> {
    container: ContainerEndpoints<'a, S>,
    /// The endpoints that were read as own ones and from which nothing was removed, for example
    /// because they belong to another container.
    kept: Vec<Listing>,
}

impl<'a, S: Store> ContainerEndpoints<'a, S> {
    /// Returns the endpoints of the attachment in `workload`.
    pub fn new(store: &'a S, workload: WorkloadIdentity) -> Self {
        ContainerEndpoints {
            store,
            workload,
            unnamed_of_pod: None,
            listings: None,
        }
    }

    /// Includes endpoints without a container ID, unless they belong to a pod with another uid than
    /// `pod_uid`. An empty `pod_uid` is an unknown uid.
    #[must_use]
    pub fn including_unnamed(mut self, pod_uid: &str) -> Self {
        self.unnamed_of_pod = Some(pod_uid.to_owned());
        self
    }

    /// Uses own endpoints that the caller has read; `None` to read them from the datastore.
    #[must_use]
    pub fn with_listings(mut self, listings: Option<Vec<Listing>>) -> Self {
        self.listings = listings;
        self
    }

    /// Removes all addresses from the own endpoint.
    pub async fn delete_own(mut self) -> Result<OtherEndpoints<'a, S>, IpamError> {
        let listings = match self.listings.take() {
            Some(listings) => listings,
            None => self.read(&self.workload).await?,
        };
        let mut kept = Vec::new();
        for listing in listings {
            kept.extend(self.shrink(listing, &[]).await?);
        }
        Ok(OtherEndpoints {
            container: self,
            kept,
        })
    }

    /// Removes addresses from an endpoint, or all of its addresses if it is the own one. Returns
    /// the endpoint if there was nothing to remove.
    async fn shrink(
        &self,
        mut listing: Listing,
        leaving: &[AddressToRelease],
    ) -> Result<Option<Listing>, IpamError> {
        for _ in 0..MAX_ATTEMPTS {
            let addresses = &self.removable(&listing, leaving).await?;
            let written = match self.write(&listing, addresses) {
                None => return Ok(Some(listing)),
                Some(Ok(write)) => self.store.write_one(write).await,
                Some(Err(error)) => Err(error),
            };
            let Err(error) = written else {
                let endpoint = &listing.key;
                if self.is_own(&listing) {
                    tracing::info!(
                        %endpoint, "deleted the endpoint, or on an API server its addresses",
                    );
                } else {
                    tracing::warn!(
                        %endpoint, ?addresses,
                        reason = "the addresses are being released",
                        "removed addresses from the endpoint of another container or attachment"
                    );
                }
                return Ok(None);
            };
            let read_again = match error {
                StoreError::Conflict { .. } => self.read_again(&listing).await,
                error => Err(error),
            };
            listing = match read_again {
                Ok(listing) => listing,
                Err(StoreError::NotFound { .. }) => return Ok(None),
                Err(error) => return write_failed(&listing, error),
            };
        }
        let key = listing.key.to_string();
        write_failed(&listing, StoreError::Conflict { key })
    }

    /// Returns the addresses to remove from the endpoint: of another container's endpoint, only
    /// those that are still allocated under their handles. The ADD of a later sandbox first takes
    /// an address over in the block and then writes the endpoint. So another container's endpoint
    /// is read before the blocks, and is written only at the revision read.
    async fn removable(
        &self,
        listing: &Listing,
        leaving: &[AddressToRelease],
    ) -> Result<Vec<IpAddr>, IpamError> {
        let addresses = |leaving: &[AddressToRelease]| {
            leaving.iter().map(|address| address.ip).collect::<Vec<_>>()
        };
        let all = addresses(leaving);
        if self.is_own(listing) || listing.without(&all).is_none() {
            return Ok(all);
        }
        match still_allocated(self.store, leaving).await {
            Ok(held) => Ok(addresses(&held)),
            Err(cause) => Err(IpamError::StillListed {
                endpoint: identifier::<WorkloadEndpoint>(&listing.key),
                cause,
            }),
        }
    }

    fn write(&self, listing: &Listing, addresses: &[IpAddr]) -> Option<Result<Write, StoreError>> {
        let Listing { key, revision, .. } = listing;
        if self.is_own(listing) {
            return (!listing.is_detached)
                .then(|| Ok(Write::delete::<WorkloadEndpoint>(key, Some(revision))));
        }
        let remaining = listing.without(addresses)?;
        Some(Write::update_status::<WorkloadEndpoint>(
            key, &remaining, revision,
        ))
    }

    fn is_own(&self, listing: &Listing) -> bool {
        let is_named = self.workload.endpoint.is_empty()
            || self.workload.key().is_ok_and(|key| key == listing.key);
        let is_of_this_container = is_of_container(
            &listing.endpoint,
            &self.workload.container_id,
            self.unnamed_of_pod.as_deref(),
        );
        is_named && is_of_this_container && !listing.is_elsewhere
    }

    /// Reads the endpoints of a pod or container, with any interface name.
    async fn read(&self, workload: &WorkloadIdentity) -> Result<Vec<Listing>, IpamError> {
        let unreadable = |cause| IpamError::StillListed {
            endpoint: describe(workload),
            cause,
        };
        match (self.store.endpoint_form(), &workload.orchestrator) {
            (EndpointForm::PodAnnotations, Orchestrator::Cni(_)) => Ok(Vec::new()),
            (EndpointForm::PodAnnotations, Orchestrator::Kubernetes(pod)) => {
                let key = ObjectKey::namespaced(pod.namespace.clone(), pod.name.clone());
                match self.pod(&key).await {
                    Ok(listing) => Ok(vec![listing]),
                    Err(StoreError::NotFound { .. }) => Ok(Vec::new()),
                    Err(cause) => Err(unreadable(cause)),
                }
            }
            (EndpointForm::Object, _) => {
                let select = workload
                    .endpoint_select()
                    .map_err(|error| unreadable(invalid_name(&error)))?;
                let mut batch = ReadBatch::new();
                let ticket = batch.list::<WorkloadEndpoint>(&select);
                let answers = self.store.read(&batch).await.map_err(unreadable)?;
                let endpoints = answers
                    .each(&ticket)
                    .filter(|(key, _)| workload.is_endpoint_name(&key.name));
                // An endpoint that cannot be decoded may list the addresses, so it is an error.
                endpoints
                    .map(|(_, endpoint)| endpoint.map(Listing::from).map_err(unreadable))
                    .collect()
            }
        }
    }

    /// Returns the identity of another pod's endpoint; `None` for the own pod.
    fn workload_of_other(&self, namespace: &str, name: &str) -> Option<WorkloadIdentity> {
        if let Orchestrator::Kubernetes(own) = &self.workload.orchestrator
            && (own.namespace.as_str(), own.name.as_str()) == (namespace, name)
        {
            return None;
        }
        let pod = PodIdentity {
            namespace: namespace.into(),
            name: name.into(),
            ..PodIdentity::default()
        };
        Some(WorkloadIdentity {
            orchestrator: Orchestrator::Kubernetes(pod),
            ..self.workload.clone()
        })
    }

    async fn read_again(&self, listing: &Listing) -> Result<Listing, StoreError> {
        match &listing.pod {
            Some(pod) => self.pod(pod).await,
            None => self
                .store
                .get::<WorkloadEndpoint>(&listing.key)
                .await
                .map(Listing::from),
        }
    }

    async fn pod(&self, key: &ObjectKey) -> Result<Listing, StoreError> {
        let entry: Entry<Pod> = self.store.get(key).await?;
        Listing::of_pod(entry, &self.workload.node).map_err(|error| invalid_name(&error))
    }
}

impl<S: Store> OtherEndpoints<'_, S> {
    /// Removes addresses that are about to be released from the endpoints that list them. After an
    /// error, none of these addresses may be released.
    pub async fn unlist(&self, leaving: &[AddressToRelease]) -> Result<Unlisted, IpamError> {
        let mut by_pod = BTreeMap::<_, Vec<AddressToRelease>>::new();
        for address in leaving {
            by_pod
                .entry(&address.pod)
                .or_default()
                .push(address.clone());
        }
        for (pod, addresses) in by_pod {
            let other = pod
                .as_ref()
                .and_then(|(namespace, name)| self.container.workload_of_other(namespace, name));
            let listings = match other {
                None => self.kept.clone(),
                Some(workload) => self.container.read(&workload).await?,
            };
            for listing in listings {
                self.container.shrink(listing, &addresses).await?;
            }
        }
        Ok(Unlisted::new(leaving))
    }
}

/// Returns the error of a failed write, but `Ok(None)` for a pod that has terminated, which no
/// longer uses its addresses.
fn write_failed(listing: &Listing, cause: StoreError) -> Result<Option<Listing>, IpamError> {
    let endpoint = identifier::<WorkloadEndpoint>(&listing.key);
    if listing.is_finished {
        tracing::warn!(
            %endpoint, error = %cause,
            "cannot remove a terminated pod's addresses from its endpoint; releasing them"
        );
        return Ok(None);
    }
    Err(IpamError::StillListed { endpoint, cause })
}

fn describe(workload: &WorkloadIdentity) -> String {
    match &workload.orchestrator {
        Orchestrator::Cni(_) => format!("the endpoint of container {}", workload.container_id),
        Orchestrator::Kubernetes(pod) => format!("pod {}/{}", pod.namespace, pod.name),
    }
}

fn invalid_name(error: &ValidationError) -> StoreError {
    StoreError::Other(error.to_string())
}
