use std::net::IpAddr;

use proptest::prelude::*;

use super::parse::{MAX_ADDRESSES, MAX_ENTRIES};
use super::*;
use crate::api::{AllowedUse, IpPool, IpPoolSpec};
use crate::failure::Failure;
use crate::ipam::{AddressRules, Labels, NoPool, Reservations};
use crate::net::{Cidr, IpVersion};

fn list(entries: &[&str]) -> Result<AnyOf, Failure> {
    AnyOf::parse(
        &entries
            .iter()
            .map(|entry| (*entry).to_owned())
            .collect::<Vec<_>>(),
    )
}

fn texts(list: &AnyOf, version: IpVersion) -> Vec<String> {
    list.of(version).iter().map(ToString::to_string).collect()
}

fn pool(name: &str, range: &str, change: impl FnOnce(&mut IpPoolSpec)) -> IpPool {
    let mut spec = IpPoolSpec {
        cidr: range.into(),
        ..IpPoolSpec::default()
    };
    change(&mut spec);
    IpPool::new(name, spec)
}

#[test]
fn entries_stand_for_their_addresses_in_the_order_of_the_list() {
    let parsed = list(&[
        "10.0.0.9",
        "fd00::10/126",
        "10.0.0.17/30",
        "10.0.0.9/32",
        "::ffff:10.0.0.1",
    ])
    .unwrap();
    let v4 = [
        "10.0.0.9",
        "10.0.0.16",
        "10.0.0.17",
        "10.0.0.18",
        "10.0.0.19",
        "10.0.0.1",
    ];
    assert_eq!(texts(&parsed, IpVersion::V4), v4);
    assert_eq!(
        texts(&parsed, IpVersion::V6),
        ["fd00::10", "fd00::11", "fd00::12", "fd00::13"]
    );
    assert_eq!(
        parsed.families().collect::<Vec<_>>(),
        [IpVersion::V4, IpVersion::V6]
    );
    let mapped = list(&["::ffff:10.0.0.8/127"]).unwrap();
    assert_eq!(texts(&mapped, IpVersion::V4), ["10.0.0.8", "10.0.0.9"]);
    assert_eq!(mapped.families().collect::<Vec<_>>(), [IpVersion::V4]);
}

#[test]
fn malformed_entries_are_refused() {
    let long = "x".repeat(5_000);
    for entry in [
        "",
        " 10.0.0.1",
        "10.0.0.01",
        "10.0.0.1/33",
        "10.0.0.1/",
        "pool4",
        "::ffff:10.0.0.0/95",
        long.as_str(),
    ] {
        let error = list(&["10.0.0.1", entry]).unwrap_err();
        let shown: String = entry.chars().take(100).collect();
        assert_eq!(error.to_string(), format!("invalid IP format: {shown}"));
    }
    let error = list(&[]).unwrap_err().to_string();
    assert_eq!(
        error,
        "annotation \"cni.projectcalico.org/ipAddrsAnyOf\" specified but empty"
    );
}

