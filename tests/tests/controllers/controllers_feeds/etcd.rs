//! Watches of Calico's kinds in etcd.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::controllers::{Connection, RunningControllers};
use integration_tests::etcd::{self, ENDPOINT, Etcd};
use integration_tests::namespaces::isolated;
use integration_tests::proxy::Proxy;
use integration_tests::skip::skipped;
use integration_tests::{Place, on};
use libcalico::api::IpPool;
use libcalico::store::Entry;
use serde_json::json;

use crate::controllers_feeds::relay::Relay;
use crate::controllers_feeds::reported::{self, Reported};

/// Number of cuts of a watch.
const CUTS: u64 = 10;
const POOLS: &str = "/calico/resources/v3/projectcalico.org/ippools/";

/// Pools in etcd, and a proxy for their watch.
struct WatchedPools {
    proxy: Proxy,
    etcd: Etcd,
    pools: BTreeMap<String, String>,
}

impl WatchedPools {
    fn put(&mut self, name: &str, cidr: &str) {
        let pool = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": name},
            "spec": {"cidr": cidr},
        });
        self.etcd
            .put(&format!("{POOLS}{name}"), pool.to_string().as_bytes())
            .unwrap();
        self.pools.insert(name.into(), cidr.into());
    }

    fn delete(&mut self, name: &str) {
        self.etcd.delete(&format!("{POOLS}{name}")).unwrap();
        self.pools.remove(name);
    }

    /// Starts the watch through the proxy.
    fn watch(&self) -> (RunningControllers, Reported) {
        watch_at(self.proxy.endpoint())
    }
}

fn watch_at(endpoint: String) -> (RunningControllers, Reported) {
    let reported = Reported::default();
    let subscriber = reported.clone();
    let connection = Connection::without_kubernetes(endpoint);
    let running = reported::start(None, &connection, move |watches| {
        subscriber.subscribe(&mut watches.ip_pools, |pool: &Entry<IpPool>| {
            pool.value.spec.cidr.clone()
        });
    });
    (running, reported)
}

fn server() -> &'static str {
    ENDPOINT.trim_start_matches("http://")
}

/// Runs a test with more pools than one page of a list has.
fn on(_: Place, test: fn(&mut WatchedPools)) {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    isolated(|host| {
        let etcd = Etcd::start(host).unwrap();
        let mut watched = WatchedPools {
            proxy: Proxy::start(server()).unwrap(),
            etcd,
            pools: BTreeMap::new(),
        };
        for n in 0..130 {
            watched.put(&format!("pool{n:03}"), &format!("10.{n}.0.0/16"));
        }
        test(&mut watched);
    });
}

#[on(etcd)]
fn watch_reports_existing_and_changed_pools_and_counts_unreadable_ones(watched: &mut WatchedPools) {
    watched.etcd.put(&format!("{POOLS}bad"), b"{").unwrap();
    watched.etcd.put(&format!("{POOLS}a/b"), b"{}").unwrap();
    let (running, reported) = watched.watch();
    reported.becomes(&watched.pools);
    assert_eq!(running.watch("IPPool").stats().unreadable, 1);
    // The list has several pages and counts once.
    assert_eq!(running.watch("IPPool").stats().lists, 1);
    watched.put("new", "10.200.0.0/16");
    watched.put("pool001", "10.201.0.0/16");
    watched.delete("pool002");
    reported.becomes(&watched.pools);
    // An unreadable pool counts as deleted.
    let bad = watched.pools.remove("pool003").unwrap();
    watched.etcd.put(&format!("{POOLS}pool003"), b"[]").unwrap();
    reported.becomes(&watched.pools);
    watched.put("pool003", &bad);
    reported.becomes(&watched.pools);
}

#[on(etcd)]
fn watch_resumes_after_a_broken_connection_without_a_list(watched: &mut WatchedPools) {
    let (running, reported) = watched.watch();
    reported.becomes(&watched.pools);
    let before = reported.events();
    for round in 0..5 {
        watched.proxy.go_away();
        watched.delete(&format!("pool{round:03}"));
        watched.put("changed", &format!("10.99.{round}.0/24"));
        watched.proxy.arm(None);
        reported.becomes(&watched.pools);
    }
    let report = running.watch("IPPool").stats();
    assert_eq!(report.lists, 1, "{report:?}");
    assert!(report.watches >= 5, "each round needs a watch: {report:?}");
    assert_eq!(reported.events() - before, 10);
}

#[on(etcd)]
fn watch_lists_again_after_a_compaction(watched: &mut WatchedPools) {
    let (running, reported) = watched.watch();
    reported.becomes(&watched.pools);
    watched.proxy.go_away();
    watched.delete("pool007");
    watched.put("new", "10.200.0.0/16");
    watched.etcd.compact().unwrap();
    watched.proxy.arm(None);
    reported.becomes(&watched.pools);
    assert_eq!(running.watch("IPPool").stats().lists, 2);
    assert_eq!(reported.deleted(), ["pool007"]);
}

#[on(etcd)]
fn watch_continues_after_a_restart_and_a_freeze_of_etcd(watched: &mut WatchedPools) {
    let (_running, reported) = watched.watch();
    reported.becomes(&watched.pools);
    watched.etcd.stop();
    watched.etcd.restart().unwrap();
    watched.put("after", "10.200.0.0/16");
    reported.becomes(&watched.pools);
    watched.etcd.freeze().unwrap();
    thread::sleep(Duration::from_secs(3));
    watched.etcd.thaw().unwrap();
    watched.delete("after");
    reported.becomes(&watched.pools);
    assert_eq!(reported.deleted(), ["after"]);
}

/// No byte passes, and no end of the connection shows that. Pings detect it after 20 s at most.
#[on(etcd)]
fn watch_leaves_a_frozen_connection_and_resumes_without_a_list(watched: &mut WatchedPools) {
    let relay = Relay::start(server()).unwrap();
    let (running, reported) = watch_at(relay.endpoint());
    reported.becomes(&watched.pools);
    // After this change the watch is open.
    watched.put("before", "10.201.0.0/16");
    reported.becomes(&watched.pools);
    relay.freeze();
    watched.put("after", "10.200.0.0/16");
    watched.delete("pool000");
    reported.becomes(&watched.pools);
    let report = running.watch("IPPool").stats();
    assert_eq!(report.lists, 1, "{report:?}");
}

#[on(etcd)]
fn watch_cut_every_second_converges(watched: &mut WatchedPools) {
    let (running, reported) = watched.watch();
    reported.becomes(&watched.pools);
    let watches = || running.watch("IPPool").stats().watches;
    let (mut cuts, mut round, mut last, mut expected) = (0, 0, Instant::now(), Vec::new());
    let before = watches();
    while cuts < CUTS {
        let name = format!("pool{:03}", round % 130);
        watched.put(
            &format!("new{}", round % 7),
            &format!("10.200.{}.0/24", round % 256),
        );
        if round % 3 == 0 && round < 130 {
            watched.delete(&name);
            expected.push(name);
        }
        // The watch is cut only if a new watch was opened since the last cut.
        if last.elapsed() >= Duration::from_secs(1) && watches() >= before + cuts {
            watched.proxy.cut();
            (cuts, last) = (cuts + 1, Instant::now());
        }
        round += 1;
        thread::sleep(Duration::from_millis(80));
    }
    reported.becomes(&watched.pools);
    assert_eq!(reported.deleted(), expected);
    assert_eq!(
        running.watch("IPPool").stats().lists,
        1,
        "each watch was resumed"
    );
}
