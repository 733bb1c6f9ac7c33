use ::time::Duration;

use super::*;

/// Returns a block with ordinals 0 and 1 of `a` and ordinal 2 of `b`.
fn shared() -> Block {
    let mut block = fresh();
    assign(&mut block, 2, "a");
    assign(&mut block, 1, "b");
    block
}

fn per_handle(pairs: &[(&str, usize)]) -> BTreeMap<HandleId, usize> {
    pairs
        .iter()
        .map(|&(handle, n)| (HandleId::new(handle), n))
        .collect()
}

#[test]
fn attribute_is_removed_with_its_last_address() {
    let mut block = shared();
    let released = block
        .release(&[release_request("10.0.0.0")], 0, NOW)
        .unwrap();
    assert_eq!(
        (released.released, released.per_handle),
        (vec![ip("10.0.0.0")], per_handle(&[("a", 1)]))
    );
    assert_eq!(block.allocations, [None, Some(0), Some(1), None]);
    assert_eq!(
        (block.unallocated.as_slice(), holders(&block)),
        (&[3, 0][..], vec!["a", "b"])
    );
    assert!(!block.sequence_number_for_allocation.contains_key("0"));

    block
        .release(&[release_request("10.0.0.1")], 0, NOW)
        .unwrap();
    assert_eq!(block.allocations, [None, None, Some(0), None]);
    assert_eq!(
        (block.unallocated.as_slice(), holders(&block)),
        (&[3, 0, 1][..], vec!["b"])
    );
}

#[test]
fn released_addresses_enter_the_free_list_in_ascending_order() {
    let mut block = shared();
    let requests = ["10.0.0.2", "10.0.0.0", "10.0.0.2"].map(release_request);
    let released = block.release(&requests, 0, NOW).unwrap();
    assert_eq!(released.per_handle, per_handle(&[("a", 1), ("b", 1)]));
    assert_eq!(block.unallocated, [3, 0, 2]);
}

#[test]
fn address_requested_twice_is_freed_at_once_and_only_once() {
    let mut block = shared();
    let requests = ["10.0.0.2", "10.0.0.0", "10.0.0.2"].map(release_request);
    assert_eq!(block.free_at_once(&requests), Ok(2));
    assert_eq!(block.unallocated, [3, 2, 0]);
    assert!(block.is_consistent());
}

#[test]
fn release_of_free_cooling_or_foreign_addresses_reports_unallocated() {
    let mut block = shared();
    block
        .release(&[release_request("10.0.0.2")], 60, NOW)
        .unwrap();
    let before = block.clone();
    let requests = ["10.0.0.3", "10.0.0.2", "10.0.0.9", "fd00::1"].map(release_request);
    let released = block.release(&requests, 60, NOW).unwrap();
    assert_eq!(released.unallocated, requests.map(|request| request.ip));
    assert_eq!((released.released, block), (vec![], before));
}

#[test]
fn single_mismatch_rejects_the_whole_release() {
    let before = shared();
    let (stored, next) = (before.sequence_of(2).unwrap(), before.sequence_number);
    for (handle, sequence, expected) in [
        (Some("b"), Some(stored), None),
        (Some("b\r"), None, None),
        (
            Some("a"),
            None,
            Some(
                "the given handle (a) does not match (b) when attempting to release IP 10.0.0.2"
                    .to_owned(),
            ),
        ),
        (
            Some("a"),
            Some(next),
            Some(format!(
                "the given sequence number ({next}) does not match ({stored}) when attempting to \
                 release IP 10.0.0.2"
            )),
        ),
    ] {
        let mut block = before.clone();
        let request = ReleaseRequest {
            ip: ip("10.0.0.2"),
            handle: handle.map(HandleId::new),
            sequence,
        };
        let outcome = block.release(&[release_request("10.0.0.0"), request], 0, NOW);
        assert_eq!(outcome.as_ref().err().map(ToString::to_string), expected);
        assert_eq!(block == before, expected.is_some());
    }
}

#[test]
fn sequence_number_is_checked_even_for_a_free_address() {
    let request = ReleaseRequest {
        sequence: Some(5),
        ..release_request("10.0.0.3")
    };
    assert_eq!(
        shared()
            .release(&[request], 0, NOW)
            .unwrap_err()
            .to_string(),
        "the given sequence number (5) does not match (0) when attempting to release IP 10.0.0.3"
    );
}

#[test]
fn allocation_without_a_handle_is_released_and_not_counted() {
    let mut block = fresh();
    let request = BlockRequest {
        handle: None,
        attributes: &attributes("x"),
        requester: &host("node1"),
        check_affinity: false,
    };
    block.assign(1, &request, &Reservations::none()).unwrap();
    let named = ReleaseRequest {
        handle: Some(HandleId::new("a")),
        ..release_request("10.0.0.0")
    };
    assert_eq!(
        block.release(&[named], 0, NOW).unwrap_err().to_string(),
        "the given handle (a) does not match () when attempting to release IP 10.0.0.0"
    );
    let released = block
        .release(&[release_request("10.0.0.0")], 0, NOW)
        .unwrap();
    assert_eq!((released.released.len(), released.per_handle.len()), (1, 0));
}

