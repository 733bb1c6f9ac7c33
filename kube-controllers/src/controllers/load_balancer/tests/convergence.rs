//! Random Services, pools and addresses: decisions converge, and a published address of a family
//! that the Service names stays until it is replaced, unless the annotation requests addresses.

use libcalico::net::IpVersion;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// Addresses to request and to hold: from automatic, manual and overlapping pools, and from no
/// pool.
const ADDRESSES: [&str; 9] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.9.0.1",
    "10.9.0.2",
    "172.16.0.1",
    "fd00::1",
    "fd00::2",
    "fd09::1",
    "fd16::1",
];

fn all_pools() -> Vec<LoadBalancerPool> {
    vec![
        pool("v4", "10.0.0.0/24", true),
        pool("manual4", "10.9.0.0/24", false),
        pool("within4", "10.9.0.0/31", true),
        pool("v6", "fd00::/112", true),
        pool("manual6", "fd09::/112", false),
    ]
}

fn annotations() -> impl Strategy<Value = Value> {
    let pools4 = select(vec![
        None,
        Some(r#"["v4"]"#),
        Some(r#"["manual4"]"#),
        Some(r#"["v4","manual4"]"#),
    ]);
    let pools6 = select(vec![None, Some(r#"["v6"]"#), Some(r#"["manual6"]"#)]);
    let addresses = select(vec![
        None,
        None,
        Some(r#"["10.9.0.2"]"#),
        Some(r#"["fd00::2"]"#),
        Some(r#"["10.0.0.2","fd09::1"]"#),
        Some(r#"["172.16.0.1"]"#),
    ]);
    (pools4, pools6, addresses).prop_map(|(pools4, pools6, addresses)| {
        let named = [
            (IPV4_POOLS, pools4),
            (IPV6_POOLS, pools6),
            (super::ADDRESSES, addresses),
        ];
        named
            .into_iter()
            .filter_map(|(name, text)| Some((name.to_owned(), json!(text?))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    })
}

fn services() -> impl Strategy<Value = LoadBalancerService> {
    let families = select(vec![
        json!(null),
        json!(["IPv4"]),
        json!(["IPv6"]),
        json!(["IPv6", "IPv4"]),
    ]);
    let address = select(vec![
        None,
        None,
        Some("10.0.0.2"),
        Some("10.9.0.1"),
        Some("172.16.0.1"),
        Some("fd00::1"),
    ]);
    (families, annotations(), address).prop_map(|(families, annotations, address)| {
        let metadata =
            json!({"name": "s", "namespace": "n", "uid": "u", "annotations": annotations});
        let spec =
            json!({"type": "LoadBalancer", "ipFamilies": families, "loadBalancerIP": address});
        LoadBalancerService::live(
            &serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap(),
        )
        .unwrap()
    })
}

/// Picks an address as the allocator does: from the named pools, or else from an automatic pool.
fn allocated(missing: &MissingAddress, pools: &[LoadBalancerPool]) -> Option<IpAddr> {
    match missing {
        MissingAddress::Address(ip) => pools
            .iter()
            .any(|pool| pool.cidr.contains(*ip))
            .then_some(*ip),
        MissingAddress::Any {
            version,
            pools: ranges,
        } => {
            let may = |pool: &&LoadBalancerPool| match ranges.is_empty() {
                true => pool.automatic && pool.cidr.version() == *version,
                false => ranges.contains(&pool.cidr),
            };
            pools.iter().find(may).map(|pool| pool.cidr.network())
        }
    }
}

proptest! {
    #[test]
    fn decisions_converge_and_published_addresses_stay_until_replaced(
        mut service in services(),
        holds in proptest::sample::subsequence(ADDRESSES.to_vec(), 0..5),
        shows in proptest::sample::subsequence(ADDRESSES.to_vec(), 0..3),
        exists in proptest::sample::subsequence(all_pools(), 1..=5),
    ) {
        let mut holding = held(&holds);
        service.published = shows.iter().map(|ip| ip.parse().unwrap()).collect();
        for round in 0..3 {
            let plan = |service: &LoadBalancerService, holding: &[HeldAddress]| {
                decide(Some(service), holding, &exists, AssignIps::AllServices)
            };
            // If the Service names a missing pool, its request is invalid, and there is no plan to
            // test.
            let Ok(Decision::Serve(planned)) = plan(&service, &holding) else {
                return Ok(());
            };
            let got: Vec<_> = planned
                .assign
                .iter()
                .filter_map(|missing| allocated(missing, &exists))
                .collect();
            prop_assert!(
                round == 0 || (got.is_empty() && planned.release.is_empty()),
                "round {round}: {planned:?}",
            );
            holding.extend(got.into_iter().map(held_address));
            let Ok(Decision::Serve(planned)) = plan(&service, &holding) else {
                unreachable!()
            };
            for gone in &planned.release {
                let version = IpVersion::of(gone.ip);
                let is_served = planned
                    .keep
                    .iter()
                    .any(|kept| IpVersion::of(kept.ip) == version);
                let names_family = match version {
                    IpVersion::V4 => service.wants_ipv4,
                    IpVersion::V6 => service.wants_ipv6,
                };
                let is_listed = service.request.addresses.is_none();
                let is_published = service.published.contains(&gone.ip);
                prop_assert!(
                    is_served || !is_published || !names_family || !is_listed,
                    "{planned:?}",
                );
            }
            for version in [IpVersion::V4, IpVersion::V6] {
                prop_assert!(
                    planned
                        .keep
                        .iter()
                        .filter(|kept| IpVersion::of(kept.ip) == version)
                        .count()
                        <= 1
                );
            }
            service.published = planned.keep.iter().map(|kept| kept.ip).collect();
            holding = planned.keep;
        }
    }
}
