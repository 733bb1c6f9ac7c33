use std::net::IpAddr;

use libcalico::api::AllowedUse;
use libcalico::ipam::{AffinityOwner, AffinityState, Block};
use libcalico::net::IpVersion;
use libcalico::store::{Kind, Write};
use os::clock::Clock;

use super::assign_address;
use crate::alloc::Assignment;
use crate::alloc::request::{AssignRequest, Namespace, workload_attributes};
use crate::alloc::snapshot::{MissingReads, Snapshot};
use crate::error::{IpamError, cni_error};
use crate::testing::{Cluster, Fault, MemoryStore, assert_consistent, cidr, held};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

async fn assign_as(
    cluster: &Cluster,
    request: &AssignRequest,
    address: &str,
) -> Result<Assignment, IpamError> {
    let inputs = cluster.inputs(request).await?;
    assign_address(&cluster.store, &cluster.clock, request, ip(address), inputs).await
}

async fn ask(
    cluster: &Cluster,
    node: &str,
    handle: &str,
    address: &str,
) -> Result<Assignment, IpamError> {
    assign_as(cluster, &cluster.request(node, handle), address).await
}

// Upstream's recorded data (golden: ipam-alone, args-ip).
#[tokio::test]
async fn requested_address_claims_its_block_and_is_returned_alone() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.pool("pool6", "fd00:65::/64", 122);
    for (address, block, prefix) in [
        ("10.65.9.9", "10.65.9.0/26", 32),
        ("fd00:65::a:9", "fd00:65::a:0/122", 128),
    ] {
        let assigned = ask(&cluster, "node1", &format!("net.{prefix}"), address)
            .await
            .unwrap();
        assert_eq!(
            assigned,
            Assignment {
                ip: ip(address),
                prefix
            }
        );
        assert_eq!(
            cluster.affinity("node1", block),
            Some(AffinityState::Confirmed)
        );
    }
    assert_eq!(
        cluster.block("10.65.9.0/26").unwrap().unallocated[8..10],
        [8, 10]
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn allocated_address_is_rejected_with_its_owner() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    ask(&cluster, "node1", "net.a", "10.65.1.9").await.unwrap();
    for handle in ["net.b", "net.a"] {
        let error = ask(&cluster, "node2", handle, "10.65.1.9")
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "resource already exists: 10.65.1.9 with error: Address already assigned in block"
        );
        let IpamError::AlreadyAssigned {
            holder: Some(holder),
            ..
        } = error
        else {
            panic!()
        };
        assert_eq!(
            holder.for_caller,
            "handle net.a, node node1, since 2026-08-22 01:02:03.1234 +0000 UTC"
        );
    }
    assert_eq!(cluster.handle("net.b"), None);
    cluster.release("net.a").await.unwrap();
    ask(&cluster, "node2", "net.b", "10.65.1.9").await.unwrap();
}

#[tokio::test]
async fn error_names_the_owner_in_the_namespace_of_the_request_only() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    let owned_by = |namespace: &str, handle: &str| {
        let mut request = cluster.request("node1", handle);
        request.attributes =
            workload_attributes("node1", Some((namespace, "web")), cluster.clock.now());
        request.namespace = Some(Namespace {
            name: namespace.into(),
            ..Namespace::default()
        });
        request
    };
    assign_as(&cluster, &owned_by("shop", "net.a"), "10.65.1.9")
        .await
        .unwrap();
    for (namespace, told) in [
        ("shop", "handle net.a, pod shop/web, node node1, since "),
        ("bank", "another namespace"),
    ] {
        let error = assign_as(&cluster, &owned_by(namespace, "net.b"), "10.65.1.9")
            .await
            .unwrap_err();
        let details = cni_error(&error).details;
        assert!(
            details.starts_with(&format!("it is held by {told}")),
            "{details}"
        );
        let IpamError::AlreadyAssigned {
            holder: Some(holder),
            ..
        } = error
        else {
            panic!()
        };
        assert!(holder.whole.contains("pod shop/web"), "{holder:?}");
    }
}

