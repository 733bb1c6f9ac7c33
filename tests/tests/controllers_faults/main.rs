//! The whole program with all controllers, while servers and connections fail: in the end, every
//! object is as in a run without faults.

mod life;
mod likeness;
mod locked;
mod unreadable;

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_tests::cluster::{assert_same, changes};
use integration_tests::controllers::{Proxied, Setup, World, await_that};
use integration_tests::kubernetes::{Kubernetes, with_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::proxy::{Fault, Point, Refusal};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use likeness::likeness;

/// Time within which a run with faults must complete its work.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time without writes after which a run counts as complete.
const CALM: Duration = Duration::from_secs(3);
/// Minimum number of cuts of all connections.
const CUTS: u32 = 6;
/// Maximum number of cuts. On a busy machine, work that needs many requests may not end between two
/// cuts.
const MOST_CUTS: u32 = 20;
/// A tenth of the requests fail.
const FAILING: (Point, Fault) = (
    Point::EachNth(10),
    Fault::InTurn(&[
        Fault::Refuse(Refusal {
            code: 500,
            retry_after: None,
        }),
        Fault::Refuse(Refusal {
            code: 429,
            retry_after: Some(1),
        }),
        Fault::Cut,
    ]),
);

/// Number of failed requests after which faults end, if at least one request failed at each server.
const MOST_FAULTS: usize = 20;

/// Repeated runs on the same servers.
struct Lives<'h> {
    host: &'h Host,
    servers: Kubernetes,
    group: Option<ApiGroup>,
    /// The result of the run without faults.
    expected: Value,
}

fn on(group: Option<ApiGroup>) {
    with_kubernetes(|host, servers| {
        World::new(&servers, group);
        let mut lives = Lives {
            host,
            servers,
            group,
            expected: Value::Null,
        };
        lives.without_faults();
        lives.with_failing_requests();
        lives.with_cut_connections();
        lives.with_servers_that_restart();
    });
}

/// Waits until the controllers have done their work. The objects may stay the same during a grace
/// period.
fn settle(world: &World<'_>, program: &Proxied) {
    world.until(&program.controllers, "the work after grace periods", || {
        life::is_complete_after_grace(world)
    });
    let mut before: BTreeMap<String, u64> = BTreeMap::new();
    await_that(PATIENCE, || {
        let now = world.revisions();
        let same = std::mem::replace(&mut before, now.clone()) == now;
        if !same {
            sleep(CALM);
        }
        Ok(same)
    })
    .unwrap();
}

#[test]
fn controllers_with_faults_converge_as_without_faults_in_v3() {
    on(Some(ApiGroup::V3));
}

#[test]
fn controllers_with_faults_converge_as_without_faults_in_etcd() {
    on(None);
}

impl Lives<'_> {
    fn world(&self) -> World<'_> {
        World {
            api: &self.servers.api,
            etcd: &self.servers.etcd,
            group: self.group,
        }
    }

    fn begin(&self) -> Proxied {
        let world = self.world();
        life::clear(&world);
        life::beginning(&world);
        let more = |setup: Setup| {
            setup
                .env("AUTO_HOST_ENDPOINTS", "enabled")
                .env("ORPHAN_ENDPOINT_GRACE_PERIOD", "2s")
        };
        let program = Proxied::start(self.host, &world, "program", more).unwrap();
        world.configure(&json!({ "leakGracePeriod": "1s" }));
        program
    }

    fn without_faults(&mut self) {
        let mut program = self.begin();
        life::happenings(&self.world());
        settle(&self.world(), &program);
        self.expected = self.seen();
        life::assert_complete(&self.world());
        assert!(program.controllers.terminate().unwrap().success());
    }

    fn with_failing_requests(&self) {
        let mut program = self.begin();
        program.proxies().for_each(|proxy| proxy.arm(Some(FAILING)));
        life::happenings(&self.world());
        // The deletion of a node needs many requests. If it were the only remaining work, it could
        // fail forever.
        let ended = OnceCell::new();
        let faults = || {
            program
                .proxies()
                .map(|proxy| proxy.faults())
                .collect::<Vec<usize>>()
        };
        let end_faults = || {
            let faults = faults();
            let are_enough = faults.iter().sum::<usize>() >= MOST_FAULTS && !faults.contains(&0);
            if ended.get().is_none() && are_enough {
                ended.set(faults).unwrap();
                program.proxies().for_each(|proxy| proxy.arm(None));
            }
        };
        self.becomes_as_expected(&program, end_faults);
        // The work may need few requests to the API server. The renewals of the Lease are requests
        // too.
        await_that(PATIENCE, || {
            Ok(ended.get().is_some() || !faults().contains(&0))
        })
        .unwrap();
        // On a busy machine, a single request covers more work, so fewer requests fail.
        let faults = ended.into_inner().unwrap_or_else(faults);
        assert!(
            faults.iter().all(|faults| *faults > 0) && faults.iter().sum::<usize>() >= 5,
            "{faults:?}"
        );
        program.proxies().for_each(|proxy| proxy.arm(None));
        assert!(program.controllers.terminate().unwrap().success());
    }

    fn with_cut_connections(&self) {
        let mut program = self.begin();
        let (begin, cuts) = (Instant::now(), Cell::new(0));
        let cut = || {
            if cuts.get() < MOST_CUTS && begin.elapsed() >= Duration::from_secs(1) * cuts.get() {
                program.proxies().for_each(|proxy| proxy.cut());
                cuts.set(cuts.get() + 1);
            }
        };
        cut();
        life::happenings(&self.world());
        self.becomes_as_expected(&program, cut);
        while cuts.get() < CUTS {
            cut();
            sleep(Duration::from_millis(50));
        }
        self.assert_as_expected();
        assert!(program.controllers.terminate().unwrap().success());
    }

    /// Restarts the servers while the proxy holds a write of garbage collection.
    fn with_servers_that_restart(&mut self) {
        let mut program = self.begin();
        let held = match self.group {
            Some(_) => (Point::First("PUT", "/ipamblocks/10-65-1-0-26"), Fault::Hold),
            None => (
                Point::First(
                    "POST",
                    "KV/Txn?if=/calico/ipam/v2/assignment/ipv4/block/10.65.1.0-26",
                ),
                Fault::Hold,
            ),
        };
        let proxy = program.etcd.as_ref().unwrap_or(&program.api);
        proxy.arm(Some(held));
        life::happenings(&self.world());
        proxy.await_held().unwrap();
        self.servers.api.stop();
        self.servers.etcd.stop();
        proxy.resume();
        sleep(Duration::from_secs(1));
        self.servers.etcd.restart().unwrap();
        self.servers.api.restart().unwrap();
        self.becomes_as_expected(&program, || ());
        assert!(program.controllers.terminate().unwrap().success());
    }

    fn seen(&self) -> Value {
        likeness(self.world().all())
    }

    #[track_caller]
    fn becomes_as_expected(&self, program: &Proxied, meanwhile: impl Fn()) {
        let same = await_that(PATIENCE, || {
            meanwhile();
            Ok(self.seen() == self.expected)
        });
        // CI shows only the beginning of a long output.
        if same.is_err() {
            let changes = changes(&self.expected, &self.seen()).join("\n");
            panic!(
                "not as without faults:\n{changes}\n{}",
                program.controllers.log().unwrap()
            );
        }
    }

    #[track_caller]
    fn assert_as_expected(&self) {
        assert_same(&self.expected, &self.seen());
    }
}
