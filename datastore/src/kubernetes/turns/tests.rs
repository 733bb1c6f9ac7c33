//! Simulates several processes of a node, with a paused clock.

use std::cell::RefCell;

use futures::future::{join, join_all};
use tokio::time::timeout;

use super::*;

const NODE: usize = 10;
const CALL: Duration = Duration::from_secs(110);
/// The system time at which each process begins, since the epoch.
const PRESENT: Duration = Duration::from_secs(1_795_741_323);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

struct Server {
    began: Instant,
    opens_after: Duration,
    retry_after: Duration,
    requests: RefCell<Vec<(usize, Duration)>>,
}

impl Server {
    fn new(opens_after: Duration, retry_after: Duration) -> Server {
        Server {
            began: Instant::now(),
            opens_after,
            retry_after,
            requests: RefCell::default(),
        }
    }

    async fn admits(&self, process: usize) -> bool {
        self.requests
            .borrow_mut()
            .push((process, self.began.elapsed()));
        sleep(Duration::from_millis(1)).await;
        self.began.elapsed() >= self.opens_after
    }

    fn refused(&self) -> Vec<usize> {
        self.requests
            .borrow()
            .iter()
            .filter(|(_, at)| *at < self.opens_after)
            .map(|(process, _)| *process)
            .collect()
    }
}

struct Process {
    number: usize,
    turns: Turns,
}

impl Process {
    /// The clocks of processes that are created at the same instant of the paused clock agree to
    /// the nanosecond.
    fn new(number: usize, file: &Path, limit: Duration) -> Process {
        let instant = Instant::now();
        let clock = ProcessClock {
            system_time: UNIX_EPOCH + PRESENT,
            instant,
        };
        let turns = Turns {
            clock: OnceLock::from(clock),
            ..Turns::default()
        };
        turns.set_rule(BusyRule {
            file: file.into(),
            longest: limit,
            locks: NodeFiles::of_this_node(),
        });
        Process { number, turns }
    }

    /// Sends one request until it is admitted. Returns false if the process gave up.
    async fn ask(&self, server: &Server) -> bool {
        let Ok(mut turn) = self.turns.admit().await else {
            return false;
        };
        while !server.admits(self.number).await {
            turn = self.turns.pause(turn.take(), server.retry_after).await;
            if turn.is_none() {
                return false;
            }
        }
        true
    }

    /// Sends requests as an ADD does. Returns false if the process gave up.
    async fn call(&self, server: &Server) -> bool {
        self.ask(server).await
            && join_all((0..3).map(|_| self.ask(server)))
                .await
                .into_iter()
                .all(|is_admitted| is_admitted)
    }
}

fn node(directory: &tempfile::TempDir, limit: Duration) -> Vec<Process> {
    (0..NODE)
        .map(|number| Process::new(number, &directory.path().join("run/turns"), limit))
        .collect()
}

/// Runs the call of each process, those of the others after the first process is rejected. Returns
/// true for each success.
async fn run_calls(server: &Server, node: &[Process]) -> Vec<bool> {
    let others = async {
        sleep(Duration::from_millis(5)).await;
        join_all(node[1..].iter().map(|process| process.call(server))).await
    };
    let (first, others) = join(node[0].call(server), others).await;
    [vec![first], others].concat()
}

#[tokio::test(start_paused = true)]
async fn crowd_of_a_node_retries_a_busy_server_as_often_as_a_single_process() {
    for retry_after in [1, 5, 32] {
        let directory = tempfile::tempdir().unwrap();
        let single = Server::new(seconds(60), seconds(retry_after));
        assert!(node(&directory, CALL)[0].call(&single).await);
        // The time in the first file is still in the future, because each process begins at the
        // same system time.
        let directory = tempfile::tempdir().unwrap();
        let server = Server::new(seconds(60), seconds(retry_after));
        assert_eq!(
            run_calls(&server, &node(&directory, CALL)).await,
            vec![true; NODE]
        );
        assert_eq!(server.refused(), single.refused(), "{retry_after} s");
        assert_eq!(
            server.requests.borrow().len(),
            single.refused().len() + NODE * 4
        );
    }
}

#[tokio::test(start_paused = true)]
async fn requests_refused_together_are_retried_one_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let process = &node(&directory, CALL)[0];
    let server = Server::new(seconds(4), seconds(1));
    assert!(
        join_all((0..6).map(|_| process.ask(&server)))
            .await
            .into_iter()
            .all(|is_admitted| is_admitted)
    );
    assert_eq!(server.refused().len(), 6 + 3);
}

