//! Roles that lose the permission for Leases and regain it while replicas run.

use super::*;

/// A replica that writes without a Lease, beside a replica that held the Lease when the role lost
/// the permission.
struct RegainedLease {
    server: Server,
    role: watch::Sender<Answer>,
    weather: Weather,
    before: Replica,
    alone: Replica,
}

async fn replicas(with_standby: bool) -> (RegainedLease, Option<Replica>) {
    let server = Server::used();
    let (role, answer) = watch::channel(Answer::Allowed);
    let weather = Weather::Changing(answer);
    let mut before = replica(&server, "before", weather.clone(), false);
    in_the_end(before.leadership.gained()).await;
    let standby = with_standby.then(|| replica(&server, "standby", weather.clone(), false));
    seconds(5).await;
    role.send_replace(Answer::Forbidden);
    let mut alone = replica(&server, "alone", weather.clone(), false);
    in_the_end(alone.leadership.gained()).await;
    (
        RegainedLease {
            server,
            role,
            weather,
            before,
            alone,
        },
        standby,
    )
}

/// Asserts for `tenths` tenths of a second that at most one replica may write. Returns the replica
/// that may write at the end.
async fn watched(server: &Server, tenths: u32) -> String {
    let leaders = || -> Vec<String> {
        let state = server.state();
        let leading = state
            .leaderships
            .iter()
            .filter(|(_, leadership)| leadership.holds());
        leading.map(|(identity, _)| identity.clone()).collect()
    };
    for _ in 0..tenths {
        sleep(Duration::from_millis(100)).await;
        let leaders = leaders();
        assert!(leaders.len() <= 1, "{leaders:?} may write");
    }
    leaders().concat()
}

#[tokio::test(start_paused = true)]
async fn refused_holder_waits_for_a_leaseless_replica_when_leases_are_allowed_again() {
    // The role allows Leases again at various times between the attempts of the replica without a
    // Lease, which are 5 s apart.
    for distance in 0..5 {
        let (replicas, _) = replicas(false).await;
        seconds(distance).await;
        replicas.role.send_replace(Answer::Allowed);
        assert_eq!(watched(&replicas.server, 600).await, "before");
        assert_eq!(replicas.server.holder(), "before");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_standby_waits_for_a_leaseless_replica_when_leases_are_allowed_again() {
    for distance in 0..5 {
        let (replicas, standby) = replicas(true).await;
        replicas.before.task.abort();
        seconds(30 + distance).await;
        replicas.role.send_replace(Answer::Allowed);
        let leader = watched(&replicas.server, 600).await;
        assert!(
            ["standby", "alone"].contains(&leader.as_str()),
            "{leader:?}"
        );
        // A failed assertion in the server makes the task of a replica panic.
        assert!(
            standby.is_some_and(|standby| !standby.task.is_finished())
                && !replicas.alone.task.is_finished()
        );
    }
}

/// The waiting holder dies. The replica that takes its Lease has seen the Lease unchanged for as
/// long as the wait.
#[tokio::test(start_paused = true)]
async fn lease_of_a_dead_waiting_holder_is_acquired_after_the_wait() {
    let (replicas, _) = replicas(false).await;
    replicas.role.send_replace(Answer::Allowed);
    let third = replica(&replicas.server, "third", replicas.weather.clone(), false);
    seconds(3).await;
    replicas.before.task.abort();
    replicas.alone.task.abort();
    let died = Instant::now();
    let mut leadership = third.leadership.clone();
    in_the_end(leadership.gained()).await;
    let wait = Duration::from_secs(23)..=Duration::from_secs(29);
    assert!(wait.contains(&died.elapsed()), "{:?}", died.elapsed());
}

#[tokio::test(start_paused = true)]
async fn short_refusal_does_not_delay_the_renewal() {
    let server = Server::used();
    let (role, answer) = watch::channel(Answer::Allowed);
    let mut one = replica(&server, "one", Weather::Changing(answer), false);
    in_the_end(one.leadership.gained()).await;
    for _ in 0..5 {
        role.send_replace(Answer::Forbidden);
        seconds(5).await;
        role.send_replace(Answer::Allowed);
        for _ in 0..5 {
            assert!(one.leadership.holds());
            seconds(1).await;
        }
        assert_eq!(server.state().lease.as_ref().map(duration), Some(15));
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_beyond_the_right_to_write_delays_the_next_write() {
    let server = Server::used();
    let (role, answer) = watch::channel(Answer::Allowed);
    let mut one = replica(&server, "one", Weather::Changing(answer), false);
    in_the_end(one.leadership.gained()).await;
    role.send_replace(Answer::Forbidden);
    in_the_end(one.leadership.lost()).await;
    role.send_replace(Answer::Allowed);
    let begin = Instant::now();
    in_the_end(one.leadership.gained()).await;
    let wait = Duration::from_secs(25)..=Duration::from_secs(29);
    assert!(wait.contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert_eq!(server.state().lease.as_ref().map(duration), Some(15));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The role loses and regains the permission, each time for longer than the delay between two
    /// attempts. In between, replicas die and start, but at most one starts while the role forbids
    /// Leases: two would both act as the only replica. Shows SEC-85.
    #[test]
    fn replicas_with_intermittent_lease_permission_never_write_at_once(
        seed in any::<u64>(),
        turns in prop::collection::vec((21..400u32, any::<bool>(), any::<bool>()), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let runtime = runtime.expect("runtime");
        runtime.block_on(async {
            fastrand::seed(seed);
            let server = Server::unheld(None);
            let (role, answer) = watch::channel(Answer::Allowed);
            let weather = Weather::Changing(answer);
            let mut replicas: Vec<_> = ["a", "b"]
                .map(|name| replica(&server, name, weather.clone(), false))
                .into();
            watched(&server, 300).await;
            let mut may_write_without_lease = true;
            for (number, (tenths, dies, starts)) in turns.into_iter().enumerate() {
                let forbids = number % 2 == 0;
                role.send_replace(if forbids {
                    Answer::Forbidden
                } else {
                    Answer::Allowed
                });
                if dies && replicas.len() > 1 {
                    let died = replicas.remove(fastrand::usize(0..replicas.len()));
                    died.task.abort();
                }
                if starts && (may_write_without_lease || !forbids) {
                    may_write_without_lease &= !forbids;
                    replicas.push(replica(
                        &server,
                        &format!("next {number}"),
                        weather.clone(),
                        false,
                    ));
                }
                watched(&server, tenths).await;
            }
            role.send_replace(Answer::Allowed);
            let leader = watched(&server, 700).await;
            assert!(!leader.is_empty(), "somebody writes in the end");
            // A failed assertion in the server makes the task of a replica panic.
            for replica in replicas {
                replica.stop.cancel();
                replica.task.await.expect("no panic");
            }
        });
    }
}
