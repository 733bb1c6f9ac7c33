mod creation;
mod refusals;
mod regained;
mod without_lease;

use std::sync::{Arc, Mutex};

use k8s_openapi::api::coordination::v1::Lease;
use proptest::prelude::*;
use tokio::task::JoinHandle;

use super::*;
use crate::leader::Leadership;

/// A server with one Lease, which checks that no other replica may write when the Lease is taken.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Lease>,
    version: u64,
    /// The times at which reads of the Lease were sent, including failed ones.
    looks: Vec<Instant>,
    requests: usize,
    writes: usize,
    /// The right to write of each replica, by identity.
    leaderships: Vec<(String, Leadership)>,
}

/// A candidate's connection, which delays or fails requests.
struct Connection {
    server: Server,
    weather: Weather,
}

#[derive(Clone)]
enum Weather {
    Fair,
    /// The outcome that the channel holds at the time of the request.
    Changing(watch::Receiver<Answer>),
    /// Requests and responses are late or lost, until this time.
    Storm(Instant),
    /// The role forbids the Lease until `allowed`, each response takes `late`, and the server is
    /// unreachable until `back`.
    Refusing {
        allowed: Instant,
        late: Duration,
        back: Instant,
    },
}

#[derive(Clone, Copy)]
enum Answer {
    Allowed,
    Forbidden,
    Away,
    /// No response comes.
    Silent,
}

impl Connection {
    async fn passage(&self) -> Result<(), LeaseError> {
        match &self.weather {
            Weather::Storm(end) if Instant::now() < *end => {
                let late = match fastrand::u8(0..20) {
                    0 | 1 => return Err(LeaseError::Other("connection refused".into())),
                    2 => 60_000,
                    3..8 => fastrand::u64(0..4000),
                    _ => fastrand::u64(0..100),
                };
                sleep(Duration::from_millis(late)).await;
                Ok(())
            }
            Weather::Changing(answer) => {
                let answer = *answer.borrow();
                match answer {
                    Answer::Allowed => Ok(()),
                    Answer::Forbidden => Err(LeaseError::Forbidden("cannot get leases".into())),
                    Answer::Away => Err(LeaseError::Other("connection refused".into())),
                    Answer::Silent => std::future::pending().await,
                }
            }
            Weather::Refusing {
                allowed,
                late,
                back,
            } => {
                let is_allowed = Instant::now() >= *allowed;
                sleep(*late).await;
                match (is_allowed, Instant::now() >= *back) {
                    (false, _) => Err(LeaseError::Forbidden("cannot get leases".into())),
                    (true, false) => Err(LeaseError::Other("connection refused".into())),
                    (true, true) => Ok(()),
                }
            }
            Weather::Fair | Weather::Storm(_) => Ok(()),
        }
    }

    async fn write(&self, lease: Lease, expected: Option<String>) -> Result<Lease, LeaseError> {
        self.passage().await?;
        let written = self.server.write(lease, expected)?;
        self.passage().await?;
        Ok(written)
    }
}

impl Server {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no panic under the lock")
    }

    fn write(&self, mut lease: Lease, expected: Option<String>) -> Result<Lease, LeaseError> {
        let mut state = self.state();
        state.requests += 1;
        if state
            .lease
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone())
            != expected
        {
            return Err(LeaseError::Conflict);
        }
        let holder = holder(&lease);
        for (identity, leadership) in &state.leaderships {
            // A holder that waits, because other replicas may write without a Lease, does not write
            // yet. The duration in its Lease shows that the holder waits.
            let is_waited_for = duration(&lease) > 15;
            let may_write = leadership.holds() && !is_waited_for;
            assert!(
                *identity == holder || !may_write,
                "{identity} may write when {holder} takes the lease"
            );
        }
        state.version += 1;
        state.writes += 1;
        lease.metadata.resource_version = Some(state.version.to_string());
        state.lease = Some(lease.clone());
        Ok(lease)
    }

    fn holder(&self) -> String {
        self.state().lease.as_ref().map(holder).unwrap_or_default()
    }

    /// Returns a server with a Lease that was released a moment ago, so that the next replica takes
    /// it without a wait.
    fn used() -> Self {
        Self::unheld(Some(wall_clock()))
    }

    fn unheld(released: Option<MicroTime>) -> Self {
        let (server, mut lease) = (Server::default(), Lease::default());
        lease.metadata.resource_version = Some("0".into());
        let spec = lease.spec.get_or_insert_default();
        (spec.holder_identity, spec.renew_time) = (Some(String::new()), released);
        server.state().lease = Some(lease);
        server
    }
}

