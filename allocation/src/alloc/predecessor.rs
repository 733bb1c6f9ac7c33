//! [`Predecessor`]: the earlier sandbox of a pod that requests addresses, which usually still has
//! them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::ipam::{Block, HandleId, ReleaseRequest};
use libcalico::net::Cidr;
use libcalico::store::Store;

use crate::error::Result;
use crate::reads::{all_pools, blocks_by_name, blocks_by_pool};
use crate::release::release_from_blocks;
use os::clock::Clock;

/// The earlier sandbox of a pod. A tenant can change the pod's annotations that name it. An address
/// is therefore treated as the sandbox's only if its allocation has the sandbox's handle and its
/// attributes name this pod.
///
/// The handle object is not needed here, because a killed call may have lost it, and the pod would
/// then never start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predecessor {
    /// The sandbox's handle.
    pub handle: HandleId,
    /// Addresses that the pod's endpoint lists for the sandbox, which may have others or none.
    pub listed: Vec<IpAddr>,
    namespace: String,
    pod: String,
}

impl Predecessor {
    /// Returns the sandbox that an annotation of the pod names. Returns `None` for an empty text,
    /// and for one with a dot, which might form the handle of a VMI; no known runtime uses a dot in
    /// a sandbox's name.
    pub fn from_annotation(
        network: &str,
        annotated: &str,
        namespace: &str,
        pod: &str,
    ) -> Option<Self> {
        let is_sandbox = !annotated.is_empty() && !annotated.contains('.');
        let handle = is_sandbox.then(|| HandleId::for_container(network, annotated))?;
        let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
        Some(Predecessor {
            handle,
            listed: Vec::new(),
            namespace,
            pod,
        })
    }

    /// Removes an address from the sandbox, in memory and without a cooldown. Returns false if the
    /// sandbox does not have the address for this pod.
    pub(crate) fn release_in(&self, block: &mut Block, ip: IpAddr) -> Result<bool> {
        let requests = self.requests(block, &[ip]);
        Ok(block.free_at_once(&requests)? > 0)
    }

    /// Returns true if the sandbox has the address for this pod.
    pub(crate) fn has(&self, block: &Block, ip: IpAddr) -> bool {
        !self.requests(block, &[ip]).is_empty()
    }

    fn requests(&self, block: &Block, addresses: &[IpAddr]) -> Vec<ReleaseRequest> {
        let mut requests = block.requests_of(&self.handle, |held| {
            held.names_pod(&self.namespace, &self.pod)
        });
        requests.retain(|request| addresses.contains(&request.ip));
        requests
    }

    /// Releases those of `addresses` that the sandbox has for this pod, and returns them.
    ///
    /// # Errors
    /// Returns an error if an address could not be released; others may be released.
    pub async fn release<S: Store, C: Clock>(
        &self,
        store: &S,
        clock: &C,
        addresses: &[IpAddr],
    ) -> Result<Vec<IpAddr>> {
        let blocks = blocks_by_pool(&all_pools(store).await?, addresses);
        let requests = |block: &Block| self.requests(block, addresses);
        let mut outcome = release_from_blocks(store, clock, blocks, requests).await?;
        let is_unlocated = |ip: &&IpAddr| outcome.missing.iter().any(|block| block.contains(**ip));
        let unlocated: BTreeSet<IpAddr> = addresses.iter().filter(is_unlocated).copied().collect();
        let named: BTreeSet<Cidr> = blocks_by_name(store, &unlocated)
            .await?
            .into_values()
            .collect();
        let further = release_from_blocks(store, clock, named, requests).await?;
        outcome.failed.extend(further.failed);
        outcome.released.extend(further.released);
        outcome.into_addresses()
    }
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::Handle;
    use libcalico::store::Kind;

    use super::*;
    use crate::alloc::one_address::assign_address;
    use crate::alloc::request::{AssignRequest, workload_attributes};
    use crate::error::IpamError;
    use crate::release::release_addresses;
    use crate::testing::{Cluster, MemoryStore, assert_consistent, held};

    const ADDRESS: &str = "10.65.1.9";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn clusters() -> [Cluster; 2] {
        let with_pool = |store| {
            let cluster = Cluster::on(store);
            cluster.pool("pool4", "10.65.0.0/16", 26);
            cluster
        };
        [
            with_pool(MemoryStore::sequential()),
            with_pool(MemoryStore::transactional()),
        ]
    }

    fn request(cluster: &Cluster, handle: &str, pod: Option<(&str, &str)>) -> AssignRequest {
        let mut request = cluster.request("node1", handle);
        request.attributes = workload_attributes("node1", pod, cluster.clock.now());
        request
    }

    async fn ask(
        cluster: &Cluster,
        request: &AssignRequest,
        address: &str,
    ) -> Result<(), IpamError> {
        let inputs = cluster.inputs(request).await?;
        assign_address(&cluster.store, &cluster.clock, request, ip(address), inputs)
            .await
            .map(drop)
    }

    fn lose_handle(cluster: &Cluster) {
        cluster
            .store
            .edit(|pairs| pairs.remove(&Handle::path(&HandleId::new("net.c1"))));
    }

    fn earlier() -> Predecessor {
        Predecessor::from_annotation("net", "c1", "ns", "web").unwrap()
    }

    fn next(cluster: &Cluster) -> AssignRequest {
        AssignRequest {
            predecessor: Some(earlier()),
            ..request(cluster, "net.c2", Some(("ns", "web")))
        }
    }

