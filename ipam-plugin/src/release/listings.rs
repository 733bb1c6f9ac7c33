//! [`Listings`]: the endpoints that list addresses. An address becomes free only after its endpoint gave it up; otherwise
//! two endpoints would list the address as soon as another container gets it.

use std::future::Future;
use std::net::IpAddr;

use libcalico::ipam::{Allocation, Block, Handle, ReleaseRequest};
use libcalico::store::{Store, StoreError};

use crate::error::IpamError;
use crate::read_blocks::read_blocks;

/// An address that a release is about to give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    /// The address.
    pub ip: IpAddr,
    /// Namespace and name of the pod that the allocation's attributes name; `None` outside Kubernetes.
    pub pod: Option<(String, String)>,
}

impl Leaving {
    pub(crate) fn of(allocation: &Allocation<'_>) -> Self {
        let noted = |key: &str| allocation.attributes()?.get(key).filter(|text| !text.is_empty()).cloned();
        Leaving { ip: allocation.ip, pod: noted("namespace").zip(noted("pod")) }
    }
}

/// Returns the addresses that `requests` names of a handle's blocks, as these are now.
pub async fn leaving_of<S: Store>(
    store: &S,
    handle: &Handle,
    requests: impl Fn(&Block) -> Vec<ReleaseRequest>,
) -> Result<Vec<Leaving>, StoreError> {
    let mut leaving = Vec::new();
    for block in read_blocks(store, handle.block.keys().copied().collect()).await? {
        let named = requests(&block.value);
        leaving.extend(
            named.iter().filter_map(|request| block.value.allocation(request.ip)).map(|held| Leaving::of(&held)),
        );
    }
    Ok(leaving)
}

/// Takes addresses off endpoints. A release asks before each write that makes addresses free.
pub trait Listings: Sync {
    /// Returns when no endpoint lists any of the addresses. After an error nothing is given back.
    fn unlist(&self, leaving: &[Leaving]) -> impl Future<Output = Result<(), IpamError>> + Send;
}

/// The listings of a caller that keeps no endpoints, or whose endpoints are gone already.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoListings;

impl Listings for NoListings {
    async fn unlist(&self, _leaving: &[Leaving]) -> Result<(), IpamError> {
        Ok(())
    }
}
