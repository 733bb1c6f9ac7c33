//! Watches of Calico's kinds in etcd.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::etcd::{self, ENDPOINT, Etcd};
use integration_tests::namespaces::{Host, isolated};
use integration_tests::proxy::Proxy;
use integration_tests::skip::skipped;
use libcalico::api::IpPool;
use libcalico::store::Entry;
use serde_json::json;

use crate::listening::{Calico, Heard, Listening};
use crate::relay::Relay;

/// Number of cuts of a watch.
const CUTS: u64 = 10;
const POOLS: &str = "/calico/resources/v3/projectcalico.org/ippools/";

struct Scene {
    etcd: Etcd,
    proxy: Proxy,
    pools: BTreeMap<String, String>,
}

impl Scene {
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

    fn listen(&self) -> (Listening, Heard) {
        Self::listen_at(self.proxy.endpoint())
    }

    fn listen_at(endpoint: String) -> (Listening, Heard) {
        let mut heard = Heard::default();
        let listening = Listening::start(Calico::Etcd(endpoint), None, |watches| {
            heard = Heard::to(&mut watches.ip_pools, |pool: &Entry<IpPool>| {
                pool.value.spec.cidr.clone()
            });
        });
        (listening, heard)
    }
}

fn server() -> &'static str {
    ENDPOINT.trim_start_matches("http://")
}

fn on_etcd(test: impl FnOnce(&mut Scene) + Send) {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    isolated(|host: &Host| {
        let etcd = Etcd::start(host).unwrap();
        let proxy = Proxy::start(server()).unwrap();
        let mut scene = Scene {
            etcd,
            proxy,
            pools: BTreeMap::new(),
        };
        for n in 0..130 {
            scene.put(&format!("pool{n:03}"), &format!("10.{n}.0.0/16"));
        }
        test(&mut scene);
    });
}

#[test]
fn watch_reports_existing_and_changed_pools_and_counts_unreadable_ones() {
    on_etcd(|scene| {
        scene.etcd.put(&format!("{POOLS}bad"), b"{").unwrap();
        scene.etcd.put(&format!("{POOLS}a/b"), b"{}").unwrap();
        let (listening, heard) = scene.listen();
        heard.becomes(&scene.pools);
        assert_eq!(listening.health("IPPool").stats().unreadable, 1);
        // The list has several pages and counts once.
        assert_eq!(listening.health("IPPool").stats().lists, 1);
        scene.put("new", "10.200.0.0/16");
        scene.put("pool001", "10.201.0.0/16");
        scene.delete("pool002");
        heard.becomes(&scene.pools);
        // An unreadable pool counts as deleted.
        let bad = scene.pools.remove("pool003").unwrap();
        scene.etcd.put(&format!("{POOLS}pool003"), b"[]").unwrap();
        heard.becomes(&scene.pools);
        scene.put("pool003", &bad);
        heard.becomes(&scene.pools);
    });
}

#[test]
fn watch_resumes_after_a_broken_connection_without_a_list() {
    on_etcd(|scene| {
        let (listening, heard) = scene.listen();
        heard.becomes(&scene.pools);
        let before = heard.events();
        for round in 0..5 {
            scene.proxy.go_away();
            scene.delete(&format!("pool{round:03}"));
            scene.put("changed", &format!("10.99.{round}.0/24"));
            scene.proxy.arm(None);
            heard.becomes(&scene.pools);
        }
        let report = listening.health("IPPool").stats();
        assert_eq!(report.lists, 1, "{report:?}");
        assert!(report.watches >= 5, "each round needs a watch: {report:?}");
        assert_eq!(heard.events() - before, 10);
    });
}

#[test]
fn watch_lists_again_after_a_compaction() {
    on_etcd(|scene| {
        let (listening, heard) = scene.listen();
        heard.becomes(&scene.pools);
        scene.proxy.go_away();
        scene.delete("pool007");
        scene.put("new", "10.200.0.0/16");
        scene.etcd.compact().unwrap();
        scene.proxy.arm(None);
        heard.becomes(&scene.pools);
        assert_eq!(listening.health("IPPool").stats().lists, 2);
        assert_eq!(heard.lost().into_iter().collect::<Vec<_>>(), ["pool007"]);
    });
}

#[test]
fn watch_continues_after_a_restart_and_a_freeze_of_etcd() {
    on_etcd(|scene| {
        let (_listening, heard) = scene.listen();
        heard.becomes(&scene.pools);
        scene.etcd.stop();
        scene.etcd.restart().unwrap();
        scene.put("after", "10.200.0.0/16");
        heard.becomes(&scene.pools);
        scene.etcd.freeze().unwrap();
        thread::sleep(Duration::from_secs(3));
        scene.etcd.thaw().unwrap();
        scene.delete("after");
        heard.becomes(&scene.pools);
        assert_eq!(heard.lost().into_iter().collect::<Vec<_>>(), ["after"]);
    });
}

/// No byte passes, and no end of the connection shows that. Pings detect it after 20 s at most.
#[test]
fn watch_leaves_a_frozen_connection_and_resumes_without_a_list() {
    on_etcd(|scene| {
        let relay = Relay::start(server()).unwrap();
        let (listening, heard) = Scene::listen_at(relay.endpoint());
        heard.becomes(&scene.pools);
        // After this change the watch is open.
        scene.put("before", "10.201.0.0/16");
        heard.becomes(&scene.pools);
        relay.freeze();
        scene.put("after", "10.200.0.0/16");
        scene.delete("pool000");
        heard.becomes(&scene.pools);
        let report = listening.health("IPPool").stats();
        assert_eq!(report.lists, 1, "{report:?}");
    });
}

#[test]
fn watch_cut_every_second_converges() {
    on_etcd(|scene| {
        let (listening, heard) = scene.listen();
        heard.becomes(&scene.pools);
        let watches = || listening.health("IPPool").stats().watches;
        let (mut cuts, mut round, mut last, mut expected) = (0, 0, Instant::now(), Vec::new());
        let before = watches();
        while cuts < CUTS {
            let name = format!("pool{:03}", round % 130);
            scene.put(
                &format!("new{}", round % 7),
                &format!("10.200.{}.0/24", round % 256),
            );
            if round % 3 == 0 && round < 130 {
                scene.delete(&name);
                expected.push(name);
            }
            // The watch is cut only if a new watch was opened since the last cut.
            if last.elapsed() >= Duration::from_secs(1) && watches() >= before + cuts {
                scene.proxy.cut();
                (cuts, last) = (cuts + 1, Instant::now());
            }
            round += 1;
            thread::sleep(Duration::from_millis(80));
        }
        heard.becomes(&scene.pools);
        assert_eq!(heard.lost().into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(
            listening.health("IPPool").stats().lists,
            1,
            "each watch was resumed"
        );
    });
}