/// Shows SEC-14.
#[test]
fn list_beyond_a_limit_is_refused_with_the_number() {
    let many: Vec<String> = (0..=MAX_ENTRIES)
        .map(|number| format!("10.0.0.{number}"))
        .collect();
    let refused = AnyOf::parse(&many).unwrap_err().to_string();
    assert!(
        refused.ends_with(" has 65 entries; at most 64"),
        "{refused}"
    );
    AnyOf::parse(&many[1..]).unwrap();
    list(&["10.0.0.0/24", "fd00::/120"]).unwrap();
    list(&["10.0.0.0/25", "10.0.0.0/24"]).unwrap();
    let error = list(&["10.0.0.0/24", "10.0.1.0"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "annotation \"cni.projectcalico.org/ipAddrsAnyOf\" names 257 addresses; at most 256 of a \
         family"
    );
    for range in ["10.0.0.0/23", "0.0.0.0/0", "::/0"] {
        assert_eq!(
            list(&[range]).unwrap_err().to_string(),
            format!(
                "annotation \"cni.projectcalico.org/ipAddrsAnyOf\" names {range}, which has more \
                 than 256 addresses"
            )
        );
    }
}

fn divided(
    pools: &[IpPool],
    rules: &AddressRules<'_>,
    wanted: &[&str],
) -> Result<Candidates, NoPool> {
    let wanted: Vec<IpAddr> = wanted.iter().map(|text| text.parse().unwrap()).collect();
    candidates(pools, rules, &wanted)
}

/// Shows SEC-13.
#[test]
fn addresses_outside_the_namespaces_pools_are_not_permitted() {
    let pools = [
        pool("blue", "10.1.0.0/24", |spec| {
            spec.namespace_selector = "team == 'blue'".into()
        }),
        pool("off", "10.2.0.0/24", |spec| spec.disabled = true),
        pool("open", "10.3.0.0/24", |spec| {
            spec.node_selector = "!all()".into()
        }),
        pool("services", "10.4.0.0/24", |spec| {
            spec.allowed_uses = vec![AllowedUse::LoadBalancer.into()]
        }),
        pool("tunnels", "10.5.0.0/24", |spec| {
            spec.allowed_uses = vec![AllowedUse::Tunnel.into()]
        }),
    ];
    let labels: Labels = [("team".to_owned(), "red".to_owned())].into();
    let reserved = Reservations::new(["10.3.0.2/31".parse().unwrap()]);
    let purpose = AllowedUse::Workload;
    let mut rules = AddressRules {
        purpose,
        namespace: Some(("shop", &labels)),
        by_namespace: true,
        reserved: None,
    };
    let wanted = [
        "10.3.0.1",
        "10.1.0.1",
        "10.2.0.1",
        "10.3.0.2",
        "10.4.0.1",
        "10.5.0.1",
        "192.0.2.1",
    ];
    let found = divided(&pools, &rules, &wanted).unwrap();
    let permitted: Vec<String> = found
        .permitted
        .iter()
        .map(|candidate| candidate.ip.to_string())
        .collect();
    assert_eq!(permitted, ["10.3.0.1", "10.3.0.2"]);
    let block: Cidr = "10.3.0.0/26".parse().unwrap();
    assert!(
        found
            .permitted
            .iter()
            .all(|candidate| candidate.block == block)
    );
    assert!(
        found
            .unavailable
            .iter()
            .all(|address| !address.reason.is_permitted())
    );
    assert_eq!(
        list_for_caller(&found.unavailable)
            .split("; ")
            .collect::<Vec<_>>(),
        [
            "10.1.0.1 is in no IPPool for this pod: pool blue (10.1.0.0/24): its namespaceSelector \
             `team == 'blue'` does not match namespace shop",
            "10.2.0.1 is in no IPPool for this pod: pool off (10.2.0.0/24): it is disabled",
            "10.4.0.1 is in no IPPool for this pod: pool services (10.4.0.0/24): its allowedUses \
             [LoadBalancer] do not include Workload",
            "10.5.0.1 is in no IPPool for this pod: pool tunnels (10.5.0.0/24): its allowedUses \
             [Tunnel] do not include Workload",
            "192.0.2.1 is in no IPPool",
        ]
    );
    rules.reserved = Some(&reserved);
    let found = divided(&pools, &rules, &wanted[3..4]).unwrap();
    assert_eq!(
        list_for_caller(&found.unavailable),
        "10.3.0.2 is covered by an IPReservation"
    );
}

#[test]
fn malformed_selector_counts_only_in_a_pool_of_the_list() {
    let pools = [
        pool("broken", "10.1.0.0/24", |spec| {
            spec.namespace_selector = "team ===".into()
        }),
        pool("sound", "10.2.0.0/24", |_| {}),
    ];
    let rules = AddressRules {
        purpose: AllowedUse::Workload,
        namespace: None,
        by_namespace: true,
        reserved: None,
    };
    assert_eq!(
        divided(&pools, &rules, &["10.2.0.1"])
            .unwrap()
            .permitted
            .len(),
        1
    );
    assert!(matches!(
        divided(&pools, &rules, &["10.2.0.1", "10.1.0.1"]),
        Err(NoPool::Selector { .. })
    ));
}

#[test]
fn addresses_of_more_than_64_blocks_are_refused() {
    let pools = [pool("small", "10.1.0.0/16", |spec| {
        spec.block_size = Some(32)
    })];
    let rules = AddressRules {
        purpose: AllowedUse::Workload,
        namespace: None,
        by_namespace: true,
        reserved: None,
    };
    let of = |count: u8| {
        let wanted: Vec<IpAddr> = (0..count).map(|number| [10, 1, 0, number].into()).collect();
        candidates(&pools, &rules, &wanted)
            .unwrap()
            .ensure_few_blocks()
    };
    assert_eq!(of(64), Ok(()));
    assert_eq!(
        of(65).unwrap_err().to_string(),
        "annotation \"cni.projectcalico.org/ipAddrsAnyOf\" names addresses in 65 blocks; at most \
         64 of a family"
    );
}

#[test]
fn text_names_eight_addresses_and_counts_the_others() {
    let cooling = |number: u8| Unavailable {
        ip: [10, 0, 0, number].into(),
        reason: Obstacle::Cooling,
    };
    let of = |count: u8| list_for_caller(&(1..=count).map(cooling).collect::<Vec<_>>());
    assert_eq!(of(1), "10.0.0.1 is cooling down");
    assert!(of(8).ends_with("10.0.0.8 is cooling down"), "{}", of(8));
    assert!(
        of(13).ends_with("10.0.0.8 is cooling down; and 5 more"),
        "{}",
        of(13)
    );
}

proptest! {
    /// Texts of tenants: any text is refused or yields a list within the limits.
    #[test]
    fn parsed_list_stays_within_its_limits(texts in proptest::collection::vec("[0-9a-f.:/]{0,24}", 0..70)) {
        if let Ok(parsed) = AnyOf::parse(&texts) {
            for version in [IpVersion::V4, IpVersion::V6] {
                let family = parsed.of(version);
                let distinct: std::collections::BTreeSet<_> = family.iter().collect();
                prop_assert!(distinct.len() == family.len() && family.len() <= MAX_ADDRESSES);
                prop_assert!(family.iter().all(|ip| IpVersion::of(*ip) == version));
            }
        }
    }

    #[test]
    fn list_keeps_the_order_of_its_first_occurrences(numbers in proptest::collection::vec(0u8..40, 1..64)) {
        let entries: Vec<String> = numbers
            .iter()
            .map(|number| format!("10.0.0.{number}"))
            .collect();
        let mut expected: Vec<String> = Vec::new();
        for entry in &entries {
            if !expected.contains(entry) {
                expected.push(entry.clone());
            }
        }
        prop_assert_eq!(
            texts(&AnyOf::parse(&entries).unwrap(), IpVersion::V4),
            expected
        );
    }
}
