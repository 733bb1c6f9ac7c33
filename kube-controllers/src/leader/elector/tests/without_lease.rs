use super::*;

#[tokio::test(start_paused = true)]
async fn lasting_refusal_makes_a_single_replica_lead_and_poll_every_five_seconds() {
    let server = Server::default();
    let (role, answer) = watch::channel(Answer::Forbidden);
    let mut one = replica(&server, "one", Weather::Changing(answer), false);
    let begin = Instant::now();
    in_the_end(one.leadership.gained()).await;
    let (settling, retry) = (
        Timing::default().first_write_delay(),
        Timing::default().retry,
    );
    assert!(
        (settling..=settling + retry).contains(&begin.elapsed()),
        "{:?}",
        begin.elapsed()
    );
    for _ in 0..600 {
        assert!(one.leadership.holds());
        seconds(1).await;
    }
    let looks = server.state().looks.clone();
    let later = looks
        .iter()
        .filter(|check_interval| **check_interval > begin + settling + retry)
        .count();
    assert!((118..=120).contains(&later), "every five seconds: {later}");
    // The role now allows Leases, and another replica takes the Lease first.
    let mut two = replica(&server, "two", Weather::Fair, false);
    seconds(1).await;
    role.send_replace(Answer::Allowed);
    let begin = Instant::now();
    in_the_end(one.leadership.lost()).await;
    assert!(
        begin.elapsed() <= Timing::default().check_interval,
        "{:?}",
        begin.elapsed()
    );
    in_the_end(two.leadership.gained()).await;
    assert_eq!(server.holder(), "two");
}

