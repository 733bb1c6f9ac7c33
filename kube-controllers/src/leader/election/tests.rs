use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::jiff::Timestamp;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn wall(second: i64) -> MicroTime {
    MicroTime(Timestamp::from_second(second).expect("in range"))
}

fn lease(version: u32, holder: &str) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.resource_version = Some(version.to_string());
    lease.metadata.labels = Some([("who".into(), "someone".into())].into());
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(holder.into());
    spec.lease_duration_seconds = Some(15);
    spec.lease_transitions = Some(7);
    spec.acquire_time = Some(wall(1));
    spec.renew_time = Some(wall(2));
    spec.strategy = Some("OldestEmulationVersion".into());
    lease
}

fn election(seen: Option<Lease>, now: Instant) -> Election {
    let mut election = Election::new("we".into(), Timing::default());
    election.observe(seen, now);
    election
}

fn replaced(step: ElectionStep) -> Lease {
    let ElectionStep::Replace(lease) = step else {
        panic!("{step:?}")
    };
    *lease
}

#[test]
fn missing_lease_is_created() {
    let ElectionStep::Create(lease) =
        election(None, Instant::now()).step(Instant::now(), wall(9), false)
    else {
        panic!("no lease")
    };
    let expected = LeaseSpec {
        holder_identity: Some("we".into()),
        lease_duration_seconds: Some(25),
        lease_transitions: Some(0),
        acquire_time: Some(wall(9)),
        renew_time: Some(wall(9)),
        ..LeaseSpec::default()
    };
    assert_eq!(lease.spec, Some(expected));
}

#[test]
fn deleted_lease_of_the_leader_is_recreated_without_a_wait() {
    let ElectionStep::Create(lease) =
        election(None, Instant::now()).step(Instant::now(), wall(9), true)
    else {
        panic!("no lease")
    };
    assert_eq!(
        lease.spec.and_then(|spec| spec.lease_duration_seconds),
        Some(15)
    );
}

#[test]
fn own_lease_is_renewed_over_the_observed_version_unchanged() {
    let now = Instant::now();
    let renewed = replaced(election(Some(lease(3, "we")), now).step(now, wall(9), false));
    let mut expected = lease(3, "we");
    expected.spec.get_or_insert_default().renew_time = Some(wall(9));
    assert_eq!(renewed, expected);
}

#[test]
fn foreign_lease_is_left_alone_until_unchanged_for_its_duration() {
    let begin = Instant::now();
    let mut election = election(Some(lease(3, "other")), begin);
    assert_eq!(
        election.step(begin + 14 * SECOND, wall(9), false),
        ElectionStep::Wait(begin + 15 * SECOND)
    );
    election.observe(Some(lease(3, "other")), begin + 14 * SECOND);
    assert_eq!(
        election.step(begin + 14 * SECOND, wall(9), false),
        ElectionStep::Wait(begin + 15 * SECOND)
    );
    election.observe(Some(lease(4, "other")), begin + 14 * SECOND);
    assert_eq!(
        election.step(begin + 28 * SECOND, wall(9), false),
        ElectionStep::Wait(begin + 29 * SECOND)
    );
    let taken = replaced(election.step(begin + 29 * SECOND, wall(9), false));
    let spec = taken.spec.expect("a spec");
    assert_eq!(
        taken.metadata,
        lease(4, "").metadata,
        "its version and labels"
    );
    assert_eq!(
        (spec.holder_identity.as_deref(), spec.lease_transitions),
        (Some("we"), Some(8))
    );
    assert_eq!(
        (spec.acquire_time, spec.renew_time),
        (Some(wall(9)), Some(wall(9)))
    );
}

#[test]
fn recently_released_lease_is_acquired_without_a_wait() {
    let now = Instant::now();
    // The fixture was renewed in second 2.
    for (second, duration) in [(2, 15), (1, 15), (12, 15), (13, 25), (-9, 25), (3600, 25)] {
        let taken = replaced(election(Some(lease(3, "")), now).step(now, wall(second), false))
            .spec
            .expect("a spec");
        assert_eq!(
            (taken.lease_duration_seconds, taken.lease_transitions),
            (Some(duration), Some(8)),
            "{second}"
        );
    }
    let mut unused = lease(3, "");
    unused.spec.get_or_insert_default().renew_time = None;
    let taken = replaced(election(Some(unused), now).step(now, wall(9), false));
    assert_eq!(
        taken.spec.and_then(|spec| spec.lease_duration_seconds),
        Some(25)
    );
}

