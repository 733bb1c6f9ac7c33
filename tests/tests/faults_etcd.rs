//! The plugin and a real etcd with a fault at each request and at each answer of ADD and DEL in turn, and what the
//! runtime's retries make of it: nothing is leaked, nothing is held twice.

use std::time::{Duration, Instant};

use integration_tests::cluster::{Cluster, Pod, on_etcd};
use integration_tests::content::Content;
use integration_tests::plugin::{Call, DEADLINE, Outcome, wait};
use integration_tests::proxy::{Fault, Point, Proxy};
use integration_tests::store::Store;
use serde_json::{Value, json};

/// More requests than any verb makes.
const MANY: usize = 100;

/// A cluster whose plugins reach etcd through the proxy.
struct Faulty<'a> {
    cluster: &'a Cluster<'a>,
    proxy: Proxy,
    conf: Value,
    pods: usize,
}

impl<'a> Faulty<'a> {
    fn new(cluster: &'a Cluster<'a>) -> Faulty<'a> {
        cluster.load(&Content::dual_stack());
        let proxy = Proxy::start("127.0.0.1:2379").unwrap();
        let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
        let conf = cluster.conf("node1", json!({ "ipam": ipam, "etcd_endpoints": proxy.endpoint() }));
        Faulty { cluster, proxy, conf, pods: 0 }
    }

    fn pod(&mut self) -> Pod {
        self.pods += 1;
        self.cluster.pod(self.pods)
    }

    fn call(&self, verb: &str, pod: &Pod) -> Call {
        self.cluster.verb(verb, pod, &self.conf)
    }

    /// Runs a verb without a fault and says how many requests it made.
    fn requests(&self, verb: &str, pod: &Pod) -> usize {
        self.proxy.arm(None);
        self.call(verb, pod).run().unwrap().success();
        let traffic = self.proxy.traffic();
        assert_eq!(traffic.requests, traffic.answers);
        traffic.requests
    }

    /// Runs a verb with a fault.
    fn faulted(&self, verb: &str, pod: &Pod, point: Point, fault: Fault) -> Outcome {
        self.proxy.arm(Some((point, fault)));
        let started = Instant::now();
        let child = self.call(verb, pod).spawn().unwrap();
        self.proxy.plugin(child.id());
        let outcome = wait(child, started, DEADLINE).unwrap();
        if outcome.exit == Some(1) {
            outcome.error();
        }
        outcome
    }

    fn fault_in_add(&mut self, point: Point, fault: Fault) {
        let pod = self.pod();
        self.faulted("ADD", &pod, point, fault);
        assert!(self.proxy.fired(), "{point:?} was not reached");
        self.recover(&pod);
    }

    /// What a runtime does after any end of an ADD: DEL until it succeeds, and a new ADD in a new sandbox.
    fn recover(&mut self, pod: &Pod) {
        self.proxy.arm(None);
        self.call("DEL", pod).run().unwrap().success();
        self.cluster.assert_nothing_left();
        let again = self.pod();
        self.call("ADD", &again).run().unwrap().success();
        assert_eq!(self.cluster.accounts().held.len(), 2, "an address of each family");
        self.cluster.assert_in_order();
        self.call("DEL", &again).run().unwrap().success();
        self.cluster.assert_nothing_left();
        for pod in [pod, &again] {
            self.cluster.host.delete_pod(&pod.name).unwrap();
        }
    }
}

/// Every point of a verb that makes `requests` requests.
fn points(requests: usize) -> Vec<Point> {
    assert!((1..MANY).contains(&requests), "{requests} requests");
    (0..requests).flat_map(|n| [Point::Request(n), Point::Answer(n)]).collect()
}

/// Without and with a block of the node: claiming one takes more requests.
fn fault_at_each_point_of_add(cluster: &Cluster<'_>, fault: Fault) {
    let mut faulty = Faulty::new(cluster);
    let empty = cluster.store.dump().unwrap();
    let pod = faulty.pod();
    let claiming = faulty.requests("ADD", &pod);
    faulty.recover(&pod);
    for point in points(claiming) {
        restore(&cluster.store, &empty);
        faulty.fault_in_add(point, fault);
    }
    let pod = faulty.pod();
    let with_block = faulty.requests("ADD", &pod);
    faulty.recover(&pod);
    assert!(with_block < claiming, "{with_block} requests with a block, {claiming} without");
    // What an unreachable or slow etcd leads to does not depend on the block, and takes its time.
    if matches!(fault, Fault::Cut | Fault::Kill) {
        for point in points(with_block) {
            faulty.fault_in_add(point, fault);
        }
    }
}

fn fault_at_each_point_of_del(cluster: &Cluster<'_>, fault: Fault) {
    let mut faulty = Faulty::new(cluster);
    let pod = faulty.pod();
    faulty.requests("ADD", &pod);
    let requests = faulty.requests("DEL", &pod);
    for point in points(requests) {
        let pod = faulty.pod();
        faulty.requests("ADD", &pod);
        let outcome = faulty.faulted("DEL", &pod, point, fault);
        assert!(faulty.proxy.fired(), "{point:?} was not reached");
        if outcome.exit == Some(0) {
            assert_eq!(outcome.stdout, "");
        }
        faulty.recover(&pod);
    }
}

