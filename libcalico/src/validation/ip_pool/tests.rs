use super::*;
use crate::api::StringEnum;

fn pool(cidr: &str) -> IpPool {
    IpPool::new(
        "pool",
        IpPoolSpec {
            cidr: cidr.into(),
            ..IpPoolSpec::default()
        },
    )
}

fn with(cidr: &str, change: impl FnOnce(&mut IpPoolSpec)) -> IpPool {
    let mut pool = pool(cidr);
    change(&mut pool.spec);
    pool
}

fn new(pool: IpPool) -> Result<IpPool, ValidationError> {
    admit_ip_pool(pool, &PoolContext::default())
}

fn findings(result: Result<IpPool, ValidationError>) -> Vec<String> {
    result
        .err()
        .iter()
        .flat_map(ValidationError::fields)
        .map(ToString::to_string)
        .collect()
}

#[test]
fn pool_with_only_a_cidr_gets_upstreams_defaults() {
    let admitted = new(pool("10.65.0.0/16")).unwrap();
    let spec = serde_json::to_value(&admitted.spec).unwrap();
    let recorded = serde_json::json!({
        "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic", "blockSize": 26,
        "cidr": "10.65.0.0/16",
        "ipipMode": "Never", "nodeSelector": "all()", "vxlanMode": "Never",
    });
    assert_eq!(spec, recorded);
    let admitted = new(pool("FD00:65:0::/64")).unwrap();
    assert_eq!(
        (admitted.spec.cidr.as_str(), admitted.spec.block_size),
        ("fd00:65::/64", Some(122))
    );
    assert_eq!(new(admitted.clone()), Ok(admitted));
}

#[test]
fn explicit_pool_fields_are_preserved() {
    let said = with("10.0.0.0/16", |s| {
        s.block_size = Some(28);
        s.vxlan_mode = "CrossSubnet".into();
        s.node_selector = "rack == 'a'".into();
        s.namespace_selector = "team == 'b'".into();
        s.allowed_uses = vec![AllowedUse::Workload.into()];
        s.assignment_mode = Some(AssignmentMode::Manual.into());
        s.nat_outgoing = true;
    });
    let mut expected = said.clone();
    expected.spec.ipip_mode = NEVER.into();
    assert_eq!(new(said), Ok(expected));
    let load_balancer = with("192.0.2.0/24", |s| {
        s.allowed_uses = vec![AllowedUse::LoadBalancer.into()]
    });
    assert!(new(load_balancer).is_ok());
}

#[test]
fn invalid_pool_cidrs_are_rejected() {
    for (cidr, finding) in [
        ("", "IPPool.Spec.CIDR (IPPool CIDR must be specified)"),
        (
            "10.0.0.0",
            "IPPool.Spec.CIDR = '10.0.0.0' (IPPool CIDR must be a valid subnet)",
        ),
        (
            "10.0.0.1/16",
            "IPPool.Spec.CIDR = '10.0.0.1/16' (IPPool CIDR is not strictly masked)",
        ),
        (
            "169.254.8.0/24",
            "IPPool.Spec.CIDR = '169.254.8.0/24' (IPPool CIDR overlaps with IPv4 Link Local range \
             169.254.0.0/16)",
        ),
        (
            "fe80::/64",
            "IPPool.Spec.CIDR = 'fe80::/64' (IPPool CIDR overlaps with IPv6 Link Local range \
             fe80::/10)",
        ),
        (
            "10.0.0.0/27",
            "IPPool.Spec.CIDR = '10.0.0.0/27' (IP pool size is too small for use with Calico IPAM. \
             It must be equal to or greater than the block size.)",
        ),
    ] {
        assert_eq!(findings(new(pool(cidr))), [finding]);
    }
    assert!(
        new(with("10.0.0.0/27", |s| s.disabled = true)).is_ok(),
        "a disabled pool may be small"
    );
}