fn duration(lease: &Lease) -> i32 {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds)
        .unwrap_or_default()
}

fn holder(lease: &Lease) -> String {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.clone())
        .unwrap_or_default()
}

impl Leases for Connection {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        self.server.state().looks.push(Instant::now());
        self.passage().await?;
        let lease = {
            let mut state = self.server.state();
            state.requests += 1;
            state.lease.clone()
        };
        self.passage().await?;
        Ok(lease)
    }

    async fn create(&self, lease: Lease) -> Result<Lease, LeaseError> {
        self.write(lease, None).await
    }

    async fn replace(&self, lease: Lease) -> Result<Lease, LeaseError> {
        let expected = lease.metadata.resource_version.clone();
        assert!(expected.is_some(), "an update without a precondition");
        self.write(lease, expected).await
    }
}

struct Replica {
    leadership: Leadership,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn replica(server: &Server, identity: &str, weather: Weather, required: bool) -> Replica {
    let config = LeaderElectionConfig {
        namespace: "kube-system".into(),
        name: "calico-kube-controllers".into(),
        identity: identity.into(),
        required,
        timing: Timing::default(),
    };
    let (sender, term) = watch::channel(LeadershipTerm::No);
    let leadership = Leadership::new(term);
    server
        .state()
        .leaderships
        .push((identity.into(), leadership.clone()));
    let elector = Elector::new(
        Connection {
            server: server.clone(),
            weather,
        },
        config,
        sender,
    );
    let stop = CancellationToken::new();
    Replica {
        leadership,
        task: tokio::spawn(elector.run(stop.clone())),
        stop,
    }
}

/// Waits for `change`, with a limit in case the candidate has panicked.
async fn in_the_end(change: impl Future<Output = ()>) {
    timeout(Duration::from_secs(3600), change)
        .await
        .expect("within an hour");
}

async fn seconds(count: u64) {
    sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn first_replica_leads_and_renews_while_the_second_waits() {
    let server = Server::used();
    let one = replica(&server, "one", Weather::Fair, false);
    seconds(1).await;
    let two = replica(&server, "two", Weather::Fair, false);
    for _ in 0..600 {
        seconds(1).await;
        assert!(one.leadership.holds() && !two.leadership.holds());
    }
    let state = server.state();
    assert!(
        (195..=205).contains(&state.writes),
        "{} renewals, one each 3 s",
        state.writes
    );
    assert!(
        state.requests - state.writes < 620,
        "the holder does not read"
    );
}

#[tokio::test(start_paused = true)]
async fn released_lease_is_acquired_within_the_retry_pause() {
    let server = Server::used();
    let one = replica(&server, "one", Weather::Fair, false);
    seconds(1).await;
    let mut two = replica(&server, "two", Weather::Fair, false);
    seconds(10).await;
    one.stop.cancel();
    one.task.await.expect("no panic");
    assert_eq!(server.holder(), "");
    let begin = Instant::now();
    in_the_end(two.leadership.gained()).await;
    assert!(
        begin.elapsed() <= Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn expired_lease_of_a_dead_holder_is_acquired() {
    let server = Server::used();
    let one = replica(&server, "one", Weather::Fair, false);
    seconds(1).await;
    let mut two = replica(&server, "two", Weather::Fair, false);
    seconds(10).await;
    one.task.abort();
    let begin = Instant::now();
    in_the_end(two.leadership.gained()).await;
    let taken = begin.elapsed();
    assert!(
        (Duration::from_secs(12)..Duration::from_secs(18)).contains(&taken),
        "{taken:?}"
    );
    assert!(!one.leadership.holds());
}

#[tokio::test(start_paused = true)]
async fn unreachable_holder_stops_before_its_lease_expires_and_resumes_on_renewal() {
    let server = Server::used();
    let (role, answer) = watch::channel(Answer::Allowed);
    let mut one = replica(&server, "one", Weather::Changing(answer), false);
    in_the_end(one.leadership.gained()).await;
    role.send_replace(Answer::Away);
    let begin = Instant::now();
    in_the_end(one.leadership.lost()).await;
    assert!(
        (7..=10).contains(&begin.elapsed().as_secs()),
        "{:?}",
        begin.elapsed()
    );
    role.send_replace(Answer::Allowed);
    in_the_end(one.leadership.gained()).await;
    assert!(begin.elapsed().as_secs() <= 12);
}

/// The response to one renewal is lost, and the next attempt begins before the right to write ends.
#[tokio::test(start_paused = true)]
async fn renewal_without_a_response_costs_no_right_to_write() {
    for late in [true, false] {
        let server = Server::used();
        let (role, answer) = watch::channel(Answer::Allowed);
        let mut one = replica(&server, "one", Weather::Changing(answer), false);
        in_the_end(one.leadership.gained()).await;
        role.send_replace(if late { Answer::Silent } else { Answer::Away });
        seconds(4).await;
        role.send_replace(Answer::Allowed);
        let lost = timeout(Duration::from_secs(60), one.leadership.lost()).await;
        assert!(lost.is_err(), "the next attempt succeeds");
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_recreated_while_the_holder_still_leads() {
    let server = Server::used();
    let one = replica(&server, "one", Weather::Fair, false);
    seconds(1).await;
    server.state().lease = None;
    for _ in 0..30 {
        seconds(1).await;
        assert!(one.leadership.holds());
    }
    assert_eq!(server.holder(), "one");
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_an_unreachable_server() {
    let server = Server::default();
    let one = replica(
        &server,
        "one",
        Weather::Storm(Instant::now() + Duration::from_secs(3600)),
        false,
    );
    seconds(30).await;
    one.stop.cancel();
    timeout(Duration::from_secs(3), one.task)
        .await
        .expect("in time")
        .expect("no panic");
    assert!(!one.leadership.holds());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Under random failures, no replica may write at the moment another takes the Lease (the
    /// server asserts that), and a replica becomes the leader once the failures end.
    #[test]
    fn no_two_replicas_write_at_once_and_a_leader_is_elected_after_any_faults(
        seed in any::<u64>(), restarts in prop::collection::vec(0..60u64, 0..5),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let runtime = runtime.expect("runtime");
        runtime.block_on(async {
            fastrand::seed(seed);
            let server = Server::default();
            // The failures last for the same time after the last restart, whatever the pauses are.
            let end = Instant::now() + Duration::from_secs(300 + restarts.iter().sum::<u64>());
            let storm = Weather::Storm(end);
            let mut replicas: Vec<_> = ["a", "b", "c"]
                .map(|name| replica(&server, name, storm.clone(), false))
                .into();
            for (number, pause) in restarts.into_iter().enumerate() {
                seconds(pause).await;
                let replaced = replicas.remove(0);
                if number % 2 == 0 {
                    replaced.stop.cancel()
                } else {
                    replaced.task.abort()
                }
                replicas.push(replica(
                    &server,
                    &format!("next {number}"),
                    storm.clone(),
                    false,
                ));
            }
            let mut led = 0;
            while Instant::now() < end {
                sleep(Duration::from_millis(500)).await;
                let leaders = server
                    .state()
                    .leaderships
                    .iter()
                    .filter(|(_, leadership)| leadership.holds())
                    .count();
                assert!(leaders <= 1, "{leaders} lead");
                led += leaders;
            }
            seconds(40).await;
            let leaders = replicas
                .iter()
                .filter(|replica| replica.leadership.holds())
                .count();
            assert_eq!(leaders, 1);
            // With fewer times, the failures would have been too many for a useful test.
            assert!(led > 20, "somebody led {led} times of 600");
            // A failed assertion in the server makes the task of a replica panic.
            for replica in replicas {
                replica.stop.cancel();
                replica.task.await.expect("no panic");
            }
        });
    }
}