#[test]
fn release_by_handle_frees_all_addresses_of_the_handle() {
    let mut block = shared();
    let number = block.sequence_number;
    assert_eq!(
        block.release_by_handle(&HandleId::new("c"), None, 0, NOW),
        Ok(0)
    );
    assert_eq!(block, shared());
    assert_eq!(
        block.release_by_handle(&HandleId::new("a"), None, 0, NOW),
        Ok(2)
    );
    assert_eq!(
        (block.unallocated.as_slice(), holders(&block)),
        (&[3, 0, 1][..], vec!["b"])
    );
    assert_eq!(
        block.sequence_number, number,
        "the write counts, not the operation"
    );
}

#[test]
fn release_by_handle_skips_other_sequence_numbers() {
    let mut block = shared();
    assign(&mut block, 1, "a");
    let first = block.sequence_of(0);
    assert_eq!(
        block.release_by_handle(&HandleId::new("a"), Some(1), 0, NOW),
        Ok(0)
    );
    assert_eq!(
        block.release_by_handle(&HandleId::new("a"), first, 0, NOW),
        Ok(2)
    );
    assert_eq!(block.addresses_of(&HandleId::new("a")), [ip("10.0.0.3")]);
}

/// The values are those of upstream's allocator with a cooldown of 30 s.
#[test]
fn released_address_cools_down_as_in_upstream() {
    let mut base = fresh();
    let clock = base.sequence_number;
    assign(&mut base, 1, "p0");
    assign(&mut base, 1, "p1");
    let by_handle =
        |block: &mut Block| drop(block.release_by_handle(&HandleId::new("p0"), None, 30, NOW));
    let by_address =
        |block: &mut Block| drop(block.release(&[release_request("10.0.0.0")], 30, NOW));
    for (release, entry) in [
        (&by_handle as &dyn Fn(&mut Block), clock),
        (&by_address, clock + 2),
    ] {
        let mut block = base.clone();
        release(&mut block);
        assert_eq!(
            (block.allocations.as_slice(), block.unallocated.as_slice()),
            (&[Some(1), Some(0), None, None][..], &[2, 3][..])
        );
        assert_eq!(holders(&block), ["p1", "-"]);
        assert_eq!(
            block.attributes[1].released_at.as_deref(),
            Some("2026-08-22T01:02:03Z")
        );
        assert_eq!(
            (block.sequence_of(0), block.sequence_of(1)),
            (Some(entry), Some(clock + 1))
        );
        let cooling = block.allocation(ip("10.0.0.0")).unwrap();
        assert!(cooling.is_cooling());
        assert_eq!(
            cooling.released_at(),
            Some(datetime!(2026-08-22 01:02:03 UTC))
        );

        // The release time has whole seconds, and the comparison is strict.
        let whole_seconds = datetime!(2026-08-22 01:02:03 UTC);
        assert_eq!(
            block.collect_garbage(30, whole_seconds + Duration::seconds(30)),
            Ok(false)
        );
        assert_eq!(
            block.collect_garbage(30, whole_seconds + Duration::milliseconds(30_001)),
            Ok(true)
        );
        assert_eq!(
            (block.unallocated.as_slice(), holders(&block)),
            (&[2, 3, 0][..], vec!["p1"])
        );
        assert_eq!(block.sequence_of(0), None);
    }
}

#[test]
fn cooled_down_addresses_are_freed_by_age() {
    let resting = |cooldown, later: Duration| {
        let mut block = shared();
        block
            .release(
                &[release_request("10.0.0.0")],
                3600,
                NOW - Duration::seconds(100),
            )
            .unwrap();
        block
            .release(&[release_request("10.0.0.2")], 3600, NOW)
            .unwrap();
        let changed = block.collect_garbage(cooldown, NOW + later).unwrap();
        (changed, block.unallocated)
    };
    assert_eq!(resting(3600, Duration::ZERO), (false, vec![3]));
    assert_eq!(resting(50, Duration::ZERO), (true, vec![3, 0]));
    assert_eq!(resting(50, Duration::seconds(60)), (true, vec![3, 0, 2]));
    // The clock went back.
    assert_eq!(resting(0, Duration::minutes(-20)), (false, vec![3]));
    assert_eq!(resting(-1, Duration::hours(-1)), (true, vec![3, 0, 2]));
    // The cooldown was disabled after the release.
    assert_eq!(resting(0, Duration::ZERO), (true, vec![3, 0, 2]));
    assert_eq!(resting(i64::MAX, Duration::days(365)), (false, vec![3]));
}

