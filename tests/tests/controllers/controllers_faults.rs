//! The whole program with all controllers, while servers and connections fail: in the end, every
//! object is as in a run without faults.

mod comparable;
mod locked;
mod unreadable;
mod workload;

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_tests::cluster::{assert_same, changes};
use integration_tests::controllers::{ControllersCluster, Proxied, Setup, await_that};
use integration_tests::kubernetes::{Kubernetes, on_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::proxy::{Fault, Point, Refusal};
use integration_tests::{Place, on};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use comparable::comparable;

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
struct Runs<'h> {
    host: &'h Host,
    servers: Kubernetes,
    group: Option<ApiGroup>,
    /// The result of the run without faults.
    expected: Value,
}

fn on(place: Place, test: fn(&mut Runs<'_>)) {
    on_kubernetes(|host, servers| {
        let group = place.group();
        ControllersCluster::prepare(&servers.api, group).unwrap();
        test(&mut Runs {
            host,
            servers,
            group,
            expected: Value::Null,
        });
    });
}

/// Waits until the controllers have done their work. The objects may stay the same during a grace
/// period.
fn await_completion(cluster: &ControllersCluster<'_>, program: &Proxied) {
    cluster.until(&program.controllers, "the work after grace periods", || {
        workload::is_complete_after_grace(cluster)
    });
    let mut before: BTreeMap<String, u64> = BTreeMap::new();
    await_that(PATIENCE, || {
        let now = cluster.revisions();
        let same = std::mem::replace(&mut before, now.clone()) == now;
        if !same {
            sleep(CALM);
        }
        Ok(same)
    })
    .unwrap();
}

#[on(kubernetes_v3)]
fn controllers_with_faults_converge_as_without_faults_in_v3(runs: &mut Runs<'_>) {
    runs.assert_convergence();
}

#[on(etcd)]
fn controllers_with_faults_converge_as_without_faults_in_etcd(runs: &mut Runs<'_>) {
    runs.assert_convergence();
}

impl Runs<'_> {
    fn assert_convergence(&mut self) {
        self.run_without_faults();
        self.fail_requests();
        self.cut_connections();
        self.restart_servers();
    }

    fn cluster(&self) -> ControllersCluster<'_> {
        ControllersCluster::prepared(self.host, &self.servers, self.group)
    }

    fn begin(&self) -> Proxied {
        let cluster = self.cluster();
        workload::clear(&cluster);
        workload::create_objects(&cluster);
        let more = |setup: Setup| {
            setup
                .env("AUTO_HOST_ENDPOINTS", "enabled")
                .env("ORPHAN_ENDPOINT_GRACE_PERIOD", "2s")
        };
        let program = Proxied::start(&cluster, "program", more).unwrap();
        cluster.configure(&json!({ "leakGracePeriod": "1s" }));
        program
    }

    fn run_without_faults(&mut self) {
        let mut program = self.begin();
        workload::change_objects(&self.cluster());
        await_completion(&self.cluster(), &program);
        self.expected = self.seen();
        workload::assert_complete(&self.cluster());
        assert!(program.controllers.terminate().unwrap().success());
    }

    fn fail_requests(&self) {
        let mut program = self.begin();
        program.proxies().for_each(|proxy| proxy.arm(Some(FAILING)));
        workload::change_objects(&self.cluster());
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
        self.await_expected(&program, end_faults);
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

    fn cut_connections(&self) {
        let mut program = self.begin();
        let (begin, cuts) = (Instant::now(), Cell::new(0));
        let cut = || {
            if cuts.get() < MOST_CUTS && begin.elapsed() >= Duration::from_secs(1) * cuts.get() {
                program.proxies().for_each(|proxy| proxy.cut());
                cuts.set(cuts.get() + 1);
            }
        };
        cut();
        workload::change_objects(&self.cluster());
        self.await_expected(&program, cut);
        while cuts.get() < CUTS {
            cut();
            sleep(Duration::from_millis(50));
        }
        self.assert_as_expected();
        assert!(program.controllers.terminate().unwrap().success());
    }

    /// Restarts the servers while the proxy holds a write of garbage collection.
    fn restart_servers(&mut self) {
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
        workload::change_objects(&self.cluster());
        proxy.await_held().unwrap();
        self.servers.api.stop();
        self.servers.etcd.stop();
        proxy.resume();
        sleep(Duration::from_secs(1));
        self.servers.etcd.restart().unwrap();
        self.servers.api.restart().unwrap();
        self.await_expected(&program, || ());
        assert!(program.controllers.terminate().unwrap().success());
    }

    fn seen(&self) -> Value {
        comparable(self.cluster().all())
    }

    #[track_caller]
    fn await_expected(&self, program: &Proxied, meanwhile: impl Fn()) {
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