#[tokio::test(start_paused = true)]
async fn refused_process_sends_its_next_requests_one_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let process = &node(&directory, CALL)[0];
    assert!(process.ask(&Server::new(seconds(1), seconds(1))).await);
    let server = Server::new(Duration::ZERO, seconds(1));
    assert!(
        join_all((0..6).map(|_| process.ask(&server)))
            .await
            .into_iter()
            .all(|is_admitted| is_admitted)
    );
    let requests: Vec<_> = server
        .requests
        .borrow()
        .iter()
        .map(|(_, at)| at.as_millis())
        .collect();
    assert!(
        requests.windows(2).all(|two| two[0] < two[1]),
        "{requests:?}"
    );
    // Sending one by one does not count as waiting for the server.
    process.turns.set_rule(BusyRule {
        file: process.turns.rule().unwrap().file,
        longest: Duration::ZERO,
        locks: NodeFiles::of_this_node(),
    });
    assert!(
        join_all((0..6).map(|_| process.ask(&server)))
            .await
            .into_iter()
            .all(|is_admitted| is_admitted)
    );
    assert!(
        !process.turns.is_busy(&process.turns.rule().unwrap().file),
        "other processes need not wait"
    );
}

#[tokio::test(start_paused = true)]
async fn call_waits_for_a_busy_server_until_its_limit() {
    for retry_after in [1, 32, 3600] {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::new(seconds(1000), seconds(retry_after));
        let node = node(&directory, CALL);
        let begun = Instant::now();
        let ends = node
            .iter()
            .map(async |process| (process.call(&server).await, begun.elapsed()));
        for (is_admitted, after) in join_all(ends).await {
            assert!(
                !is_admitted && after >= CALL && after < CALL + seconds(1),
                "{retry_after} s: {after:?}"
            );
        }
        assert!(node.iter().all(|process| process.turns.has_expired()));
    }
}

#[tokio::test(start_paused = true)]
async fn turn_of_a_killed_process_passes_to_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(&directory, CALL);
    let server = Server::new(seconds(10), seconds(32));
    let killed = async {
        assert!(timeout(seconds(3), node[0].call(&server)).await.is_err());
    };
    let next = async {
        sleep(seconds(1)).await;
        assert!(node[1].ask(&server).await);
    };
    join(killed, next).await;
    let requests: Vec<_> = server
        .requests
        .borrow()
        .iter()
        .map(|(process, at)| (*process, at.as_secs()))
        .collect();
    assert_eq!(requests, [(0, 0), (1, 32)]);
}

#[tokio::test(start_paused = true)]
async fn call_without_time_to_wait_fails_at_once_and_records_the_retry_time() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::new(seconds(5), seconds(8));
    let (hasty, patient) = (node(&directory, Duration::ZERO), node(&directory, CALL));
    assert!(!hasty[0].turns.was_busy() && !hasty[0].turns.has_expired());
    assert!(!hasty[0].ask(&server).await && !hasty[1].ask(&server).await);
    assert_eq!(server.began.elapsed().as_secs(), 0);
    assert!(hasty[0].turns.has_expired() && hasty[1].turns.has_expired());
    assert!(patient[2].ask(&server).await);
    let requests: Vec<_> = server
        .requests
        .borrow()
        .iter()
        .map(|(process, at)| (*process, at.as_secs()))
        .collect();
    assert_eq!(
        requests,
        [(0, 0), (2, 8)],
        "no request before the time that the server asked for"
    );
}

#[tokio::test(start_paused = true)]
async fn locks_are_released_before_each_wait() {
    let directory = tempfile::tempdir().unwrap();
    let files = NodeFiles::below(directory.path());
    let take = || files.free_ipam_lock(&files.path("/ipam.lock")).unwrap();
    let rule = BusyRule {
        file: files.path("/turns"),
        longest: CALL,
        locks: files.clone(),
    };
    let process = Process::new(0, &rule.file, CALL);
    process.turns.set_rule(rule);
    let lock = take();
    let server = Server::new(Duration::ZERO, seconds(1));
    assert!(process.ask(&server).await);
    assert!(lock.is_held(), "no request waits");
    let server = Server::new(seconds(2), seconds(1));
    assert!(process.ask(&server).await);
    assert!(!lock.is_held());
    let lock = take();
    let other = Process::new(1, &files.path("/turns"), CALL);
    let held = other.turns.pause(None, seconds(1)).await.unwrap();
    join(process.turns.admit(), async {
        sleep(seconds(1)).await;
        drop(held);
    })
    .await
    .0
    .unwrap();
    assert!(!lock.is_held());
}

#[tokio::test(start_paused = true)]
async fn unusable_turns_file_leaves_processes_uncoordinated() {
    let process = Process::new(0, Path::new("/proc/no/such/turns"), CALL);
    let server = Server::new(seconds(3), seconds(1));
    assert!(process.call(&server).await);
    assert_eq!(server.refused().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn invalid_or_distant_retry_time_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("turns");
    let process = Process::new(0, &file, CALL);
    for text in [
        "",
        "soon",
        "99999999999999999999\n",
        "00000000000000000001\n",
    ] {
        std::fs::write(&file, text).unwrap();
        assert!(process.turns.admit().await.unwrap().is_none(), "{text:?}");
    }
}
