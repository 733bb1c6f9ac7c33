//! The creator of the Lease waits until no other replica can be writing without a Lease.

use super::*;

/// The sum of the duration of a Lease, 15 s, and the longest time of a write, 10 s.
const SETTLING: Duration = Duration::from_secs(25);

fn duration_of(server: &Server) -> i32 {
    server
        .state()
        .lease
        .as_ref()
        .map(duration)
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn lease_creator_waits_before_writing_and_records_the_wait_in_the_lease() {
    let (server, begin) = (Server::default(), Instant::now());
    let mut one = replica(&server, "one", Weather::Fair, false);
    for _ in 0..24 {
        seconds(1).await;
        assert!(!one.leadership.holds());
        assert_eq!(
            (server.holder().as_str(), duration_of(&server)),
            ("one", 25)
        );
    }
    in_the_end(one.leadership.gained()).await;
    assert!(
        (SETTLING..SETTLING + Duration::from_secs(2)).contains(&begin.elapsed()),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(duration_of(&server), 15);
    assert!(server.state().writes > 10, "it is renewed meanwhile");
}

#[tokio::test(start_paused = true)]
async fn creator_stopped_before_its_wait_ends_does_not_release_the_lease() {
    for (wait, holder) in [(1, "one"), (24, "one"), (30, "")] {
        let server = Server::default();
        let one = replica(&server, "one", Weather::Fair, false);
        seconds(wait).await;
        one.stop.cancel();
        one.task.await.expect("no panic");
        assert_eq!(server.holder(), holder, "after {wait} s");
        let mut two = replica(&server, "two", Weather::Fair, false);
        let begin = Instant::now();
        in_the_end(two.leadership.gained()).await;
        let expected = if holder.is_empty() {
            Duration::ZERO
        } else {
            SETTLING
        };
        assert!(
            (expected..=expected + Duration::from_secs(2)).contains(&begin.elapsed()),
            "{:?}",
            begin.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn lease_of_a_dead_creator_is_acquired_after_the_same_wait() {
    let server = Server::default();
    let one = replica(&server, "one", Weather::Fair, false);
    let mut two = replica(&server, "two", Weather::Fair, false);
    seconds(20).await;
    let (one, two) = if server.holder() == "one" {
        (one, &mut two)
    } else {
        panic!("the second was faster")
    };
    one.task.abort();
    let last = Instant::now();
    in_the_end(two.leadership.gained()).await;
    assert!(
        last.elapsed() >= SETTLING - Duration::from_secs(2),
        "{:?}",
        last.elapsed()
    );
    assert_eq!(
        (server.holder().as_str(), duration_of(&server)),
        ("two", 15),
        "who has waited writes at once"
    );
}

/// The response to the creation is lost, and the next read shows the Lease with this replica as the
/// holder.
#[tokio::test(start_paused = true)]
async fn creator_that_lost_the_creation_response_waits_too() {
    let (server, begin) = (Server::default(), Instant::now());
    let mut lease = Lease::default();
    let spec = lease.spec.get_or_insert_default();
    (spec.holder_identity, spec.lease_duration_seconds) = (Some("one".into()), Some(25));
    server.write(lease, None).expect("nobody else is there");
    let mut one = replica(&server, "one", Weather::Fair, false);
    in_the_end(one.leadership.gained()).await;
    assert!(begin.elapsed() >= SETTLING, "{:?}", begin.elapsed());
}