/// Makes the datastore what it was.
fn restore(store: &Store, content: &std::collections::BTreeMap<String, Value>) {
    for key in store.dump().unwrap().keys().filter(|key| !content.contains_key(*key)) {
        store.delete(key).unwrap();
    }
    store.load(content).unwrap();
}

/// One test for each verb and fault.
macro_rules! faults {
    ($($test:ident $run:ident $fault:expr;)*) => {
        $(#[test] fn $test() { on_etcd(|cluster| $run(cluster, $fault)) })*
    };
}

faults! {
    add_with_a_connection_that_breaks fault_at_each_point_of_add Fault::Cut;
    add_with_an_etcd_that_goes_away fault_at_each_point_of_add Fault::Gone;
    add_with_an_etcd_that_is_slow fault_at_each_point_of_add Fault::Delay(Duration::from_millis(300));
    add_killed fault_at_each_point_of_add Fault::Kill;
    del_with_a_connection_that_breaks fault_at_each_point_of_del Fault::Cut;
    del_with_an_etcd_that_goes_away fault_at_each_point_of_del Fault::Gone;
    del_with_an_etcd_that_is_slow fault_at_each_point_of_del Fault::Delay(Duration::from_millis(300));
    del_killed fault_at_each_point_of_del Fault::Kill;
}

/// A slow datastore is not a failing one.
#[test]
fn a_delay_makes_no_verb_fail() {
    on_etcd(|cluster| {
        let mut faulty = Faulty::new(cluster);
        let pod = faulty.pod();
        for verb in ["ADD", "DEL"] {
            let outcome = faulty.faulted(verb, &pod, Point::Answer(1), Fault::Delay(Duration::from_secs(1)));
            outcome.success();
            assert!(outcome.wall >= Duration::from_secs(1));
        }
        cluster.assert_nothing_left();
    });
}

/// With etcd stopped a DEL takes the pod's network down and succeeds; what it owes is paid at the next call.
#[test]
fn etcd_stopped_and_restarted() {
    on_etcd(|cluster| {
        let mut faulty = Faulty::new(cluster);
        let (gone, refused) = (faulty.pod(), faulty.pod());
        faulty.requests("ADD", &gone);

        let Store::Etcd(etcd) = &cluster.store else { panic!("not on etcd") };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(etcd.pid().unwrap()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        let error = faulty.call("ADD", &refused).run().unwrap().error();
        assert_eq!(error.code, 11, "try again: {error:?}");
        faulty.call("DEL", &gone).run().unwrap().success();
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
        assert_eq!(integration_tests::kernel::host().unwrap()["links"], json!({}), "taken down at once");

        // The next call of any pod pays.
        let next = faulty.pod();
        faulty.requests("ADD", &next);
        assert_eq!(cluster.accounts().held.len(), 2);
        faulty.call("DEL", &refused).run().unwrap().success();
        faulty.call("DEL", &next).run().unwrap().success();
        cluster.assert_nothing_left();
    });
}

/// Reachable but not ready is an error, and nothing is touched (design decision 7).
#[test]
fn a_datastore_that_is_not_ready_is_left_alone() {
    on_etcd(|cluster| {
        let mut faulty = Faulty::new(cluster);
        let pod = faulty.pod();
        faulty.requests("ADD", &pod);
        let key = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
        let content = cluster.store.dump().unwrap();
        let mut not_ready = content[key].clone();
        not_ready["spec"]["datastoreReady"] = json!(false);
        cluster.store.put(key, &not_ready).unwrap();
        let newcomer = faulty.pod();
        let before = cluster.state();
        for (verb, pod) in [("DEL", &pod), ("ADD", &newcomer)] {
            let error = faulty.call(verb, pod).run().unwrap().error();
            assert!(error.msg.contains("not ready"), "{verb}: {error:?}");
        }
        cluster.assert_unchanged(&before);
        cluster.store.put(key, &content[key]).unwrap();
        faulty.call("DEL", &pod).run().unwrap().success();
        cluster.assert_nothing_left();
    });
}

/// The budget of one pod with one address, in requests (design decision 4; issue, section 7).
#[test]
fn add_and_del_make_few_requests() {
    on_etcd(|cluster| {
        let mut faulty = Faulty::new(cluster);
        faulty.conf["ipam"] = json!({ "type": "calico-ipam" });
        let first = faulty.pod();
        faulty.requests("ADD", &first);
        let second = faulty.pod();
        let add = faulty.requests("ADD", &second);
        let del = faulty.requests("DEL", &second);
        assert!(add <= 4 && del <= 4, "ADD made {add} requests, DEL {del}");
    });
}
