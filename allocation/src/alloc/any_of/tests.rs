mod former_sizes;
mod races;

use libcalico::api::AllowedUse;
use libcalico::ipam::{AffinityState, HandleId, Obstacle};
use netconf::Code;

use super::*;
use crate::alloc::one_address::assign_address;
use crate::alloc::predecessor::Predecessor;
use crate::alloc::request::{Namespace, workload_attributes};
use crate::error::cni_error;
use crate::testing::{Cluster, MemoryStore, assert_consistent, cidr, held};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn list(entries: &[&str]) -> AnyOf {
    AnyOf::parse(
        &entries
            .iter()
            .map(|entry| (*entry).to_owned())
            .collect::<Vec<_>>(),
    )
    .unwrap()
}

fn clusters() -> [Cluster; 2] {
    [MemoryStore::sequential(), MemoryStore::transactional()].map(|store| {
        let cluster = Cluster::on(store);
        cluster.pool("pool4", "10.65.0.0/16", 26);
        cluster.pool("pool6", "fd00:65::/64", 122);
        cluster
    })
}

fn request(cluster: &Cluster, node: &str, handle: &str, pod: &str) -> AssignRequest {
    let mut request = cluster.request(node, handle);
    request.attributes = workload_attributes(node, Some(("shop", pod)), cluster.clock.now());
    request.namespace = Some(Namespace {
        name: "shop".into(),
        ..Namespace::default()
    });
    request.all_or_nothing = true;
    request
}

async fn assign_as(
    cluster: &Cluster,
    request: &AssignRequest,
    list: &AnyOf,
) -> Result<Vec<IpAddr>> {
    let inputs = cluster.inputs(request).await?;
    let assigned = assign_listed(&cluster.store, &cluster.clock, request, list, inputs).await?;
    match assigned.shortfalls.into_iter().next() {
        Some(shortfall) => Err(shortfall.into()),
        None => Ok(assigned
            .addresses
            .into_iter()
            .map(|address| address.ip)
            .collect()),
    }
}

fn told(error: &IpamError) -> (Code, String, String) {
    let error = cni_error(error);
    (error.code, error.msg, error.details)
}