#[test]
fn pool_block_size_limits_are_enforced() {
    for (cidr, sizes) in [("10.0.0.0/16", [19, 33]), ("fd00::/64", [115, 129])] {
        for size in sizes {
            let found = findings(new(with(cidr, |s| s.block_size = Some(size))));
            assert!(
                found[0].contains(&format!("BlockSize = '{size}' (IPv")),
                "{found:?}"
            );
        }
    }
    for (cidr, sizes) in [("10.0.0.0/16", [20, 32]), ("fd00::/64", [116, 128])] {
        for size in sizes {
            assert_eq!(
                findings(new(with(cidr, |s| s.block_size = Some(size)))),
                [""; 0]
            );
        }
    }
}

#[test]
fn selector_of_1024_characters_outside_ascii_is_admitted() {
    let selector = |count: usize| format!("a == '{}'", "\u{6771}".repeat(count - "a == ''".len()));
    let findings = |count: usize| {
        let mut findings = Vec::new();
        check_selector("NodeSelector", &selector(count), &mut findings);
        findings.len()
    };
    assert_eq!((findings(1024), findings(1025)), (0, 1));
}

#[test]
fn invalid_pool_modes_selectors_and_uses_are_rejected() {
    type Change = fn(&mut IpPoolSpec);
    let cases: [(Change, &str); 14] = [
        (
            |s| s.allowed_uses.push(StringEnum::Other("Gateway".into())),
            "AllowedUses = 'Gateway' (unsupported use; use Workload, Tunnel or LoadBalancer)",
        ),
        (
            |s| s.assignment_mode = Some(StringEnum::Other("OnDemand".into())),
            "AssignmentMode = 'OnDemand' (unsupported mode; use Automatic or Manual)",
        ),
        (
            |s| s.ipip_mode = "Sometimes".into(),
            "IPIPMode = 'Sometimes' (Reason: failed to validate Field: IPIPMode",
        ),
        (|s| s.vxlan_mode = "x".into(), "because of Tag: vxlanMode )"),
        (
            |s| {
                s.ipip_mode = "Always".into();
                s.vxlan_mode = "Always".into();
            },
            "Cannot enable both VXLAN and IPIP on the same IPPool",
        ),
        (
            |s| s.node_selector = "a = 'b'".into(),
            "Tag: selector (expected == (at offset 2)))",
        ),
        (
            |s| s.node_selector = "global()".into(),
            "global() cannot be used",
        ),
        (
            |s| s.node_selector = format!("has({})", "a".repeat(1024)),
            "longer than 1024 characters",
        ),
        (
            |s| s.namespace_selector = "has(a)".into(),
            "cannot be used with the allowed use Tunnel",
        ),
        (
            |s| s.allowed_uses = vec![AllowedUse::Workload.into(); 2],
            "a use is listed twice; list each use once",
        ),
        (
            |s| s.allowed_uses = vec![AllowedUse::LoadBalancer.into(), AllowedUse::Workload.into()],
            "'[LoadBalancer, Workload]' (LoadBalancer cannot be combined with Workload or Tunnel \
             allowed uses)",
        ),
        (
            |s| {
                s.allowed_uses = vec![AllowedUse::LoadBalancer.into()];
                s.ipip_mode = "Always".into();
            },
            "LoadBalancer IP pool cannot have IPIP or VXLAN enabled",
        ),
        (
            |s| {
                s.allowed_uses = vec![AllowedUse::LoadBalancer.into()];
                s.disable_bgp_export = true;
            },
            "cannot have disableBGPExport set",
        ),
        (
            |s| {
                s.allowed_uses = vec![AllowedUse::LoadBalancer.into()];
                s.node_selector = "has(a)".into();
            },
            "must have the node selector all()",
        ),
    ];
    for (change, text) in cases {
        let found = findings(new(with("10.0.0.0/16", change)));
        assert!(found.iter().any(|f| f.contains(text)), "{text}: {found:?}");
    }
    let found = findings(new(with("fd00::/64", |s| s.ipip_mode = "Always".into())));
    assert_eq!(
        found,
        ["IPPool.Spec.IPIPMode = 'Always' (IPIP is not supported on an IPv6 IP pool)"]
    );
}

