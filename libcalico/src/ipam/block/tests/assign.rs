use super::host_reserved::HostReserved;
use super::*;

#[test]
fn new_block_is_assigned_from_the_start() {
    let mut block = fresh();
    assert_eq!(assign(&mut block, 2, "a"), [ip("10.0.0.0"), ip("10.0.0.1")]);
    assert_eq!(assign(&mut block, 9, "b"), [ip("10.0.0.2"), ip("10.0.0.3")]);
    assert_eq!(assign(&mut block, 1, "c"), [] as [IpAddr; 0]);
    assert_eq!(block.allocations, [Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!(holders(&block), ["a", "b"]);
}

#[test]
fn sequence_entry_has_the_number_before_the_write() {
    let mut block = fresh();
    let clock = NOW.unix_timestamp_nanos() as u64;
    assert_eq!(block.sequence_number, clock);
    assign(&mut block, 1, "a");
    assert_eq!(
        (
            block.sequence_number,
            block.allocation(ip("10.0.0.0")).unwrap().sequence
        ),
        (clock + 1, Some(clock))
    );
    assign_leaving(&mut block, 1, "b", &[]);
    assign_leaving(&mut block, 1, "c", &[]);
    block.count_write();
    let numbers: Vec<_> = block.allocated().map(|held| held.sequence).collect();
    assert_eq!(numbers, [Some(clock), Some(clock + 1), Some(clock + 1)]);
    assert_eq!(block.sequence_number, clock + 2);
}

#[test]
fn released_address_is_reused_last() {
    let mut block = fresh();
    assign(&mut block, 1, "a");
    assign(&mut block, 1, "b");
    block
        .release_by_handle(&HandleId::new("a"), None, 0, NOW)
        .unwrap();
    let order: Vec<IpAddr> = (0..4)
        .flat_map(|n| assign(&mut block, 1, &format!("later{n}")))
        .collect();
    assert_eq!(order, ["10.0.0.2", "10.0.0.3", "10.0.0.0"].map(ip));
}

#[test]
fn reserved_addresses_stay_free_in_place() {
    let mut block = fresh();
    let reserved = ["10.0.0.0/32", "10.0.0.2/32"];
    assert_eq!(
        assign_leaving(&mut block, 9, "a", &reserved),
        [ip("10.0.0.1"), ip("10.0.0.3")]
    );
    assert_eq!(block.unallocated, [0, 2]);
    let mut block = fresh();
    for whole in [&["10.0.0.0/24"][..], &["10.0.0.0/31", "10.0.0.2/31"]] {
        assert_eq!(assign_leaving(&mut block, 1, "a", whole), [] as [IpAddr; 0]);
    }
    assert_eq!(block, fresh());
}

#[test]
fn equal_attributes_of_a_block_are_stored_once() {
    let mut block = fresh();
    assign(&mut block, 1, "a");
    assign(&mut block, 1, "a");
    assign(&mut block, 1, "b");
    assert_eq!(
        (block.allocations[..3].to_vec(), holders(&block)),
        (vec![Some(0), Some(0), Some(1)], vec!["a", "b"])
    );
    let mut block = fresh();
    assign(&mut block, 1, "a");
    block.attributes[0].alternate_owner = attributes("target");
    assign(&mut block, 1, "a");
    assert_eq!(block.allocations[..2], [Some(0), Some(1)]);
}

#[test]
fn requested_address_preserves_the_order_of_the_free_list() {
    let mut block = fresh();
    let request = BlockRequest {
        handle: None,
        attributes: &BTreeMap::new(),
        requester: &host("node1"),
        check_affinity: true,
    };
    block.assign_address(ip("10.0.0.2"), &request).unwrap();
    assert_eq!(
        (block.unallocated.as_slice(), block.allocations[2]),
        (&[0, 1, 3][..], Some(0))
    );
    assert_eq!(block.attributes, [Attribute::default()]);
    assert_eq!(
        block
            .assign_address(ip("10.0.0.2"), &request)
            .unwrap_err()
            .to_string(),
        "Address already assigned in block"
    );
    for outside in ["10.0.0.4", "9.255.255.255", "::a00:1"] {
        let error = block.assign_address(ip(outside), &request).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("IP {outside} not in block 10.0.0.0/30")
        );
    }
}

#[test]
fn cooling_address_cannot_be_requested() {
    let mut block = fresh();
    assign(&mut block, 1, "a");
    block
        .release_by_handle(&HandleId::new("a"), None, 30, NOW)
        .unwrap();
    let request = BlockRequest {
        handle: None,
        attributes: &BTreeMap::new(),
        requester: &host("node1"),
        check_affinity: false,
    };
    assert_eq!(
        block.assign_address(ip("10.0.0.0"), &request),
        Err(AssignError::AlreadyAssigned(ip("10.0.0.0")))
    );
}

#[test]
fn strict_affinity_admits_only_the_block_owner() {
    let attempt = |block: &Block, requester: AffinityOwner, check_affinity| {
        let request = BlockRequest {
            handle: None,
            attributes: &BTreeMap::new(),
            requester: &requester,
            check_affinity,
        };
        let mut auto = block.clone();
        let mut requested = block.clone();
        let auto = auto
            .assign(1, &request, &Reservations::none())
            .map(|_| ())
            .map_err(|e| e.to_string());
        assert_eq!(
            requested
                .assign_address(ip("10.0.0.0"), &request)
                .map_err(|e| e.to_string()),
            auto
        );
        auto
    };
    let owned = fresh();
    let mut nobodys = fresh();
    nobodys.clear_affinity();
    let mut gibberish = fresh();
    gibberish.affinity = Some("node1".into());

    assert_eq!(attempt(&owned, host("node1"), true), Ok(()));
    assert_eq!(attempt(&owned, host("node2"), false), Ok(()));
    assert_eq!(attempt(&nobodys, host("node1"), false), Ok(()));
    for other in [host("node2"), AffinityOwner::Virtual("node1".into())] {
        let expected = format!("block affinity (host:node1) does not match provided ({other})");
        assert_eq!(attempt(&owned, other, true), Err(expected));
    }
    for block in [nobodys, gibberish] {
        let expected = "attempt to assign from block 10.0.0.0/30 with no affinity";
        assert_eq!(attempt(&block, host("node1"), true), Err(expected.into()));
    }
}

#[test]
fn host_reserved_addresses_are_allocated_at_both_ends() {
    let reserved = HostReserved {
        start: 3,
        end: 1,
        handle: HandleId::new(WINDOWS_RESERVED_HANDLE),
        note: "windows host rsvd".into(),
    };
    let block = Block::new(cidr("10.0.0.0/29"), &host("win"), NOW)
        .unwrap()
        .with_host_reserved(&reserved);
    assert_eq!(block.unallocated, [3, 4, 5, 6]);
    assert_eq!(
        block
            .allocated()
            .map(|held| held.ordinal)
            .collect::<Vec<_>>(),
        [0, 1, 2, 7]
    );
    assert!(block.sequence_number_for_allocation.is_empty());
    assert_eq!(
        block.attributes[0].active_owner["note"],
        "windows host rsvd"
    );
    assert!(block.is_empty());
    assert_eq!(block.verify(), Ok(()));
    assert_eq!(
        fresh().with_host_reserved(&reserved).unallocated,
        [] as [usize; 0]
    );
    let none = HostReserved {
        start: 0,
        end: 0,
        ..reserved
    };
    assert_eq!(fresh().with_host_reserved(&none), fresh());
}

#[test]
fn block_larger_than_allowed_is_rejected() {
    assert!(Block::new(cidr("10.0.0.0/20"), &host("node1"), NOW).is_ok());
    assert!(Block::new(cidr("fd00::/116"), &host("node1"), NOW).is_ok());
    for huge in ["10.0.0.0/19", "0.0.0.0/0", "::/0"] {
        assert_eq!(
            Block::new(cidr(huge), &host("node1"), NOW),
            Err(BlockTooLarge(cidr(huge)))
        );
    }
}