#[tokio::test]
async fn cooling_address_is_not_assigned_until_the_cooldown_ends() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.configure(|config| config.ip_cooldown_seconds = 30);
    ask(&cluster, "node1", "net.a", "10.65.1.9").await.unwrap();
    cluster.release("net.a").await.unwrap();
    let error = ask(&cluster, "node1", "net.b", "10.65.1.9")
        .await
        .unwrap_err();
    let IpamError::AlreadyAssigned {
        holder: Some(held), ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(held.for_caller.contains("cooling down"), "{error:?}");
    cluster.clock.advance(std::time::Duration::from_secs(32));
    ask(&cluster, "node1", "net.b", "10.65.1.9").await.unwrap();
}

#[tokio::test]
async fn requested_address_must_be_in_an_enabled_pool_for_its_use() {
    let cluster = Cluster::new();
    cluster.pool_with("off", "10.1.0.0/24", 26, |spec| spec.disabled = true);
    cluster.pool("small", "10.3.0.0/28", 26);
    cluster.pool_with("tunnels", "10.2.0.0/24", 26, |spec| {
        spec.allowed_uses = vec![AllowedUse::Tunnel.into()]
    });
    let error = ask(&cluster, "node1", "net.a", "192.0.2.1")
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "The provided IP address is not in a configured pool\n"
    );
    let error = ask(&cluster, "node1", "net.a", "10.1.0.1")
        .await
        .unwrap_err();
    assert_eq!(
        error.refused_pools()[0].to_string(),
        "pool off (10.1.0.0/24): it is disabled"
    );
    let error = ask(&cluster, "node1", "net.a", "10.3.0.1")
        .await
        .unwrap_err();
    assert_eq!(
        error.refused_pools()[0].to_string(),
        "pool small (10.3.0.0/28): its blockSize 26 is outside 28..32"
    );
    let error = ask(&cluster, "node1", "net.a", "10.2.0.1")
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "IP address 10.2.0.1 is in IP pool \"tunnels\", which is not allowed for use \"Workload\" \
         (allowedUses: [Tunnel])"
    );
}