#[test]
fn created_pool_may_not_overlap_another_pool() {
    let mut other = pool("10.0.128.0/20");
    other.metadata.name = "other".into();
    let mut broken = pool("nonsense");
    broken.metadata.name = "broken".into();
    let pools = [other, broken, pool("10.0.0.0/16")];
    let context = PoolContext {
        pools: &pools,
        ..PoolContext::default()
    };
    let found = findings(admit_ip_pool(pool("10.0.0.0/16"), &context));
    let expected = "IPPool.Spec.CIDR = '10.0.0.0/16' (IPPool(pool) CIDR overlaps with \
                    IPPool(other) CIDR 10.0.128.0/20)";
    assert_eq!(found, [expected]);
    let update = PoolContext {
        previous: Some(&pools[2]),
        ..context
    };
    assert!(
        admit_ip_pool(pool("10.0.0.0/16"), &update).is_ok(),
        "an overlap that is there already stays"
    );
}

#[test]
fn created_pool_may_not_cover_blocks_of_another_size() {
    let blocks = ["10.0.1.0/26", "10.9.0.0/24"].map(|b| b.parse().unwrap());
    let context = PoolContext {
        blocks: &blocks,
        ..PoolContext::default()
    };
    assert!(admit_ip_pool(pool("10.0.0.0/16"), &context).is_ok());
    let found = findings(admit_ip_pool(
        with("10.0.0.0/16", |s| s.block_size = Some(28)),
        &context,
    ));
    assert!(
        found[0].starts_with("IPPool.Spec.BlockSize = '28' (IPPool blocksSize conflicts"),
        "{found:?}"
    );
}

#[test]
fn pool_cidr_and_block_size_cannot_be_modified() {
    let stored = pool("fd00:0::/64");
    let update = PoolContext {
        previous: Some(&stored),
        ..PoolContext::default()
    };
    let canonical = admit_ip_pool(pool("fd00::/64"), &update).unwrap();
    assert_eq!(canonical.spec.cidr, "fd00::/64");
    let moved = findings(admit_ip_pool(pool("fd01::/64"), &update));
    assert_eq!(
        moved,
        ["IPPool.Spec.CIDR = 'fd01::/64' (IPPool CIDR cannot be modified)"]
    );
    let resized = findings(admit_ip_pool(
        with("fd00::/64", |s| s.block_size = Some(120)),
        &update,
    ));
    assert_eq!(
        resized,
        ["IPPool.Spec.BlockSize = '120' (IPPool BlockSize cannot be modified)"]
    );

    let stored = with("10.0.0.0/24", |s| {
        s.allowed_uses = vec![AllowedUse::LoadBalancer.into()]
    });
    let update = PoolContext {
        previous: Some(&stored),
        ..PoolContext::default()
    };
    let found = findings(admit_ip_pool(pool("10.0.0.0/24"), &update));
    assert!(
        found[0].contains("cannot be changed from LoadBalancer to Workload or Tunnel"),
        "{found:?}"
    );
}

#[test]
fn pool_metadata_is_validated() {
    let mut named = pool("10.0.0.0/16");
    named.metadata.name = "My_Pool".into();
    assert!(findings(new(named))[0].starts_with("Metadata.Name = 'My_Pool' (name must consist of"));
}

#[test]
fn pool_of_multicast_or_loopback_is_refused_unless_disabled() {
    for cidr in ["224.0.0.0/4", "239.1.0.0/16", "127.5.0.0/16", "ff02::/112"] {
        let refused = findings(new(pool(cidr)));
        assert!(
            refused.len() == 1
                && refused[0].contains("a pod with such an address cannot communicate"),
            "{refused:?}"
        );
        assert_eq!(
            findings(new(with(cidr, |spec| spec.disabled = true))),
            [""; 0],
            "{cidr}"
        );
    }
}
