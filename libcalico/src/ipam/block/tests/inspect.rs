use super::*;
use crate::ipam::Handle;

#[test]
fn block_is_empty_without_allocations_except_windows_reserved() {
    let mut block = fresh();
    assert!(block.is_empty());
    block.allocations[0] = Some(0);
    block.unallocated.remove(0);
    for (handle, empty) in [
        (Some("windows-reserved-IPAM-handle"), true),
        (Some("net.c1"), false),
        // An address that is cooling down has no handle, either.
        (None, false),
    ] {
        block.attributes = vec![Attribute {
            handle_id: handle.map(Into::into),
            ..Attribute::default()
        }];
        assert_eq!(block.is_empty(), empty, "{handle:?}");
    }
    block.attributes.clear();
    assert!(!block.is_empty());
}

#[test]
fn free_count_excludes_allocated_cooling_and_reserved_addresses() {
    let mut block = fresh();
    assign(&mut block, 1, "a");
    for (reserved, free) in [
        (&[][..], 3),
        (&["10.0.0.0/32"][..], 3),
        (&["10.0.0.0/31"], 2),
        (&["10.0.0.2/31"], 1),
        (&["10.0.0.0/30"], 0),
        (&["10.0.0.0/31", "10.0.0.2/31"], 0),
        (&["10.0.1.0/24"], 3),
    ] {
        assert_eq!(
            block.free(&Reservations::new(reserved.iter().map(|range| cidr(range)))),
            free,
            "{reserved:?}"
        );
    }
    block
        .release_by_handle(&HandleId::new("a"), None, 60, NOW)
        .unwrap();
    assert_eq!(
        block.free(&Reservations::none()),
        3,
        "a cooling address is not free"
    );
}

#[test]
fn addresses_are_found_by_handle_and_owners_by_address() {
    let mut block = fresh();
    assign(&mut block, 2, "a");
    assign(&mut block, 1, "b");
    block.attributes[0].handle_id = Some("a\r\r".into());
    assert_eq!(
        block.addresses_of(&HandleId::new("a")),
        [ip("10.0.0.0"), ip("10.0.0.1")]
    );
    assert_eq!(block.addresses_of(&HandleId::new("c")), [] as [IpAddr; 0]);
    // A list of handles can contain the carriage returns of an old migration (IPAM-58).
    let listed = Handle::parse_path("/calico/ipam/v2/handle/a\r\r").unwrap();
    assert_eq!(
        block.addresses_of(&listed),
        [ip("10.0.0.0"), ip("10.0.0.1")]
    );

    let held = block.allocation(ip("10.0.0.2")).unwrap();
    assert_eq!(
        (held.ordinal, held.handle(), held.is_cooling()),
        (2, Some(HandleId::new("b")), false)
    );
    assert_eq!(held.attributes(), Some(&attributes("b")));
    for free in ["10.0.0.3", "10.0.0.4", "fd00::"] {
        assert_eq!(block.allocation(ip(free)), None, "{free}");
    }
}

#[test]
fn owner_is_parsed_from_the_affinity_prefix() {
    for (affinity, owner) in [
        (Some("host:node1"), Some(host("node1"))),
        (
            Some("virtual:load-balancer"),
            Some(AffinityOwner::Virtual("load-balancer".into())),
        ),
        (Some("node1"), None),
        (Some(""), None),
        (None, None),
    ] {
        let block = Block {
            affinity: affinity.map(Into::into),
            ..fresh()
        };
        assert_eq!(block.owner(), owner, "{affinity:?}");
    }
}

#[test]
fn inconsistencies_are_named_and_no_operation_proceeds() {
    type Break = fn(&mut Block);
    let cases: [(Break, &str); 6] = [
        (
            |b| b.allocations.truncate(3),
            "it has 3 allocation slots for 4 addresses",
        ),
        (
            |b| b.allocations[1] = Some(7),
            "ordinal 1 refers to attribute 7 of only 1",
        ),
        (
            |b| b.unallocated.push(4),
            "ordinal 4 in its free list is out of range",
        ),
        (
            |b| b.unallocated.push(0),
            "ordinal 0 in its free list is allocated",
        ),
        (
            |b| b.unallocated.push(3),
            "ordinal 3 in its free list is listed twice",
        ),
        (
            |b| b.attributes[0].released_at = Some("soon".into()),
            "the release time `soon` of attribute 0 is invalid",
        ),
    ];
    for (damage, problem) in cases {
        let mut block = fresh();
        assign(&mut block, 1, "a");
        damage(&mut block);
        let (damaged, expected) = (
            block.clone(),
            format!("block 10.0.0.0/30 is corrupt: {problem}"),
        );
        assert_eq!(
            block.collect_garbage(0, NOW).unwrap_err().to_string(),
            expected
        );
        let request = BlockRequest {
            handle: None,
            attributes: &BTreeMap::new(),
            requester: &host("node1"),
            check_affinity: false,
        };
        let error = block
            .assign(1, &request, &Reservations::none())
            .unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(
            block
                .assign_address(ip("10.0.0.3"), &request)
                .unwrap_err()
                .to_string(),
            expected
        );
        let error = block
            .release(&[release_request("10.0.0.0")], 0, NOW)
            .unwrap_err();
        assert_eq!(error.to_string(), expected);
        let error = block
            .release_by_handle(&HandleId::new("a"), None, 0, NOW)
            .unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(block, damaged, "{problem}: nothing changed");
    }
}

/// A block that counts as empty may be deleted.
#[test]
fn inconsistent_block_is_never_empty() {
    let damages: [fn(&mut Block); 3] = [
        |b| b.allocations.truncate(2),
        |b| b.unallocated.push(3),
        |b| b.unallocated.push(9),
    ];
    assert!(fresh().is_empty());
    for damage in damages {
        let mut block = fresh();
        damage(&mut block);
        assert!(!block.is_empty());
    }
}