#[tokio::test]
async fn requested_address_ignores_selectors_reservations_and_limits() {
    let cluster = Cluster::new();
    cluster.pool_with("pool4", "10.65.0.0/16", 26, |spec| {
        spec.node_selector = "!all()".into();
        spec.assignment_mode = Some(libcalico::api::AssignmentMode::Manual.into());
    });
    cluster.reserve(&["10.65.1.0/24"]);
    cluster.configure(|config| {
        config.auto_allocate_blocks = false;
        config.max_blocks_per_host = 1;
    });
    ask(&cluster, "node1", "net.a", "10.65.1.9").await.unwrap();
    ask(&cluster, "node1", "net.b", "10.65.1.200")
        .await
        .unwrap();
    ask(&cluster, "node2", "net.c", "10.65.1.10").await.unwrap();
    assert_eq!(cluster.affinity("node2", "10.65.1.0/26"), None, "borrowed");
    cluster.configure(|config| config.strict_affinity = true);
    let error = ask(&cluster, "node2", "net.d", "10.65.1.11")
        .await
        .unwrap_err();
    assert!(matches!(error, IpamError::Block(_)), "{error}");
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn requested_address_claims_no_block_that_overlaps_another_size() {
    for (before, after) in [(28, 26), (26, 28)] {
        let cluster = Cluster::new();
        cluster.pool("pool4", "10.65.0.0/16", before);
        ask(&cluster, "node1", "net.a", "10.65.1.9").await.unwrap();
        cluster.pool("pool4", "10.65.0.0/16", after);
        for node in ["node1", "node2"] {
            let error = ask(&cluster, node, "net.b", "10.65.1.9").await.unwrap_err();
            assert!(
                matches!(error, IpamError::AlreadyAssigned { .. }),
                "{error}"
            );
            // In the smaller block of the former size no such address exists.
            let outcome = ask(&cluster, node, &format!("net.{node}"), "10.65.1.20").await;
            let is_overlap = matches!(outcome, Err(IpamError::OverlappingBlock { .. }));
            assert_eq!(is_overlap, before == 28, "{outcome:?}");
            cluster.release(&format!("net.{node}")).await.unwrap();
        }
        ask(&cluster, "node1", "net.b", "10.65.2.9").await.unwrap();
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn requested_address_is_taken_from_a_block_of_a_former_size() {
    for (before, after, block) in [(28, 26, "10.65.1.0/28"), (26, 28, "10.65.1.0/26")] {
        for store in [MemoryStore::transactional(), MemoryStore::sequential()] {
            let cluster = Cluster::on(store);
            cluster.pool("pool4", "10.65.0.0/16", before);
            for (handle, address) in [("net.a", "10.65.1.9"), ("net.other", "10.65.1.1")] {
                ask(&cluster, "node1", handle, address).await.unwrap();
            }
            cluster.release("net.a").await.unwrap();
            cluster.pool("pool4", "10.65.0.0/16", after);
            ask(&cluster, "node1", "net.b", "10.65.1.9").await.unwrap();
            assert_eq!(
                cluster.handle("net.b").unwrap().block,
                [(cidr(block), 1)].into()
            );
            ask(&cluster, "node2", "net.c", "10.65.1.10").await.unwrap();
            assert_eq!(cluster.affinity("node2", block), None, "borrowed");
            ask(&cluster, "node1", "net.d", "10.65.1.10")
                .await
                .unwrap_err();
            assert_eq!(cluster.handle("net.d"), None);
            assert_eq!(cluster.store.pairs().list::<Block>(&None).len(), 1);
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

#[tokio::test]
async fn handle_at_its_limit_gets_no_other_requested_address() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    let mut request = cluster.request("node1", "net.vmi");
    request.max_per_handle = 1;
    assign_as(&cluster, &request, "10.65.1.9").await.unwrap();
    assign_as(&cluster, &request, "10.65.1.9").await.unwrap();
    let error = assign_as(&cluster, &request, "10.65.1.10")
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "handle net.vmi already has IP(s) allocated, cannot assign additional IP 10.65.1.10 \
         (maxAllocPerIPVersion=1)"
    );
}

// Upstream increments the handle again after each lost race (IPAM-140).
#[tokio::test]
async fn lost_races_do_not_inflate_the_handle_count() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    ask(&cluster, "node1", "net.first", "10.65.1.1")
        .await
        .unwrap();
    let mut races = 3;
    cluster.store.before_each(move |_, writes, pairs| {
        if let Some(write) = writes
            .and_then(|writes| writes.get(1))
            .filter(|_| races > 0)
        {
            races -= 1;
            pairs.touch(&write.path);
        }
        Fault::None
    });
    ask(&cluster, "node1", "net.a", "10.65.1.9").await.unwrap();
    cluster.store.end_faults();
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn requested_address_in_a_claimed_block_costs_two_reads_and_a_single_write() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    ask(&cluster, "node1", "net.a", "10.65.1.9").await.unwrap();
    assert_eq!(
        cluster.store.take_counts(),
        (4, 2),
        "the claim of a block reads the ranges of all blocks twice"
    );
    ask(&cluster, "node1", "net.b", "10.65.1.10").await.unwrap();
    assert_eq!(cluster.store.take_counts(), (2, 1));
}

/// Shows SEC-10.
#[tokio::test]
async fn restricted_request_respects_namespace_selectors_and_reservations() {
    let cluster = Cluster::new();
    cluster.pool_with("egress", "10.71.0.0/24", 26, |spec| {
        spec.namespace_selector = "team == 'blue'".into()
    });
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.reserve(&["10.65.1.0/30"]);
    let mut request = cluster.request("node1", "net.a");
    let labels = [("team".to_owned(), "red".to_owned())].into();
    request.namespace = Some(Namespace {
        name: "web".into(),
        labels,
    });
    for address in ["10.71.0.9", "10.65.1.1"] {
        assign_as(&cluster, &request, address).await.unwrap();
        cluster.release("net.a").await.unwrap();
    }
    request.restricted = [IpVersion::V4].into();
    for (address, reason) in [
        (
            "10.71.0.9",
            "pool egress (10.71.0.0/24): its namespaceSelector `team == 'blue'` does not match \
             namespace web",
        ),
        ("10.65.1.1", "an IPReservation reserves the address"),
    ] {
        let error = assign_as(&cluster, &request, address).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("IP address {address} is not for this pod: {reason}")
        );
        assert_eq!(cluster.handle("net.a"), None);
    }
    assign_as(&cluster, &request, "10.65.1.4").await.unwrap();
    request
        .namespace
        .as_mut()
        .unwrap()
        .labels
        .insert("team".into(), "blue".into());
    assign_as(&cluster, &request, "10.71.0.9").await.unwrap();
}

/// Each refresh surveys the ranges while it reads the block, and the block is deleted between the
/// two answers.
#[tokio::test]
async fn refresh_while_a_block_is_deleted_leaves_no_range_of_the_block() {
    let cluster = Cluster::on(MemoryStore::sequential());
    cluster.pool("pool4", "10.65.0.0/16", 26);
    let former = cidr("10.65.1.0/28");
    let block = Block::new(
        former,
        &AffinityOwner::Host("node2".into()),
        cluster.clock.now(),
    )
    .unwrap();
    cluster.store.put(&former, &block);
    let request = cluster.request("node1", "net.a");
    let inputs = cluster.inputs(&request).await.unwrap();
    let mut snapshot = Snapshot::new(inputs, request.inputs_query(), cluster.clock.now()).unwrap();
    snapshot
        .read(&cluster.store, &MissingReads::ranges(IpVersion::V4))
        .await
        .unwrap();
    let of_pool = cidr("10.65.1.0/26");
    assert_eq!(snapshot.overlapping(&of_pool), Some(former));
    // The store answers one request after the other, and the read of the block comes before the
    // survey.
    let stored = block.encode().unwrap();
    cluster.store.before_each(move |nth, _, pairs| {
        match nth {
            0 => pairs.remove(&Block::path(&former)),
            _ => pairs.put(Block::path(&former), stored.clone()),
        }
        Fault::None
    });
    snapshot
        .refresh(&cluster.store, cluster.clock.now(), [former])
        .await
        .unwrap();
    assert_eq!(cluster.store.take_counts().0, 2);
    assert_eq!(snapshot.overlapping(&of_pool), None);
}

/// Upstream's plugin on another node claims the block of the address over a block of a former size.
#[tokio::test]
async fn requested_address_in_two_blocks_after_a_lost_race_is_in_neither() {
    for store in [MemoryStore::transactional(), MemoryStore::sequential()] {
        let cluster = Cluster::on(store);
        cluster.pool("pool4", "10.65.0.0/16", 26);
        let owner = AffinityOwner::Host("node2".into());
        let path_of_pool = Block::path(&cidr("10.65.1.0/26"));
        let rivals = ["10.65.1.0/26", "10.65.1.0/28"].map(|range| {
            let block = Block::new(cidr(range), &owner, cluster.clock.now()).unwrap();
            (Block::path(&cidr(range)), block.encode().unwrap())
        });
        cluster.store.before_each(move |_, writes, pairs| {
            let claims = |writes: &[Write]| writes.iter().any(|write| write.path == path_of_pool);
            if writes.is_some_and(claims) && !pairs.paths().contains(&path_of_pool) {
                rivals
                    .iter()
                    .for_each(|(path, block)| pairs.put(path.clone(), block.clone()));
            }
            Fault::None
        });
        let outcome = ask(&cluster, "node1", "net.a", "10.65.1.9").await;
        cluster.store.end_faults();
        assert!(
            matches!(outcome, Err(IpamError::OverlappingBlock { .. })),
            "{outcome:?}"
        );
        assert!(held(&cluster.store.pairs()).is_empty());
        assert_eq!(cluster.handle("net.a"), None);
    }
}

/// The block of the former size was deleted after its address was found in use.
#[tokio::test]
async fn used_address_creates_no_block_of_a_former_size() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    let mut request = cluster.request("node1", "net.a");
    for (block, is_created) in [("10.65.1.0/28", false), ("10.65.1.0/26", true)] {
        request.already_used = Some(block.parse().unwrap());
        let outcome = assign_as(&cluster, &request, "10.65.1.9").await;
        assert_eq!(
            (outcome.is_ok(), cluster.block(block).is_some()),
            (is_created, is_created),
            "{block}"
        );
    }
    assert_consistent(&cluster.store.pairs(), true);
}