#[test]
fn lease_duration_of_a_foreign_holder_is_respected() {
    let now = Instant::now();
    let mut long = lease(3, "other");
    long.spec.get_or_insert_default().lease_duration_seconds = Some(60);
    assert_eq!(
        election(Some(long.clone()), now).step(now, wall(9), false),
        ElectionStep::Wait(now + 60 * SECOND)
    );
    long.spec.get_or_insert_default().lease_duration_seconds = None;
    assert_eq!(
        election(Some(long.clone()), now).step(now, wall(9), false),
        ElectionStep::Wait(now + 15 * SECOND)
    );
    long.spec = None;
    replaced(election(Some(long), now).step(now, wall(9), false));
}

fn duration(step: ElectionStep) -> Option<i32> {
    replaced(step)
        .spec
        .and_then(|spec| spec.lease_duration_seconds)
}

#[test]
fn refused_holder_renews_with_a_wait_only_after_its_right_to_write_ended() {
    let begin = Instant::now();
    let mut election = election(Some(lease(3, "we")), begin);
    election.refused();
    assert_eq!(duration(election.step(begin, wall(9), true)), Some(15));
    let renewed = replaced(election.step(begin, wall(9), false));
    assert_eq!(
        renewed
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds),
        Some(25)
    );
    election.observe(Some(renewed.clone()), begin + SECOND);
    assert_eq!(
        election.waits_until(begin + 25 * SECOND),
        Some(begin + 26 * SECOND)
    );
    assert_eq!(election.released(begin + 25 * SECOND, wall(9)), None);
    // A refusal in between makes the wait start over.
    election.refused();
    assert_eq!(
        duration(election.step(begin + 20 * SECOND, wall(9), false)),
        Some(25)
    );
    election.observe(Some(renewed), begin + 20 * SECOND);
    assert_eq!(
        election.waits_until(begin + 44 * SECOND),
        Some(begin + 45 * SECOND)
    );
    assert_eq!(
        (
            election.waits_until(begin + 45 * SECOND),
            duration(election.step(begin + 45 * SECOND, wall(9), false))
        ),
        (None, Some(15))
    );
    assert!(election.released(begin + 45 * SECOND, wall(9)).is_some());
}

#[test]
fn refused_standby_acquires_with_a_wait_until_allowed_for_a_lease_and_a_write() {
    let begin = Instant::now();
    for (taken, expected) in [(15, 25), (24, 25), (25, 15)] {
        let mut election = election(Some(lease(3, "other")), begin);
        election.refused();
        election.observe(Some(lease(3, "other")), begin);
        assert_eq!(
            duration(election.step(begin + taken * SECOND, wall(9), false)),
            Some(expected),
            "{taken}"
        );
    }
}

#[test]
fn only_an_own_lease_is_released_and_without_a_holder() {
    let now = Instant::now();
    let returned = election(Some(lease(3, "we")), now)
        .released(now, wall(9))
        .expect("it is ours");
    let spec = returned.spec.expect("a spec");
    assert_eq!(
        (spec.holder_identity.as_deref(), spec.lease_duration_seconds),
        (Some(""), Some(1))
    );
    assert_eq!(
        (
            spec.lease_transitions,
            returned.metadata.resource_version.as_deref()
        ),
        (Some(7), Some("3"))
    );
    assert_eq!(
        election(Some(lease(3, "other")), now).released(now, wall(9)),
        None
    );
    assert_eq!(election(None, now).released(now, wall(9)), None);
}

/// A deleted Lease that the role does not allow to create again is refused to every replica of the
/// election.
#[test]
fn former_holder_is_remembered_after_the_lease_is_deleted() {
    let now = Instant::now();
    for holder in ["we", "other"] {
        let mut election = election(Some(lease(3, holder)), now);
        election.observe(None, now);
        assert!(election.was_held);
    }
    for seen in [None, Some(lease(3, ""))] {
        assert!(!election(seen, now).was_held);
    }
}