#[tokio::test]
async fn list_of_n_serves_exactly_n_pods() {
    let addresses = ["10.65.3.3", "10.65.9.8/31", "10.65.3.1"];
    for cluster in clusters() {
        let list = list(&addresses);
        for (number, expected) in ["10.65.3.3", "10.65.9.8", "10.65.9.9", "10.65.3.1"]
            .into_iter()
            .enumerate()
        {
            let node = format!("node{}", 1 + number % 2);
            let request = request(
                &cluster,
                &node,
                &format!("net.{number}"),
                &format!("web-{number}"),
            );
            assert_eq!(
                assign_as(&cluster, &request, &list).await.unwrap(),
                [ip(expected)]
            );
        }
        let late = request(&cluster, "node1", "net.late", "web-late");
        let error = assign_as(&cluster, &late, &list).await.unwrap_err();
        let (code, msg, details) = told(&error);
        assert_eq!(code, Code::TRY_AGAIN);
        assert_eq!(
            msg,
            "no address of the annotation \"cni.projectcalico.org/ipAddrsAnyOf\" is free"
        );
        assert!(details.starts_with("10.65.3.3 is held by "), "{details}");
        assert!(
            details.contains("pod shop/web-0") && details.contains("pod shop/web-3"),
            "{details}"
        );
        assert_eq!(cluster.handle("net.late"), None);
        cluster.release("net.2").await.unwrap();
        assert_eq!(
            assign_as(&cluster, &late, &list).await.unwrap(),
            [ip("10.65.9.9")]
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

/// Each set of occupied addresses, in two blocks.
#[tokio::test]
async fn first_free_address_in_the_order_of_the_list_wins() {
    let order = ["10.65.9.9", "10.65.3.3", "10.65.9.2", "10.65.3.1"];
    for occupied in 0..1 << order.len() {
        for cluster in clusters() {
            let is_occupied = |number: &usize| (occupied >> number) & 1 == 1;
            for number in (0..order.len()).filter(is_occupied) {
                let holder = request(&cluster, "node2", &format!("net.{number}"), "other");
                let inputs = cluster.inputs(&holder).await.unwrap();
                assign_address(
                    &cluster.store,
                    &cluster.clock,
                    &holder,
                    ip(order[number]),
                    inputs,
                )
                .await
                .unwrap();
            }
            let own = request(&cluster, "node1", "net.own", "web-0");
            let outcome = assign_as(&cluster, &own, &list(&order)).await;
            let expected = (0..order.len())
                .find(|number| !is_occupied(number))
                .map(|number| vec![ip(order[number])]);
            assert_eq!(outcome.ok(), expected, "occupied: {occupied:04b}");
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

#[tokio::test]
async fn listed_address_claims_its_block_and_other_families_are_assigned_as_usual() {
    for cluster in clusters() {
        let mut request = request(&cluster, "node1", "net.a", "web-0");
        request.num6 = 1;
        let found = assign_as(&cluster, &request, &list(&["fd00:65::a:8/125"]))
            .await
            .unwrap();
        assert_eq!(found[1], ip("fd00:65::a:8"));
        assert!(cidr("10.65.0.0/16").contains(found[0]), "{found:?}");
        assert_eq!(
            cluster.affinity("node1", "fd00:65::a:0/122"),
            Some(AffinityState::Confirmed)
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn failure_of_one_family_releases_the_other() {
    for cluster in clusters() {
        let both = list(&["10.65.3.3", "fd00:65::3"]);
        let mut first = request(&cluster, "node1", "net.a", "web-0");
        first.num6 = 1;
        assert_eq!(
            assign_as(&cluster, &first, &both).await.unwrap(),
            [ip("10.65.3.3"), ip("fd00:65::3")]
        );
        let before = held(&cluster.store.pairs());
        let mut second = request(&cluster, "node1", "net.b", "web-1");
        second.num6 = 1;
        let error = assign_as(&cluster, &second, &list(&["10.65.3.4", "fd00:65::3"]))
            .await
            .unwrap_err();
        assert!(matches!(error, IpamError::NoneFree { .. }), "{error}");
        second.pools6 = vec!["fd00:99::/64".into()];
        let error = assign_as(&cluster, &second, &list(&["10.65.3.4"]))
            .await
            .unwrap_err();
        assert!(matches!(error, IpamError::Pools(_)), "{error}");
        assert_eq!(held(&cluster.store.pairs()), before);
        assert_eq!(cluster.handle("net.b"), None);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

/// An address that is assigned and released again would be cooling down, once for each repetition
/// of the ADD.
#[tokio::test]
async fn request_that_cannot_be_served_takes_no_address_of_the_list() {
    for cluster in clusters() {
        cluster.configure(|config| config.ip_cooldown_seconds = 300);
        cluster.pool("small6", "fd00:77::/126", 126);
        let small6 = vec!["fd00:77::/126".to_owned()];
        let other = request(&cluster, "node1", "net.other", "other");
        let other = AssignRequest {
            num4: 0,
            num6: 4,
            pools6: small6.clone(),
            ..other
        };
        assert_eq!(cluster.assign(&other).await.unwrap().addresses.len(), 4);
        let mut first = request(&cluster, "node1", "net.a", "web-0");
        first.num6 = 1;
        assign_as(&cluster, &first, &list(&["10.65.3.3", "fd00:65::3"]))
            .await
            .unwrap();
        let mut second = request(&cluster, "node1", "net.b", "web-1");
        second.num6 = 1;
        cluster.store.take_counts();
        let error = assign_as(&cluster, &second, &list(&["10.65.3.4", "fd00:65::3"]))
            .await
            .unwrap_err();
        assert!(matches!(error, IpamError::NoneFree { .. }), "{error}");
        assert_eq!(cluster.store.take_counts().1, 0, "writes");
        second.pools6 = small6;
        let error = assign_as(&cluster, &second, &list(&["10.65.3.4"]))
            .await
            .unwrap_err();
        assert!(matches!(error, IpamError::Shortfall(_)), "{error}");
        second.num6 = 0;
        assert_eq!(
            assign_as(&cluster, &second, &list(&["10.65.3.4"]))
                .await
                .unwrap(),
            [ip("10.65.3.4")]
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn restart_keeps_the_address_of_the_earlier_sandbox() {
    // The endpoint names the address, or its annotation was lost and a read of the list finds the
    // address.
    for listed in [vec![ip("10.65.9.9")], vec![]] {
        for cluster in clusters() {
            cluster.configure(|config| config.ip_cooldown_seconds = 300);
            let list = list(&["10.65.3.3", "10.65.9.9"]);
            let other = request(&cluster, "node1", "net.other", "web-0");
            assert_eq!(
                assign_as(&cluster, &other, &list).await.unwrap(),
                [ip("10.65.3.3")]
            );
            let first = request(&cluster, "node1", "net.c1", "web-1");
            assert_eq!(
                assign_as(&cluster, &first, &list).await.unwrap(),
                [ip("10.65.9.9")]
            );
            cluster.release("net.other").await.unwrap();
            let mut next = request(&cluster, "node1", "net.c2", "web-1");
            let mut sandbox = Predecessor::from_annotation("net", "c1", "shop", "web-1").unwrap();
            sandbox.listed.clone_from(&listed);
            next.predecessor = Some(sandbox);
            assert_eq!(
                assign_as(&cluster, &next, &list).await.unwrap(),
                [ip("10.65.9.9")]
            );
            let expected = [(HandleId::new("net.c2"), vec![ip("10.65.9.9")])].into();
            assert_eq!(held(&cluster.store.pairs()), expected);
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

/// The host has routes to the skipped addresses. A repeated ADD of a container finds the container
/// as its predecessor.
#[tokio::test]
async fn busy_address_of_the_earlier_sandbox_comes_last_and_an_own_one_never() {
    for cluster in clusters() {
        let list = list(&["10.65.3.3", "10.65.3.4"]);
        assign_as(
            &cluster,
            &request(&cluster, "node1", "net.c1", "web-0"),
            &list,
        )
        .await
        .unwrap();
        let after_c1 = |handle: &str, skipped: &[&str]| {
            cluster.clock.advance(std::time::Duration::from_secs(1));
            let mut next = request(&cluster, "node1", handle, "web-0");
            let mut sandbox = Predecessor::from_annotation("net", "c1", "shop", "web-0").unwrap();
            sandbox.listed = vec![ip("10.65.3.3")];
            next.predecessor = Some(sandbox);
            next.skipped = skipped.iter().map(|text| ip(text)).collect();
            next
        };
        let repeated = after_c1("net.c1", &["10.65.3.3"]);
        assert_eq!(
            assign_as(&cluster, &repeated, &list).await.unwrap(),
            [ip("10.65.3.4")]
        );
        let repeated = after_c1("net.c1", &["10.65.3.3", "10.65.3.4"]);
        let error = assign_as(&cluster, &repeated, &list).await.unwrap_err();
        assert!(matches!(error, IpamError::NoneFree { .. }), "{error}");
        for (handle, expected) in [("net.c2", "10.65.3.4"), ("net.c3", "10.65.3.3")] {
            let next = after_c1(handle, &["10.65.3.3"]);
            assert_eq!(
                assign_as(&cluster, &next, &list).await.unwrap(),
                [ip(expected)]
            );
        }
        let of = |handle: &str, address: &str| (HandleId::new(handle), vec![ip(address)]);
        let expected = [of("net.c2", "10.65.3.4"), of("net.c3", "10.65.3.3")].into();
        assert_eq!(held(&cluster.store.pairs()), expected);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

/// A tenant writes the annotations that name the earlier sandbox and its address. Shows SEC-1.
#[tokio::test]
async fn forged_predecessor_gives_no_address_of_another_pod() {
    for cluster in clusters() {
        let list = list(&["10.65.3.3"]);
        let owner = request(&cluster, "node1", "net.c1", "db-0");
        assign_as(&cluster, &owner, &list).await.unwrap();
        let mut thief = request(&cluster, "node1", "net.c2", "web-1");
        let mut sandbox = Predecessor::from_annotation("net", "c1", "shop", "web-1").unwrap();
        sandbox.listed = vec![ip("10.65.3.3")];
        thief.predecessor = Some(sandbox);
        let error = assign_as(&cluster, &thief, &list).await.unwrap_err();
        assert!(matches!(error, IpamError::NoneFree { .. }), "{error}");
        assert_eq!(
            held(&cluster.store.pairs()).into_keys().collect::<Vec<_>>(),
            [HandleId::new("net.c1")]
        );
    }
}

#[tokio::test]
async fn addresses_that_the_pools_withhold_are_named_with_the_reason() {
    let cluster = Cluster::new();
    cluster.pool_with("blues", "10.71.0.0/24", 26, |spec| {
        spec.namespace_selector = "team == 'blue'".into()
    });
    cluster.pool_with("tunnels", "10.72.0.0/24", 26, |spec| {
        spec.allowed_uses = vec![AllowedUse::Tunnel.into()]
    });
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.reserve(&["10.65.1.0/30"]);
    let mut request = request(&cluster, "node1", "net.a", "web-0");
    let withheld = list(&["10.71.0.9", "10.72.0.9", "192.0.2.1"]);
    let (code, _, details) = told(&assign_as(&cluster, &request, &withheld).await.unwrap_err());
    assert_eq!(code, Code::INVALID_CONFIG);
    assert!(
        details.contains("does not match namespace shop"),
        "{details}"
    );
    assert!(details.ends_with("192.0.2.1 is in no IPPool"), "{details}");
    assert_eq!(cluster.handle("net.a"), None);
    let reserved = list(&["10.71.0.9", "10.65.1.1"]);
    assert_eq!(
        assign_as(&cluster, &request, &reserved).await.unwrap(),
        [ip("10.65.1.1")]
    );
    cluster.release("net.a").await.unwrap();
    request.restricted = [IpVersion::V4].into();
    let (code, _, details) = told(&assign_as(&cluster, &request, &reserved).await.unwrap_err());
    assert_eq!(code, Code::INVALID_CONFIG);
    assert!(
        details.contains("10.65.1.1 is covered by an IPReservation"),
        "{details}"
    );
}

/// Shows SEC-22.
#[tokio::test]
async fn holder_of_another_namespace_is_not_named() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    let mut foreign = request(&cluster, "node1", "net.secret", "web-0");
    foreign.attributes =
        workload_attributes("node1", Some(("bank", "vault-0")), cluster.clock.now());
    let list = list(&["10.65.3.3"]);
    assign_as(&cluster, &foreign, &list).await.unwrap();
    let request = request(&cluster, "node1", "net.a", "web-1");
    let error = assign_as(&cluster, &request, &list).await.unwrap_err();
    assert_eq!(told(&error).2, "10.65.3.3 is held by another namespace");
    let IpamError::NoneFree { unavailable } = &error else {
        panic!("{error}")
    };
    assert!(
        list_for_log(unavailable).contains("pod bank/vault-0"),
        "{unavailable:?}"
    );
}

#[tokio::test]
async fn cooling_and_passed_over_addresses_come_after_free_ones() {
    for cluster in clusters() {
        cluster.configure(|config| config.ip_cooldown_seconds = 30);
        let list = list(&["10.65.3.3", "10.65.3.4", "10.65.3.5"]);
        let mut first = request(&cluster, "node1", "net.a", "web-0");
        assign_as(&cluster, &first, &list).await.unwrap();
        cluster.release("net.a").await.unwrap();
        first.skipped = [ip("10.65.3.4")].into();
        assert_eq!(
            assign_as(&cluster, &first, &list).await.unwrap(),
            [ip("10.65.3.5")]
        );
        let mut second = request(&cluster, "node1", "net.b", "web-1");
        second.skipped.clone_from(&first.skipped);
        assert_eq!(
            assign_as(&cluster, &second, &list).await.unwrap(),
            [ip("10.65.3.4")]
        );
        let third = request(&cluster, "node1", "net.c", "web-2");
        let error = assign_as(&cluster, &third, &list).await.unwrap_err();
        assert!(
            told(&error)
                .2
                .starts_with("10.65.3.3 is cooling down; 10.65.3.4 is held by "),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn strict_affinity_withholds_addresses_in_blocks_of_other_nodes() {
    for cluster in clusters() {
        let list = list(&["10.65.3.3", "10.65.3.4", "10.65.9.9"]);
        assign_as(
            &cluster,
            &request(&cluster, "node1", "net.a", "web-0"),
            &list,
        )
        .await
        .unwrap();
        cluster.configure(|config| config.strict_affinity = true);
        let second = request(&cluster, "node2", "net.b", "web-1");
        assert_eq!(
            assign_as(&cluster, &second, &list).await.unwrap(),
            [ip("10.65.9.9")]
        );
        let third = request(&cluster, "node2", "net.c", "web-2");
        let IpamError::NoneFree { unavailable } =
            assign_as(&cluster, &third, &list).await.unwrap_err()
        else {
            panic!("the list has no third address for node2")
        };
        assert!(
            unavailable[..2]
                .iter()
                .all(|one| one.reason == Obstacle::ForeignBlock(cidr("10.65.3.0/26")))
        );
        assert!(
            matches!(unavailable[2].reason, Obstacle::Held(_)),
            "{unavailable:?}"
        );
    }
}

#[tokio::test]
async fn list_in_a_claimed_block_costs_the_requests_of_a_requested_address() {
    for cluster in clusters() {
        let warm = request(&cluster, "node1", "net.warm", "web-9");
        assign_as(&cluster, &warm, &list(&["10.65.3.9"]))
            .await
            .unwrap();
        cluster.store.take_counts();
        let asked = request(&cluster, "node1", "net.a", "web-0");
        let inputs = cluster.inputs(&asked).await.unwrap();
        assign_address(
            &cluster.store,
            &cluster.clock,
            &asked,
            ip("10.65.3.1"),
            inputs,
        )
        .await
        .unwrap();
        let (reads, writes) = cluster.store.take_counts();
        let listed = request(&cluster, "node1", "net.b", "web-1");
        assign_as(
            &cluster,
            &listed,
            &list(&["10.65.3.1", "10.65.3.9", "10.65.3.2"]),
        )
        .await
        .unwrap();
        assert_eq!(cluster.store.take_counts(), (reads, writes));
    }
}

#[tokio::test]
async fn list_of_two_families_costs_fewer_requests_than_two_requested_addresses() {
    for cluster in clusters() {
        let both = list(&["10.65.3.8/29", "fd00:65::8/125"]);
        let mut warm = request(&cluster, "node1", "net.warm", "web-9");
        warm.num6 = 1;
        assign_as(&cluster, &warm, &both).await.unwrap();
        cluster.store.take_counts();
        let asked = request(&cluster, "node1", "net.a", "web-0");
        for address in ["10.65.3.1", "fd00:65::1"] {
            let inputs = cluster.inputs(&asked).await.unwrap();
            assign_address(&cluster.store, &cluster.clock, &asked, ip(address), inputs)
                .await
                .unwrap();
        }
        let (reads, writes) = cluster.store.take_counts();
        let listed = AssignRequest {
            num6: 1,
            ..request(&cluster, "node1", "net.b", "web-1")
        };
        assign_as(&cluster, &listed, &both).await.unwrap();
        let (listed_reads, listed_writes) = cluster.store.take_counts();
        assert!(
            listed_reads < reads && listed_writes <= writes,
            "{listed_reads}+{listed_writes} {reads}+{writes}"
        );
    }
}

/// The ADD has the node's lock while it reads.
#[tokio::test]
async fn list_in_64_blocks_is_read_in_few_rounds() {
    for store in [MemoryStore::sequential(), MemoryStore::transactional()] {
        let cluster = Cluster::on(store);
        cluster.pool("pool4", "10.65.0.0/24", 32);
        let list = list(&["10.65.0.0/26"]);
        for (number, address) in list.v4[..63].iter().enumerate() {
            let other = request(&cluster, "node2", &format!("net.{number}"), "other");
            let inputs = cluster.inputs(&other).await.unwrap();
            assign_address(&cluster.store, &cluster.clock, &other, *address, inputs)
                .await
                .unwrap();
        }
        let own = request(&cluster, "node1", "net.own", "web-0");
        cluster.store.take_counts();
        assert_eq!(
            assign_as(&cluster, &own, &list).await.unwrap(),
            [ip("10.65.0.63")]
        );
        let (reads, _) = cluster.store.take_counts();
        assert!(reads <= 10, "{reads} reads");
    }
}