/// The clock of the DEL of 10.0.0.0 was ahead.
#[test]
fn release_time_of_a_wrong_clock_counts_as_now_and_leaves_other_cooldowns() {
    let ahead = |by: Duration| {
        let mut block = shared();
        block
            .release(
                &[release_request("10.0.0.2")],
                60,
                NOW - Duration::seconds(10),
            )
            .unwrap();
        // For the clock that is ahead, the other cooldown must not be over.
        block
            .release(&[release_request("10.0.0.0")], i64::MAX, NOW + by)
            .unwrap();
        block
    };
    let at = |block: &Block, address: &str| {
        block
            .allocation(ip(address))
            .and_then(|held| held.released_at())
    };
    let second = NOW.replace_nanosecond(0).unwrap();
    for by in [
        Duration::seconds(1202),
        Duration::hours(1),
        Duration::days(3650),
    ] {
        let mut block = ahead(by);
        let other = at(&block, "10.0.0.2");
        assert_eq!(block.collect_garbage(60, NOW), Ok(true), "{by}");
        assert_eq!(
            (at(&block, "10.0.0.0"), at(&block, "10.0.0.2")),
            (Some(second), other)
        );
        assert_eq!(block.unallocated, [3], "no cooldown is over");
        assert_eq!(
            block.collect_garbage(60, NOW + Duration::seconds(52)),
            Ok(true)
        );
        assert_eq!(
            block.unallocated,
            [3, 2],
            "the other cooldown ends when it would have ended"
        );
        assert_eq!(
            block.collect_garbage(60, NOW + Duration::seconds(62)),
            Ok(true)
        );
        assert_eq!(block.unallocated, [3, 2, 0]);
    }
    let mut block = ahead(Duration::days(1));
    block.collect_garbage(0, NOW).unwrap();
    assert_eq!(block.unallocated, [3, 0, 2], "without a cooldown");
}

/// All release times are those of a correct clock.
#[test]
fn reader_whose_clock_is_behind_changes_no_cooldown() {
    for behind in [
        Duration::seconds(1),
        Duration::minutes(19),
        Duration::minutes(20),
    ] {
        let mut block = shared();
        block
            .release(&[release_request("10.0.0.0")], 60, NOW)
            .unwrap();
        let before = block.clone();
        assert_eq!(
            (block.collect_garbage(60, NOW - behind), &block),
            (Ok(false), &before),
            "{behind}"
        );
        assert_eq!(
            block.collect_garbage(60, NOW + Duration::seconds(62)),
            Ok(true)
        );
    }
}

/// The clock of the reader is behind by an hour, which an allocation shows.
#[test]
fn reader_whose_clock_is_behind_an_allocation_corrects_no_release_time() {
    let mut block = shared();
    block
        .release(&[release_request("10.0.0.0")], 60, NOW)
        .unwrap();
    let in_use = block
        .attributes
        .iter_mut()
        .find(|attribute| attribute.released_at.is_none())
        .unwrap();
    let (date, hour) = (NOW.date(), NOW.hour());
    in_use.active_owner.insert(
        "timestamp".into(),
        format!("{date} {hour:02}:00:00 +0000 UTC"),
    );
    let before = block.clone();
    assert_eq!(
        (block.collect_garbage(60, NOW - Duration::hours(2)), &block),
        (Ok(false), &before)
    );
}

#[test]
fn unreferenced_attributes_are_dropped_and_references_renumbered() {
    let mut block = shared();
    block.attributes.insert(
        1,
        Attribute {
            handle_id: Some("nobody".into()),
            ..Attribute::default()
        },
    );
    block.allocations[2] = Some(2);
    assert_eq!(block.collect_garbage(0, NOW), Ok(true));
    assert_eq!(
        (block.allocations.as_slice(), holders(&block)),
        (&[Some(0), Some(0), Some(1), None][..], vec!["a", "b"])
    );
    assert_eq!(block.collect_garbage(0, NOW), Ok(false));
    assert_eq!(fresh().collect_garbage(0, NOW), Ok(false));
}

#[test]
fn release_unchanged_skips_only_the_mismatched_addresses() {
    let mut block = shared();
    let stale = ReleaseRequest {
        sequence: Some(u64::MAX),
        ..release_request("10.0.0.0")
    };
    let other = ReleaseRequest {
        handle: Some(HandleId::new("b")),
        ..release_request("10.0.0.1")
    };
    let right = ReleaseRequest {
        handle: Some(HandleId::new("b")),
        ..release_request("10.0.0.2")
    };
    let free = ReleaseRequest {
        sequence: Some(7),
        ..release_request("10.0.0.3")
    };
    let requests = [stale, other, right, free];
    let (released, refused) = block.release_unchanged(&requests, 30, NOW).unwrap();
    assert_eq!(
        (released.released, released.unallocated),
        (vec![ip("10.0.0.2")], vec![ip("10.0.0.3")])
    );
    assert_eq!(released.per_handle, per_handle(&[("b", 1)]));
    assert!(
        matches!(
            refused[..],
            [ReleaseError::Sequence { .. }, ReleaseError::Handle { .. }]
        ),
        "{refused:?}"
    );
    let (again, refused) = block.release_unchanged(&requests[2..], 30, NOW).unwrap();
    assert_eq!(
        (again.released.len(), again.unallocated.len(), refused.len()),
        (0, 2, 0)
    );
}