/// Shows SEC-83.
#[tokio::test(start_paused = true)]
async fn right_without_a_lease_ends_ten_seconds_after_the_last_refused_request() {
    for late in [0, 2, 4] {
        let (server, begin) = (Server::default(), Instant::now());
        let (allowed, late) = (begin + Duration::from_secs(82), Duration::from_secs(late));
        // From `allowed` on, no response arrives that could show that the role allows the Lease.
        let weather = Weather::Refusing {
            allowed,
            late,
            back: begin + Duration::from_secs(3600),
        };
        let mut one = replica(&server, "one", weather, false);
        in_the_end(one.leadership.gained()).await;
        let gained = Instant::now();
        in_the_end(one.leadership.lost()).await;
        let looks = server.state().looks.clone();
        let refused: Vec<_> = looks
            .iter()
            .filter(|sent| **sent < allowed)
            .copied()
            .collect();
        assert_eq!(
            Instant::now(),
            refused[refused.len() - 1] + Duration::from_secs(10),
            "answers are {late:?} late"
        );
        let apart = |pair: &[Instant]| pair[1] - pair[0];
        let alone: Vec<_> = refused.into_iter().filter(|sent| *sent >= gained).collect();
        let regular = alone
            .windows(2)
            .map(apart)
            .filter(|apart| *apart == Duration::from_secs(5))
            .count();
        assert!(regular > 5, "{alone:?}");
        assert_eq!(
            regular,
            alone.len() - 1,
            "counted from when they were sent, not answered: {alone:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn leaseless_replica_stops_while_the_server_is_unreachable_or_the_process_paused() {
    let server = Server::default();
    let (role, answer) = watch::channel(Answer::Forbidden);
    let mut one = replica(&server, "one", Weather::Changing(answer), false);
    in_the_end(one.leadership.gained()).await;
    role.send_replace(Answer::Away);
    let begin = Instant::now();
    in_the_end(one.leadership.lost()).await;
    assert!(
        begin.elapsed() <= Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    seconds(600).await;
    assert!(!one.leadership.holds());
    role.send_replace(Answer::Forbidden);
    in_the_end(one.leadership.gained()).await;
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(
        !one.leadership.holds(),
        "another may have created a Lease meanwhile"
    );
    in_the_end(one.leadership.gained()).await;
    // The replica takes part in the election once it sees that the role allows the Lease.
    role.send_replace(Answer::Allowed);
    seconds(5 + 25 + 2).await;
    assert!(one.leadership.holds());
    assert_eq!(server.holder(), "one");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A replica writes without a Lease when the role begins to allow Leases, and may notice that
    /// late. The other replica creates the Lease, or takes one that had no holder for long. Two
    /// refused requests are at most 6.9 s apart: one is answered after the 25 s that the replica
    /// waits, and was sent before the role allowed Leases. Shows SEC-83.
    #[test]
    fn lease_holder_and_leaseless_replica_never_write_at_once(
        seed in any::<u64>(), is_there in any::<bool>(), granted in 32_000..52_000u64,
        late in 0..4900u64,
        away in 0..30_000u64, created in 0..30_000u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let runtime = runtime.expect("runtime");
        runtime.block_on(async {
            fastrand::seed(seed);
            let (server, begin) = (
                if is_there {
                    Server::unheld(None)
                } else {
                    Server::default()
                },
                Instant::now(),
            );
            let after = |milliseconds| begin + Duration::from_millis(milliseconds);
            let (allowed, back) = (after(granted), after(granted + away));
            let weather = Weather::Refusing {
                allowed,
                late: Duration::from_millis(late),
                back,
            };
            let mut one = replica(&server, "one", weather, false);
            in_the_end(one.leadership.gained()).await;
            tokio::time::sleep_until(after(granted + created)).await;
            let two = replica(&server, "two", Weather::Fair, false);
            for _ in 0..1000 {
                sleep(Duration::from_millis(100)).await;
                assert!(
                    !(one.leadership.holds() && two.leadership.holds()),
                    "two write after {:?}",
                    begin.elapsed(),
                );
            }
            assert!(
                one.leadership.holds() != two.leadership.holds(),
                "somebody writes in the end"
            );
            // A failed assertion in the server makes the task of a replica panic.
            for replica in [one, two] {
                replica.stop.cancel();
                replica.task.await.expect("no panic");
            }
        });
    }
}

/// The leader continues by the Lease that it renewed a moment ago, while the other replica is
/// refused from the start. Shows SEC-84.
#[tokio::test(start_paused = true)]
async fn replica_started_after_leases_are_forbidden_leads_after_its_predecessor() {
    let server = Server::used();
    let (role, answer) = watch::channel(Answer::Allowed);
    let mut one = replica(&server, "one", Weather::Changing(answer.clone()), false);
    in_the_end(one.leadership.gained()).await;
    role.send_replace(Answer::Forbidden);
    let two = replica(&server, "two", Weather::Changing(answer), false);
    for _ in 0..300 {
        sleep(Duration::from_millis(100)).await;
        assert!(
            !(one.leadership.holds() && two.leadership.holds()),
            "two write"
        );
    }
    assert!(!one.leadership.holds() && two.leadership.holds());
}

#[tokio::test(start_paused = true)]
async fn temporary_refusal_gives_no_leadership_beside_the_holder() {
    let server = Server::used();
    let mut two = replica(&server, "two", Weather::Fair, false);
    in_the_end(two.leadership.gained()).await;
    let (role, answer) = watch::channel(Answer::Forbidden);
    let one = replica(&server, "one", Weather::Changing(answer), false);
    // The server is unreachable between the answers.
    for answer in [
        Answer::Forbidden,
        Answer::Away,
        Answer::Forbidden,
        Answer::Away,
        Answer::Forbidden,
        Answer::Allowed,
    ] {
        role.send_replace(answer);
        for _ in 0..12 {
            assert!(two.leadership.holds() && !one.leadership.holds());
            seconds(1).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_server_restarts_the_count_of_refusals() {
    let server = Server::default();
    let (role, answer) = watch::channel(Answer::Forbidden);
    let one = replica(&server, "one", Weather::Changing(answer), false);
    for _ in 0..20 {
        // Shorter than the shortest delay between two attempts.
        sleep(Duration::from_millis(900)).await;
        role.send_replace(Answer::Away);
        seconds(2).await;
        assert!(!one.leadership.holds());
        role.send_replace(Answer::Forbidden);
    }
}

#[tokio::test(start_paused = true)]
async fn required_election_gives_no_leadership_without_a_lease() {
    let server = Server::default();
    let (_role, answer) = watch::channel(Answer::Forbidden);
    let one = replica(&server, "one", Weather::Changing(answer), true);
    seconds(600).await;
    assert!(!one.leadership.holds());
}
