//! A cluster with faults between plugins and datastore, and the reaction of a container runtime to
//! them.

use std::time::Instant;

use serde_json::Value;

use super::{Cluster, Pod};
use crate::plugin::{Call, DEADLINE, Outcome, wait};
use crate::proxy::{Fault, Point, Proxy, Traffic};

/// More requests than a CNI call of the suites makes.
const MANY: usize = 100;

/// Number of runs that [`shortest`] compares.
const CLEAN_RUNS: usize = 3;

/// The largest change of the number of a concurrent request from one run to another that [`sweep`]
/// expects.
const NEAR: usize = 1;

/// A cluster whose plugins reach the datastore through a proxy.
#[derive(Debug)]
pub struct Faulty<'a> {
    /// The cluster.
    pub cluster: &'a Cluster<'a>,
    /// The proxy.
    pub proxy: &'a Proxy,
    /// The configuration of the calls that [`Faulty::call`] prepares.
    pub conf: Value,
    pods: usize,
}

/// The faults of a [`sweep`] at one request.
#[derive(Debug, Clone, Copy)]
pub struct Faults<'a> {
    /// Faults after which the server has not executed the request.
    pub before: &'a [Fault],
    /// Faults after which the server has executed the request.
    pub after: &'a [Fault],
}

impl<'a> Faulty<'a> {
    /// Creates a faulty cluster. The endpoint in `conf` must be the proxy's.
    pub fn new(cluster: &'a Cluster<'a>, proxy: &'a Proxy, conf: Value) -> Faulty<'a> {
        Faulty {
            cluster,
            proxy,
            conf,
            pods: 0,
        }
    }

    /// Creates a pod.
    pub fn pod(&mut self) -> Pod {
        self.pods += 1;
        self.cluster.pod(self.pods)
    }

    /// Creates another sandbox of a pod.
    pub fn sandbox(&mut self, pod: &Pod) -> Pod {
        self.pods += 1;
        self.cluster.sandbox(pod, self.pods)
    }

    /// Prepares a call of `calico` for a pod.
    pub fn call(&self, verb: &str, pod: &Pod) -> Call {
        self.cluster.verb(verb, pod, &self.conf)
    }

    /// Runs a call without a fault and returns its result.
    #[track_caller]
    pub fn run(&self, verb: &str, pod: &Pod) -> Value {
        self.proxy.arm(None);
        self.call(verb, pod).run().success()
    }

    /// Does the same as [`Cluster::await_replayed`], without a fault.
    #[track_caller]
    pub fn await_replayed(&self, pod: &Pod) {
        self.proxy.arm(None);
        self.cluster.await_replayed(pod, &self.conf);
    }

    /// Does the same as [`Faulty::clean_requests`], and returns the number of the requests.
    #[track_caller]
    pub fn requests(&self, verb: &str, pod: &Pod) -> usize {
        self.clean_requests(verb, pod).len()
    }

    /// Runs a call without a fault and returns its requests. Expects an answer to each request,
    /// except to a read that the server's cache does not answer in time: the call repeats such a
    /// read, and the repetition is left out.
    #[track_caller]
    pub fn clean_requests(&self, verb: &str, pod: &Pod) -> Vec<String> {
        self.run(verb, pod);
        let (
            Traffic {
                requests, answers, ..
            },
            mut all,
        ) = (self.proxy.traffic(), self.proxy.requests());
        for _ in answers..requests {
            let repetition = (1..all.len()).find(|&n| {
                all[..n]
                    .iter()
                    .any(|earlier| is_repeated_by(earlier, &all[n]))
            });
            all.remove(repetition.unwrap_or_else(|| panic!("{answers} answers: {all:#?}")));
        }
        all
    }

    /// Runs a call of `calico` for a pod as [`Faulty::outcome`] does.
    #[track_caller]
    pub fn faulted(&self, verb: &str, pod: &Pod, point: Point, fault: Fault) -> Outcome {
        self.outcome(&self.call(verb, pod), point, fault)
    }

    /// Runs a call with a fault. With `calico-ipam`, asserts that each listed address is assigned,
    /// however the call ends.
    ///
    /// # Panics
    /// Panics if a listed address is not assigned, or if the plugin fails without an error of the
    /// CNI specification.
    #[track_caller]
    pub fn outcome(&self, call: &Call, point: Point, fault: Fault) -> Outcome {
        self.proxy.arm(Some((point, fault)));
        let started = Instant::now();
        let child = call.spawn().unwrap();
        self.proxy.plugin(child.id());
        let outcome = wait(child, started, DEADLINE).unwrap();
        // A signal may end the plugin only if the fault is one.
        if outcome.exit != Some(0) && !(outcome.exit.is_none() && fault.includes_kill()) {
            outcome.error();
        }
        if self.conf["ipam"]["type"] == "calico-ipam" {
            self.cluster.assert_listed_is_held();
        }
        outcome
    }

    /// Runs the calls that follow an ADD of `pod` with any outcome: its DEL, then ADD and DEL of a
    /// new pod, which gets an address of each of the `families`. Removes both pods.
    #[track_caller]
    pub fn recover(&mut self, pod: &Pod, families: usize) {
        self.run("DEL", pod);
        self.cluster.assert_nothing_left();
        let again = self.pod();
        self.run("ADD", &again);
        assert_eq!(
            self.cluster.accounts().held.len(),
            families,
            "an address of each family"
        );
        self.cluster.assert_in_order();
        self.run("DEL", &again);
        self.cluster.assert_nothing_left();
        for pod in [pod, &again] {
            self.cluster.remove_pod(pod);
        }
    }
}

/// Returns true if the read of an object in the server's cache is followed by a read of the object
/// in its store.
fn is_repeated_by(cached: &str, read: &str) -> bool {
    let path = cached
        .split_once("resourceVersion=")
        .map(|(path, _)| path.trim_end_matches(['?', '&']));
    path == Some(read)
}

/// Returns the points before and after each of `requests` requests.
pub fn points(requests: usize) -> Vec<Point> {
    assert!((1..MANY).contains(&requests), "{requests} requests");
    (0..requests)
        .flat_map(|n| [Point::Request(n), Point::Answer(n)])
        .collect()
}

/// Returns each of these faults at each request. A read leaves the state of the write before it, so
/// a read has fewer faults than a write: those with another effect on the client. Concurrent
/// requests may arrive in another order in the next run, so the neighbors of a write have the
/// faults of a write.
pub fn sweep(
    requests: &[String],
    at_write: Faults<'_>,
    at_read: Faults<'_>,
) -> Vec<(Point, Fault)> {
    assert!((1..MANY).contains(&requests.len()), "{requests:#?}");
    let at = |point: Point, faults: &[Fault]| {
        faults
            .iter()
            .map(|fault| (point, *fault))
            .collect::<Vec<_>>()
    };
    let of_request = |number: usize| {
        let near = &requests[number.saturating_sub(NEAR)..requests.len().min(number + NEAR + 1)];
        let faults = if near.iter().all(|request| request.starts_with("GET ")) {
            &at_read
        } else {
            &at_write
        };
        [
            at(Point::Request(number), faults.before),
            at(Point::Answer(number), faults.after),
        ]
        .concat()
    };
    (0..requests.len()).flat_map(of_request).collect()
}

/// Returns the requests of the run with the fewest, of several runs without a fault. An ADD whose
/// reads were slow repeats them, which is rare.
pub fn shortest(run: impl FnMut() -> Vec<String>) -> Vec<String> {
    std::iter::repeat_with(run)
        .take(CLEAN_RUNS)
        .min_by_key(Vec::len)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_has_the_faults_of_writes_at_writes_and_their_neighbors_and_those_of_reads_at_other_requests()
     {
        let requests = ["GET /a", "GET /b", "GET /c", "PUT /d"].map(str::to_owned);
        let at_write = Faults {
            before: &[Fault::Cut],
            after: &[Fault::Kill],
        };
        let at_read = Faults {
            before: &[Fault::Cut],
            after: &[],
        };
        let expected = [
            (Point::Request(0), Fault::Cut),
            (Point::Request(1), Fault::Cut),
            (Point::Request(2), Fault::Cut),
            (Point::Answer(2), Fault::Kill),
            (Point::Request(3), Fault::Cut),
            (Point::Answer(3), Fault::Kill),
        ];
        assert_eq!(sweep(&requests, at_write, at_read), expected);
    }
}
