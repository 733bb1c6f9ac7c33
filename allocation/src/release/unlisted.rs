//! The addresses that a release is about to free, before and after their removal from endpoints.

use std::net::IpAddr;

use libcalico::ipam::{Allocation, Block, Handle, HandleId, ReleaseRequest};
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};

use crate::reads::{all_pools, blocks_of, read_blocks};

/// An address that a release is about to free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressToRelease {
    /// The address.
    pub ip: IpAddr,
    /// Namespace and name of the pod in the allocation's attributes; `None` if these name no pod.
    pub pod: Option<(String, String)>,
    /// The handle of the allocation, if it has one.
    pub handle: Option<HandleId>,
    /// The block of the address, if the caller has read it.
    pub block: Option<Cidr>,
}

impl AddressToRelease {
    /// Returns the address of `allocation` in the block with the range `block`.
    pub fn new(block: Cidr, allocation: &Allocation<'_>) -> Self {
        let attribute = |key: &str| {
            allocation
                .attributes()?
                .get(key)
                .filter(|text| !text.is_empty())
                .cloned()
        };
        let pod = attribute("namespace").zip(attribute("pod"));
        AddressToRelease {
            ip: allocation.ip,
            pod,
            handle: allocation.handle(),
            block: Some(block),
        }
    }
}

/// Returns those of `leaving` that are still allocated under their handles, or that have no handle.
pub async fn still_allocated<S: Store>(
    store: &S,
    leaving: &[AddressToRelease],
) -> Result<Vec<AddressToRelease>, StoreError> {
    let blocks_read = leaving.iter().filter_map(|address| address.block).collect();
    let unread = leaving
        .iter()
        .filter(|address| address.block.is_none() && address.handle.is_some());
    let unread: Vec<IpAddr> = unread.map(|address| address.ip).collect();
    let pools = if unread.is_empty() {
        Vec::new()
    } else {
        all_pools(store).await?
    };
    let blocks = blocks_of(store, &pools, &unread, blocks_read).await?;
    let is_held = |address: &&AddressToRelease| {
        let mut found = blocks
            .iter()
            .filter_map(|block| block.value.allocation(address.ip));
        address.handle.is_none()
            || found.any(|held| !held.is_cooling() && held.handle() == address.handle)
    };
    Ok(leaving.iter().filter(is_held).cloned().collect())
}

/// Reads a handle's blocks and returns the addresses that `requests` selects from them.
pub async fn addresses_to_release<S: Store>(
    store: &S,
    handle: &Handle,
    requests: impl Fn(&Block) -> Vec<ReleaseRequest>,
) -> Result<Vec<AddressToRelease>, StoreError> {
    let mut leaving = Vec::new();
    for block in read_blocks(store, handle.block.keys().copied().collect()).await? {
        let requests = requests(&block.value);
        let held = requests
            .iter()
            .filter_map(|request| block.value.allocation(request.ip));
        leaving.extend(held.map(|held| AddressToRelease::new(block.key, &held)));
    }
    Ok(leaving)
}

/// Addresses that no endpoint lists any more. A release of a container frees these alone, because
/// another container may get an address as soon as it is free.
#[derive(Debug)]
pub struct Unlisted(Vec<AddressToRelease>);

impl Unlisted {
    /// Creates the value after these addresses were removed from the endpoints, or for a caller
    /// without endpoints.
    pub fn new(addresses: &[AddressToRelease]) -> Self {
        Unlisted(addresses.to_vec())
    }

    /// Returns true if this is one of the addresses.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|address| address.ip == ip)
    }

    /// Returns requests to release the addresses under their handles.
    pub fn requests(&self) -> Vec<ReleaseRequest> {
        let request = |address: &AddressToRelease| ReleaseRequest {
            ip: address.ip,
            handle: address.handle.clone(),
            sequence: None,
        };
        self.0.iter().map(request).collect()
    }
}
