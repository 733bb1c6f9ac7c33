//! A cluster with faults between plugins and datastore, and what a runtime does about them.

use std::time::Instant;

use serde_json::Value;

use super::{Cluster, Pod};
use crate::plugin::{Call, DEADLINE, Outcome, wait};
use crate::proxy::{Fault, Point, Proxy};

/// More requests than any verb makes.
const MANY: usize = 100;

/// A cluster whose plugins reach the datastore through a proxy.
#[derive(Debug)]
pub struct Faulty<'a> {
    /// The cluster.
    pub cluster: &'a Cluster<'a>,
    /// The proxy.
    pub proxy: &'a Proxy,
    /// The configuration of every call.
    pub conf: Value,
    pods: usize,
}

impl<'a> Faulty<'a> {
    /// The configuration must lead to the proxy.
    pub fn new(cluster: &'a Cluster<'a>, proxy: &'a Proxy, conf: Value) -> Faulty<'a> {
        Faulty { cluster, proxy, conf, pods: 0 }
    }

    /// A new pod.
    pub fn pod(&mut self) -> Pod {
        self.pods += 1;
        self.cluster.pod(self.pods)
    }

    /// A new sandbox of a pod.
    pub fn sandbox(&mut self, pod: &Pod) -> Pod {
        self.pods += 1;
        self.cluster.sandbox(pod, self.pods)
    }

    /// A verb of `calico` on a pod.
    pub fn call(&self, verb: &str, pod: &Pod) -> Call {
        self.cluster.verb(verb, pod, &self.conf)
    }

    /// Runs a verb without a fault.
    ///
    /// # Panics
    /// When the plugin fails.
    #[track_caller]
    pub fn run(&self, verb: &str, pod: &Pod) -> Value {
        self.proxy.arm(None);
        self.call(verb, pod).run().unwrap().success()
    }

    /// Runs a verb without a fault and says how many requests it made.
    ///
    /// # Panics
    /// When the plugin fails.
    #[track_caller]
    pub fn requests(&self, verb: &str, pod: &Pod) -> usize {
        self.run(verb, pod);
        let traffic = self.proxy.traffic();
        assert_eq!(traffic.requests, traffic.answers);
        traffic.requests
    }

    /// Runs a verb with a fault.
    ///
    /// # Panics
    /// When the plugin fails in another way than the CNI specification's.
    #[track_caller]
    pub fn faulted(&self, verb: &str, pod: &Pod, point: Point, fault: Fault) -> Outcome {
        self.outcome(&self.call(verb, pod), point, fault)
    }

    /// Runs a call with a fault. Whatever becomes of the call, no endpoint lists a free address.
    ///
    /// # Panics
    /// When one does, or when the plugin fails in another way than the CNI specification's.
    #[track_caller]
    pub fn outcome(&self, call: &Call, point: Point, fault: Fault) -> Outcome {
        self.proxy.arm(Some((point, fault)));
        let started = Instant::now();
        let child = call.spawn().unwrap();
        self.proxy.plugin(child.id());
        let outcome = wait(child, started, DEADLINE).unwrap();
        if outcome.exit == Some(1) {
            outcome.error();
        }
        if self.conf["ipam"]["type"] == "calico-ipam" {
            self.cluster.assert_listed_is_held();
        }
        outcome
    }

    /// What a runtime does after any end of an ADD: DEL until it succeeds, and a new ADD in a new sandbox, which gets as
    /// many addresses as there are `families`.
    ///
    /// # Panics
    /// When something is left or wrong.
    #[track_caller]
    pub fn recover(&mut self, pod: &Pod, families: usize) {
        self.run("DEL", pod);
        self.cluster.assert_nothing_left();
        let again = self.pod();
        self.run("ADD", &again);
        assert_eq!(self.cluster.accounts().held.len(), families, "an address of each family");
        self.cluster.assert_in_order();
        self.run("DEL", &again);
        self.cluster.assert_nothing_left();
        for pod in [pod, &again] {
            self.cluster.remove_pod(pod);
        }
    }
}

/// Before each of so many requests, and after each.
///
/// # Panics
/// When there are none, or too many.
pub fn points(requests: usize) -> Vec<Point> {
    assert!((1..MANY).contains(&requests), "{requests} requests");
    (0..requests).flat_map(|n| [Point::Request(n), Point::Answer(n)]).collect()
}
