//! GC: releases the addresses of containers that ran on this node and that the runtime no longer
//! lists.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{Block, HandleId, ReleaseRequest};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store};

use super::release::{Part, Release, ReleaseStep, handle_parts};
use allocation::error::{IpamError, Result};
use allocation::release::{AddressToRelease, ReleaseInputs};
use os::clock::Clock;

/// Result of a garbage collection.
#[derive(Debug, Default)]
pub struct GcResult {
    /// The released handles.
    pub released: Vec<HandleId>,
    /// The handles that could not be released, with the errors.
    pub failed: Vec<(HandleId, IpamError)>,
}

/// Addresses of containers that the runtime no longer lists.
#[derive(Debug, Default)]
pub struct LeakedAddresses {
    node: String,
    leaks: BTreeMap<HandleId, Leak>,
    of_other_networks: BTreeSet<(String, IpAddr)>,
    /// Blocks that cannot be read, so the owners of their addresses are unknown.
    unreadable: Vec<Cidr>,
}

/// The leaked addresses of one handle.
#[derive(Debug)]
pub struct Leak {
    container: String,
    leaving: Vec<AddressToRelease>,
    requests: Vec<ReleaseRequest>,
}

/// Releases the addresses that [`leaked`] finds in all blocks.
pub async fn gc<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    network: &str,
    node: &str,
    valid: &BTreeSet<String>,
) -> Result<GcResult> {
    let blocks = store.list::<Block>(&None).await?;
    Ok(leaked(&blocks, network, node, valid)
        .release(store, clock, valid)
        .await)
}

/// Returns the addresses in `blocks` under handles of `network` on `node` whose container is not in
/// `valid`.
///
/// A handle whose container ID contains a dot is skipped. It may belong to another network, or to a
/// VMI, which outlives its container.
pub fn leaked(
    blocks: &[Entry<Block>],
    network: &str,
    node: &str,
    valid: &BTreeSet<String>,
) -> LeakedAddresses {
    let mut leaks = BTreeMap::<HandleId, Leak>::new();
    let mut of_other_networks = BTreeSet::new();
    for (block, held) in blocks
        .iter()
        .flat_map(|block| block.value.allocated().map(|held| (block.key, held)))
    {
        let attribute = |key: &str| held.attributes()?.get(key).cloned();
        let Some(handle) = held
            .handle()
            .filter(|_| attribute("node").is_some_and(|on| on == node))
        else {
            continue;
        };
        let container = handle
            .as_str()
            .strip_prefix(network)
            .and_then(|rest| rest.strip_prefix('.'));
        let Some(container) = container.filter(|id| !id.contains('.')) else {
            // The handle of a VMI ends in a name that a tenant can choose.
            let of_container = Some(&handle).filter(|handle| !handle.may_be_of_vmi());
            let of_container = of_container.and_then(|handle| handle.as_str().rsplit_once('.'));
            of_other_networks
                .extend(of_container.map(|(_, container)| (container.to_owned(), held.ip)));
            continue;
        };
        if valid.contains(container) {
            continue;
        }
        let empty = || Leak {
            container: container.to_owned(),
            leaving: Vec::new(),
            requests: Vec::new(),
        };
        let leak = leaks.entry(handle.clone()).or_insert_with(empty);
        leak.leaving.push(AddressToRelease::new(block, &held));
        leak.requests.push(ReleaseRequest {
            ip: held.ip,
            handle: Some(handle),
            sequence: held.sequence,
        });
    }
    LeakedAddresses {
        node: node.to_owned(),
        leaks,
        of_other_networks,
        unreadable: Vec::new(),
    }
}

impl LeakedAddresses {
    /// Drops the leaked addresses, because another IPAM plugin manages the addresses of this
    /// network.
    pub fn without_leaks(self) -> Self {
        LeakedAddresses {
            leaks: BTreeMap::new(),
            ..self
        }
    }

    /// Records blocks that cannot be read.
    #[must_use]
    pub fn beside_unreadable(self, unreadable: Vec<Cidr>) -> Self {
        LeakedAddresses { unreadable, ..self }
    }

    /// Returns true if the container may have the address in another network.
    pub fn may_be_held_elsewhere(&self, container: &str, ip: IpAddr) -> bool {
        self.of_other_networks.contains(&(container.to_owned(), ip))
            || self.unreadable.iter().any(|block| block.contains(ip))
    }

    /// Returns true if the container may have any address in another network.
    pub fn may_hold_elsewhere(&self, container: &str) -> bool {
        !self.unreadable.is_empty()
            || self
                .of_other_networks
                .iter()
                .any(|(holder, _)| holder == container)
    }

    /// Returns the number of containers with leaked addresses.
    pub fn containers(&self) -> usize {
        self.leaks.len()
    }

    /// Returns true if the handle is one of the leaked handles.
    pub fn contains_handle(&self, handle: &HandleId) -> bool {
        self.leaks.contains_key(handle)
    }

    /// Returns namespace and name of the pods that the leaked addresses were allocated for.
    pub fn pods(&self) -> impl Iterator<Item = &(String, String)> {
        self.held()
            .filter_map(|(_, address)| address.pod.as_ref())
            .collect::<BTreeSet<_>>()
            .into_iter()
    }

    /// Returns the leaked addresses, each with the ID of its container.
    pub fn held(&self) -> impl Iterator<Item = (&str, &AddressToRelease)> {
        self.leaks.values().flat_map(|leak| {
            leak.leaving
                .iter()
                .map(|address| (leak.container.as_str(), address))
        })
    }

    /// Returns the leaked addresses of each handle, except those of the containers in `keep`.
    pub fn by_handle(self, keep: &BTreeSet<String>) -> impl Iterator<Item = (HandleId, Leak)> {
        self.leaks
            .into_iter()
            .filter(|(_, leak)| !keep.contains(&leak.container))
    }

    /// Releases the leaked addresses, which no endpoint lists, except those of the containers in
    /// `keep`.
    pub async fn release<S: Store, C: Clock>(
        self,
        store: &S,
        clock: &C,
        keep: &BTreeSet<String>,
    ) -> GcResult {
        let mut outcome = GcResult::default();
        let node = self.node.clone();
        for (handle, leak) in self.by_handle(keep) {
            let released = async {
                let begun = leak.release(store, clock, &node, &handle).await?;
                begun.complete_without_endpoints().await
            };
            match released.await {
                Ok(_) => outcome.released.push(handle),
                Err(error) => outcome.failed.push((handle, error)),
            }
        }
        outcome
    }
}

impl Leak {
    /// Returns the ID of the container.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// Begins the release of the handle of a container on `node`, or if the handle object is lost,
    /// of the addresses one by one (IPAM-184). A block that cannot be read keeps its addresses, so
    /// it causes an error, as in DEL.
    pub async fn release<'a, S: Store, C: Clock>(
        self,
        store: &'a S,
        clock: &'a C,
        node: &str,
        handle: &HandleId,
    ) -> Result<ReleaseStep<'a, S, C>> {
        let inputs = ReleaseInputs::read(store, std::slice::from_ref(handle)).await?;
        let parts = if inputs.is_empty() {
            vec![Part::Single(self.leaving, self.requests)]
        } else {
            handle_parts(clock, inputs, None, node)
        };
        Release::new(store, clock, parts).read_next().await
    }
}
