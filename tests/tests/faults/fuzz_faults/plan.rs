//! Chooses the calls and the faults of a round.

use std::time::Duration;

use fastrand::Rng;
use integration_tests::node::Sandbox;
use integration_tests::proxy::{Fault, Point, Refusal};

use super::node_pair::NodePair;

const CALLS: usize = 6;
/// Number of networked sandboxes from which on few calls are ADDs.
const CROWD: usize = 10;
/// Approximate number of requests of a node's calls in a round.
const REQUESTS: usize = 24;
/// Time within which the server executes a request after its connection was cut.
const LATEST: Duration = Duration::from_millis(400);

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) node: usize,
    pub(crate) task: Task,
    /// Delay after the start of the round.
    pub(crate) after: Duration,
    /// Time from the start of the call after which it is killed; `None` for never.
    pub(crate) killed: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(crate) enum Task {
    Add(Sandbox),
    Del(Sandbox),
    Check(Sandbox),
    Gc,
    Status,
}

pub(crate) fn jobs(pair: &mut NodePair<'_>) -> Vec<Job> {
    let mut ready: Vec<(usize, Sandbox)> = pair
        .live
        .values()
        .map(|live| (live.node, live.sandbox.clone()))
        .collect();
    pair.rng.shuffle(&mut ready);
    let mut jobs = Vec::new();
    while jobs.len() < CALLS {
        let node = pair.rng.usize(..pair.nodes.len());
        let adds = if pair.live.len() < CROWD { 0..45 } else { 0..5 };
        let (node, task) = match pair.rng.u32(..100) {
            n if adds.contains(&n) => (node, Task::Add(pair.sandbox(node))),
            0..75 => match ready.pop() {
                Some((node, sandbox)) => (node, Task::Del(sandbox)),
                None => continue,
            },
            75..82 => match ready.pop() {
                Some((node, sandbox)) => (node, Task::Check(sandbox)),
                None => continue,
            },
            // Runtimes may repeat the DEL of a deleted sandbox.
            82..92 => match pair.gone.pop() {
                Some((node, old)) => {
                    if let Some((_, pod)) = old.pod.clone().filter(|_| pair.rng.bool()) {
                        let next = Task::Add(pair.sandbox_of(node, Some(&pod)));
                        jobs.push(job(&mut pair.rng, node, next));
                    }
                    (node, Task::Del(old))
                }
                None => continue,
            },
            92..96 => (node, Task::Gc),
            _ => (node, Task::Status),
        };
        jobs.push(job(&mut pair.rng, node, task));
    }
    jobs
}

fn job(rng: &mut Rng, node: usize, task: Task) -> Job {
    let after = millis(rng, 30);
    let killed = (rng.u32(..100) < 25).then(|| millis(rng, 120));
    Job {
        node,
        task,
        after,
        killed,
    }
}

fn millis(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(rng.u64(..most * 1000))
}

/// Chooses the faults between a node and the datastore.
pub(crate) fn faults(rng: &mut Rng, has_http: bool) -> Vec<(Point, Fault)> {
    let count = *rng.choice(&[0, 0, 1, 1, 2, 4]).unwrap_or(&0);
    let mut faults = Vec::new();
    for _ in 0..count {
        let place = place(rng, has_http);
        faults.push((place, fault(rng, place, has_http)));
    }
    match rng.u32(..100) {
        0..10 => faults.push((Point::EveryRequest, Fault::Delay(millis(rng, 60)))),
        10..18 if has_http => faults.push((Point::EachNth(rng.usize(4..12)), BROKEN)),
        // The datastore is unreachable until the round is over.
        18..20 => faults.push((Point::Request(rng.usize(..REQUESTS)), Fault::Gone)),
        _ => {}
    }
    faults
}

const BROKEN: Fault = Fault::InTurn(&[
    Fault::Cut,
    Fault::Refuse(Refusal {
        code: 500,
        retry_after: None,
    }),
    Fault::Delay(Duration::from_millis(80)),
    Fault::Refuse(Refusal {
        code: 429,
        retry_after: Some(1),
    }),
    Fault::Late(Duration::from_millis(150)),
    Fault::Refuse(Refusal {
        code: 503,
        retry_after: None,
    }),
]);

/// Writes of ADD and DEL.
const WRITES: [(&str, &str); 8] = [
    ("POST", "/ipamhandles"),
    ("PUT", "/ipamhandles/"),
    ("DELETE", "/ipamhandles/"),
    ("POST", "/ipamblocks"),
    ("PUT", "/ipamblocks/"),
    ("POST", "/blockaffinities"),
    ("PUT", "/blockaffinities/"),
    ("PATCH", "/pods/"),
];

fn place(rng: &mut Rng, has_http: bool) -> Point {
    match rng.u32(..3) {
        0 => Point::Answer(rng.usize(..REQUESTS)),
        1 if has_http => rng
            .choice(WRITES)
            .map_or(Point::Request(0), |(method, path)| {
                Point::First(method, path)
            }),
        1 => Point::First("POST", "/etcdserverpb.KV/Txn?if="),
        _ => Point::Request(rng.usize(..REQUESTS)),
    }
}

/// Chooses a fault. A server that responds 409, 429 or 503 has not executed the request. etcd has
/// no such responses.
fn fault(rng: &mut Rng, place: Point, has_http: bool) -> Fault {
    let is_answer = matches!(place, Point::Answer(_));
    let codes = if is_answer {
        &[500, 502, 504][..]
    } else {
        &[409, 429, 500, 503]
    };
    match rng.u32(..if has_http { 5 } else { 4 }) {
        0 | 1 => Fault::Cut,
        2 if is_answer => Fault::CutMidAnswer,
        2 => Fault::Late(Duration::from_millis(rng.u64(1..LATEST.as_millis() as u64))),
        3 => Fault::Delay(millis(rng, 300)),
        _ => Fault::Refuse(Refusal::of(*rng.choice(codes).unwrap_or(&500))),
    }
}
