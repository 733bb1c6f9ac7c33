//! GC: gives back what containers of this network hold on this node that the runtime no longer knows (CNI-216).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{Block, HandleId, ReleaseRequest};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store};

use crate::clock::Clock;
use crate::error::IpamError;
use crate::release::{Leaving, Listings, NoListings, ReleasePrelude, Turn, release_unlisted};
use crate::release_addresses::release_addresses;

/// What was collected.
#[derive(Debug, Default)]
pub struct Collected {
    /// Handles released.
    pub released: Vec<HandleId>,
    /// Handles that could not be, and why.
    pub failed: Vec<(HandleId, IpamError)>,
}

/// What containers hold that the runtime no longer knows.
#[derive(Debug, Default)]
pub struct Leaked {
    node: String,
    leaks: BTreeMap<HandleId, Leak>,
    /// Containers, each with an address that it holds in another network.
    of_other_networks: BTreeSet<(String, IpAddr)>,
    /// Blocks that cannot be read: nobody knows for whom they hold addresses.
    unreadable: Vec<Cidr>,
}

#[derive(Debug)]
struct Leak {
    container: String,
    leaving: Vec<Leaving>,
    requests: Vec<ReleaseRequest>,
}

/// Releases the handles of `network` on `node` whose container is not in `valid`.
pub async fn gc<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    network: &str,
    node: &str,
    valid: &BTreeSet<String>,
) -> Result<Collected, IpamError> {
    let blocks = store.list::<Block>(&None).await?;
    Ok(leaked(&blocks, network, node, valid).release(store, clock, valid, |_| NoListings).await)
}

/// What handles of `network` on `node` hold in `blocks` whose container is not in `valid`.
///
/// A container id with a dot in it is left alone: such a handle may as well be of a network whose name begins like this
/// one, or be a virtual machine's, which outlives its container.
pub fn leaked(blocks: &[Entry<Block>], network: &str, node: &str, valid: &BTreeSet<String>) -> Leaked {
    let mut leaks = BTreeMap::<HandleId, Leak>::new();
    let mut of_other_networks = BTreeSet::new();
    for (block, held) in blocks.iter().flat_map(|block| block.value.allocated().map(|held| (block.key, held))) {
        let noted = |key: &str| held.attributes()?.get(key).cloned();
        let Some(handle) = held.handle().filter(|_| noted("node").is_some_and(|on| on == node)) else { continue };
        let container = handle.as_str().strip_prefix(network).and_then(|rest| rest.strip_prefix('.'));
        let Some(container) = container.filter(|id| !id.contains('.')) else {
            // The handle of a virtual machine ends in a name that a tenant chooses.
            let of_container = Some(&handle).filter(|handle| !handle.may_be_of_machine());
            let of_container = of_container.and_then(|handle| handle.as_str().rsplit_once('.'));
            of_other_networks.extend(of_container.map(|(_, container)| (container.to_owned(), held.ip)));
            continue;
        };
        if valid.contains(container) {
            continue;
        }
        let leak = leaks.entry(handle.clone()).or_insert_with(|| Leak {
            container: container.to_owned(),
            leaving: Vec::new(),
            requests: Vec::new(),
        });
        leak.leaving.push(Leaving::of(block, &held));
        leak.requests.push(ReleaseRequest { ip: held.ip, handle: Some(handle), sequence: held.sequence });
    }
    Leaked { node: node.to_owned(), leaks, of_other_networks, unreadable: Vec::new() }
}

impl Leaked {
    /// Leaves what leaked to another IPAM plugin, which keeps the addresses of this network.
    pub fn without_leaks(self) -> Self {
        Leaked { leaks: BTreeMap::new(), ..self }
    }

    /// Takes notice of blocks that cannot be read.
    #[must_use]
    pub fn beside_unreadable(self, unreadable: Vec<Cidr>) -> Self {
        Leaked { unreadable, ..self }
    }

    /// Returns true if the container holds the address in another network, or if its block cannot be read.
    pub fn may_be_held_elsewhere(&self, container: &str, ip: IpAddr) -> bool {
        self.of_other_networks.contains(&(container.to_owned(), ip))
            || self.unreadable.iter().any(|block| block.contains(ip))
    }

    /// Returns true if the container holds any address in another network, or may do so as a block cannot be read.
    pub fn may_hold_elsewhere(&self, container: &str) -> bool {
        !self.unreadable.is_empty() || self.of_other_networks.iter().any(|(holder, _)| holder == container)
    }

    /// How many containers hold it.
    pub fn containers(&self) -> usize {
        self.leaks.len()
    }

    /// Whether this handle is one of theirs.
    pub fn is_of(&self, handle: &HandleId) -> bool {
        self.leaks.contains_key(handle)
    }

    /// The pods that it is noted for: namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = &(String, String)> {
        self.held().filter_map(|(_, address)| address.pod.as_ref()).collect::<BTreeSet<_>>().into_iter()
    }

    /// The addresses, each with the id of the container that holds it and the pod that it is noted for.
    pub fn held(&self) -> impl Iterator<Item = (&str, &Leaving)> {
        self.leaks.values().flat_map(|leak| leak.leaving.iter().map(|address| (leak.container.as_str(), address)))
    }

    /// Gives it back, but for that of containers in `keep`, after the listings of each container gave it up.
    pub async fn release<S: Store, C: Clock, L: Listings>(
        self,
        store: &S,
        clock: &C,
        keep: &BTreeSet<String>,
        listings_of: impl Fn(&str) -> L,
    ) -> Collected {
        let mut outcome = Collected::default();
        for (handle, leak) in self.leaks.into_iter().filter(|(_, leak)| !keep.contains(&leak.container)) {
            let listings = listings_of(&leak.container);
            match collect(store, clock, &self.node, &handle, &leak, &listings).await {
                Ok(()) => outcome.released.push(handle),
                Err(error) => outcome.failed.push((handle, error)),
            }
        }
        outcome
    }
}

/// Releases by the handle, which is exact; addresses whose handle is lost one by one, unless they changed hands since
/// they were seen (IPAM-184, W2).
async fn collect<S: Store, C: Clock, L: Listings>(
    store: &S,
    clock: &C,
    node: &str,
    handle: &HandleId,
    leak: &Leak,
    listings: &L,
) -> Result<(), IpamError> {
    let prelude = ReleasePrelude::read(store, std::slice::from_ref(handle)).await?;
    if prelude.is_empty() {
        listings.unlist(&leak.leaving).await?;
        return release_addresses(store, clock, &leak.requests).await.map(|_| ());
    }
    release_unlisted(store, clock, prelude.on_node(node), listings, &mut Turn::default()).await.map(|_| ())
}
