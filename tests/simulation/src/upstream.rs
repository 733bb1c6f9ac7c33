//! Upstream's programs as clients of the datastore: the IPAM plugin, and the garbage collection of
//! kube-controllers.
//!
//! Nodes with these programs share blocks, affinities and handles with ours. Each function sends
//! upstream's requests in upstream's order: a `read` has one range, and a `write` has one object.
//! A caller can therefore interleave, fail or stop the clients between any two requests. A dropped
//! future is a killed process.
//!
//! On a store whose writes are per object, the clients delete and read as upstream does on an API
//! server ([`WriteModel::PerObject`](libcalico::store::WriteModel)): a deletion marks the object,
//! reads it and deletes it, and a reader completes the deletion of a marked object (IPAM-91).

mod affinity;
mod assign;
mod block_choice;
mod claim;
mod client;
mod collector;
mod error;
mod handle;
mod one_address;
mod pools;
mod release;
mod release_addresses;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::ipam::{AffinityOwner, HandleId, Labels};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Store, StoreError};
use time::OffsetDateTime;

pub use self::collector::{Collector, Snapshot, gc_pass};
pub use self::error::UpstreamError;

use self::client::Client;

/// A clock.
pub type Now<'a> = &'a (dyn Fn() -> OffsetDateTime + Send + Sync);

/// The number of attempts in each of upstream's loops. There is no pause between two attempts.
const ATTEMPTS: usize = 100;

/// The request of an ADD.
#[derive(Debug, Clone, Copy)]
pub struct AddRequest<'a> {
    /// The node of the container.
    pub node: &'a str,
    /// The handle of the container.
    pub handle: &'a HandleId,
    /// The attributes to store with the addresses.
    pub attributes: &'a BTreeMap<String, String>,
    /// The ranges of the pools that the request names, for both families; usually none.
    pub pools: &'a [Cidr],
    /// Name and labels of the pod's namespace, which the plugin reads from the API server.
    pub namespace: Option<(&'a str, &'a Labels)>,
}

impl AddRequest<'_> {
    fn owner(&self) -> AffinityOwner {
        AffinityOwner::Host(self.node.to_owned())
    }
}

/// Assigns one address of each family, IPv4 first.
///
/// # Errors
/// If a family fails, the address of the other family stays allocated, and only a DEL releases it.
/// If no address of a family is left, the address of the other family is released.
pub async fn add<S: Store>(
    store: &S,
    now: Now<'_>,
    request: &AddRequest<'_>,
    families: &[IpVersion],
) -> Result<Vec<IpAddr>, UpstreamError> {
    let client = Client { store, now };
    let (mut assigned, mut short) = (Vec::new(), None);
    for family in [IpVersion::V4, IpVersion::V6] {
        if !families.contains(&family) {
            continue;
        }
        match client.assign(request, family).await? {
            Some(ip) => assigned.push(ip),
            None => short = short.or(Some(family)),
        }
    }
    let Some(family) = short else {
        return Ok(assigned);
    };
    if let [ip] = assigned[..] {
        // The plugin only logs a failure of this release.
        _ = client.release_addresses(&[release_of(ip)]).await;
    }
    Err(UpstreamError::NoAddress(family))
}

/// Assigns the address `ip`, as the plugin does for `IP` in `CNI_ARGS`.
pub async fn add_fixed<S: Store>(
    store: &S,
    now: Now<'_>,
    request: &AddRequest<'_>,
    ip: IpAddr,
) -> Result<(), UpstreamError> {
    Client { store, now }.assign_address(request, ip).await
}

/// Releases the addresses of a container, and those of the handle `old` from before v3 (IPAM-23).
/// A missing object is no error.
pub async fn del<S: Store>(
    store: &S,
    now: Now<'_>,
    handle: &HandleId,
    old: Option<&HandleId>,
) -> Result<(), UpstreamError> {
    let client = Client { store, now };
    for id in [Some(handle), old].into_iter().flatten() {
        match client.release_by_handle(id).await {
            Ok(()) | Err(UpstreamError::Store(StoreError::NotFound { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn release_of(ip: IpAddr) -> libcalico::ipam::ReleaseRequest {
    libcalico::ipam::ReleaseRequest {
        ip,
        handle: None,
        sequence: None,
    }
}