    #[tokio::test]
    async fn address_moves_to_the_next_sandbox_with_a_single_block_write() {
        for cluster in clusters() {
            // A released address would have to cool down.
            cluster.configure(|config| config.ip_cooldown_seconds = 300);
            ask(
                &cluster,
                &request(&cluster, "net.c1", Some(("ns", "web"))),
                ADDRESS,
            )
            .await
            .unwrap();
            let before = cluster.block("10.65.1.0/26").unwrap();
            ask(&cluster, &next(&cluster), ADDRESS).await.unwrap();
            let after = cluster.block("10.65.1.0/26").unwrap();
            assert_eq!(after.sequence_number, before.sequence_number + 1);
            assert_eq!(
                held(&cluster.store.pairs()),
                [(HandleId::new("net.c2"), vec![ip(ADDRESS)])].into()
            );
            assert_consistent(&cluster.store.pairs(), true);
        }
    }

    #[tokio::test]
    async fn handover_to_the_next_sandbox_preserves_cooling_addresses() {
        for cluster in clusters() {
            cluster.configure(|config| config.ip_cooldown_seconds = 300);
            ask(
                &cluster,
                &request(&cluster, "net.c1", Some(("ns", "web"))),
                ADDRESS,
            )
            .await
            .unwrap();
            ask(
                &cluster,
                &request(&cluster, "net.other", Some(("ns", "db"))),
                "10.65.1.10",
            )
            .await
            .unwrap();
            let other = ReleaseRequest {
                ip: ip("10.65.1.10"),
                handle: Some(HandleId::new("net.other")),
                sequence: None,
            };
            release_addresses(&cluster.store, &cluster.clock, &[other])
                .await
                .unwrap();
            ask(&cluster, &next(&cluster), ADDRESS).await.unwrap();
            let block = cluster.block("10.65.1.0/26").unwrap();
            assert!(
                block
                    .allocation(ip("10.65.1.10"))
                    .is_some_and(|held| held.is_cooling())
            );
            assert_eq!(
                held(&cluster.store.pairs()),
                [(HandleId::new("net.c2"), vec![ip(ADDRESS)])].into()
            );
        }
    }

    #[tokio::test]
    async fn address_with_a_lost_handle_moves_to_the_next_sandbox() {
        for cluster in clusters() {
            ask(
                &cluster,
                &request(&cluster, "net.c1", Some(("ns", "web"))),
                ADDRESS,
            )
            .await
            .unwrap();
            lose_handle(&cluster);
            ask(&cluster, &next(&cluster), ADDRESS).await.unwrap();
            assert_eq!(
                held(&cluster.store.pairs()),
                [(HandleId::new("net.c2"), vec![ip(ADDRESS)])].into()
            );
            assert_consistent(&cluster.store.pairs(), true);
        }
    }

    /// Shows SEC-5.
    #[tokio::test]
    async fn address_of_another_pod_or_sandbox_is_not_handed_over() {
        for cluster in clusters() {
            let others = [
                ("net.c1", Some(("ns", "db"))),
                ("net.c1", Some(("other", "web"))),
                ("net.c1", None),
                ("net.c9", Some(("ns", "web"))),
            ];
            for (number, (handle, pod)) in others.into_iter().enumerate() {
                let address = format!("10.65.1.{number}");
                ask(&cluster, &request(&cluster, handle, pod), &address)
                    .await
                    .unwrap();
                let error = ask(&cluster, &next(&cluster), &address).await.unwrap_err();
                assert!(
                    matches!(error, IpamError::AlreadyAssigned { .. }),
                    "{error}"
                );
                assert!(
                    earlier()
                        .release(&cluster.store, &cluster.clock, &[ip(&address)])
                        .await
                        .unwrap()
                        .is_empty()
                );
            }
            assert_eq!(held(&cluster.store.pairs()).len(), 2);
            assert_consistent(&cluster.store.pairs(), true);
        }
    }

    #[tokio::test]
    async fn predecessor_releases_only_the_named_addresses_of_its_pod() {
        for cluster in clusters() {
            for (number, pod) in [("ns", "web"), ("ns", "db"), ("ns", "web")]
                .into_iter()
                .enumerate()
            {
                let request = request(&cluster, "net.c1", Some(pod));
                ask(&cluster, &request, &format!("10.65.1.{number}"))
                    .await
                    .unwrap();
            }
            let named = ["10.65.1.0", "10.65.1.1", "192.0.2.1"].map(ip);
            for expected in [vec![named[0]], vec![]] {
                assert_eq!(
                    earlier()
                        .release(&cluster.store, &cluster.clock, &named)
                        .await
                        .unwrap(),
                    expected
                );
            }
            assert_eq!(
                held(&cluster.store.pairs())[&HandleId::new("net.c1")].len(),
                2
            );
            assert_consistent(&cluster.store.pairs(), true);
            lose_handle(&cluster);
            let left = [ip("10.65.1.2")];
            assert_eq!(
                earlier()
                    .release(&cluster.store, &cluster.clock, &left)
                    .await
                    .unwrap(),
                left
            );
        }
    }

    #[test]
    fn annotation_never_yields_the_handle_of_a_vmi() {
        let named = |text| {
            Predecessor::from_annotation("net", text, "ns", "web")
                .map(|found| found.handle.to_string())
        };
        assert_eq!(
            (named("vmi.prod.db"), named(""), named("c1")),
            (None, None, Some("net.c1".into()))
        );
    }
}
