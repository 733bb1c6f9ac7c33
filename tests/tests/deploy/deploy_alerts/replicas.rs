//! The metrics of two replicas of kube-controllers, of which one is the leader, in several states
//! of IPAM.

use std::time::Duration;

use integration_tests::controllers::garbage_collector::{GarbageCollector, settings};
use integration_tests::controllers::{
    Controllers, ControllersCluster, METRICS_PORT, NAMESPACE as PODS, PATIENCE, await_that, metrics,
};
use integration_tests::kubernetes::{Kubernetes, Permission, Role, ServiceAccount};
use integration_tests::namespaces::Host;
use integration_tests::node_pod::NAMESPACE;
use kube_controllers::settings::Settings;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::deploy_alerts::evaluation::{Series, growing, scraped};

const NAME: &str = "calico-kube-controllers";
/// The replicas share a host, so each needs a port of its own.
const STANDBY_PORT: u16 = 9098;
const LEADS: &str = "leader_election_master_status{name=\"calico-kube-controllers\"}";
const FAILURES: &str = "kube_controllers_gc_failures_total{phase=\"leaks\"} ";
const FREE: &str = "kube_controllers_ippool_free_addresses";
const FULLEST: &str = "kube_controllers_ippool_fullest_node_addresses";
const CONFLICT: &str = "kube_controllers_gc_conflicting_addresses{held=\"free\"} 1";
/// The addresses of the pool `small` except two.
const RESERVED: [&str; 5] = [
    "10.66.1.2/31",
    "10.66.1.4/30",
    "10.66.1.8/29",
    "10.66.1.16/28",
    "10.66.1.32/27",
];

/// Pages of metrics.
pub(crate) struct Replicas {
    /// No address is in use.
    pub(crate) idle: Scrape,
    /// The only address that is not reserved is in use.
    pub(crate) pool_full: Scrape,
    /// Half of the addresses that are not reserved are in use.
    pub(crate) pool_half_full: Scrape,
    /// Scrapes before and after another leak.
    pub(crate) leaks: [Scrape; 2],
    /// Scrapes before and after another failed attempt to release leaked addresses.
    pub(crate) failures: [Scrape; 2],
    /// A page of another replica: a running pod reports an address that is free in IPAM.
    pub(crate) conflict: String,
}

/// The metrics of both replicas.
pub(crate) struct Scrape {
    pub(crate) leader: String,
    pub(crate) standby: String,
}

impl Scrape {
    /// Returns the series of both replicas.
    pub(crate) fn series(&self) -> Vec<Series> {
        [
            scraped(&self.leader, &of_replica(1)),
            scraped(&self.standby, &of_replica(2)),
        ]
        .concat()
    }

    /// Returns series that change each minute as much as between this scrape and a later one.
    pub(crate) fn growing_to(&self, later: &Scrape) -> Vec<Series> {
        let leader = growing(&self.leader, &later.leader, &of_replica(1));
        [
            leader,
            growing(&self.standby, &later.standby, &of_replica(2)),
        ]
        .concat()
    }

    /// Returns these pages with another number of free addresses of a pool.
    pub(crate) fn with_free(&self, pool: &str, before: u32, after: u32) -> Scrape {
        let line = |free: u32| format!("{FREE}{{ippool=\"{pool}\"}} {free}\n");
        let changed = |page: &str| {
            assert!(page.contains(&line(before)), "{page}");
            page.replace(&line(before), &line(after))
        };
        Scrape {
            leader: changed(&self.leader),
            standby: changed(&self.standby),
        }
    }

    fn show(&self, lines: &[&str]) -> bool {
        lines.iter().all(|line| {
            [&self.leader, &self.standby]
                .iter()
                .all(|page| shows(page, line))
        })
    }

    /// Returns the number of failures of the leader.
    fn failures(&self) -> u64 {
        let count = self
            .leader
            .lines()
            .find_map(|line| line.strip_prefix(FAILURES));
        count.map_or(0, |count| count.parse().unwrap())
    }
}

fn shows(page: &str, line: &str) -> bool {
    page.lines().any(|shown| shown == line)
}

/// Returns the labels that the monitor of the Prometheus operator adds to the series of a replica.
pub(crate) fn of_replica(n: u8) -> String {
    format!(r#"job="calico-kube-controllers-metrics",namespace="kube-system",instance="n{n}:2""#)
}

struct Running<'a> {
    cluster: ControllersCluster<'a>,
    account: ServiceAccount,
    leader: Controllers,
    standby: Controllers,
}

/// Runs the replicas.
pub(crate) fn run_replicas(host: &Host, servers: &Kubernetes) -> Replicas {
    let running = Running::start(host, servers);
    let idle = running.showing(&[
        "ipam_ippool_size{ippool=\"small\"} 64",
        &format!("{FREE}{{ippool=\"large\"}} 65536"),
        "ipam_allocations_gc_candidates{ippool=\"large\",node=\"n1\"} 0",
        "ipam_allocations_gc_candidates{ippool=\"large\",node=\"n2\"} 0",
    ]);
    let leaks = [("n1", "10.65.1.0"), ("n2", "10.65.2.0")].map(|(node, block)| {
        running.cluster.address_left_behind(node, block);
        running.showing(&[&format!(
            "ipam_allocations_gc_candidates{{ippool=\"large\",node=\"{node}\"}} 1"
        )])
    });
    running.cluster.address_left_behind("n3", "10.66.1.0");
    let pool_full = running.reserving(&[&RESERVED[..], &["10.66.1.1/32"][..]].concat(), 63);
    let pool_half_full = running.reserving(&RESERVED, 62);
    running.reserving(&[], 0);
    Replicas {
        idle,
        pool_full,
        pool_half_full,
        leaks,
        failures: running.failing(),
        conflict: running.conflict(),
    }
}

impl<'a> Running<'a> {
    fn start(host: &'a Host, servers: &'a Kubernetes) -> Running<'a> {
        let cluster = ControllersCluster::new(host, servers, Some(ApiGroup::CrdV1));
        let account = cluster
            .api
            .account_of(NAMESPACE, NAME, &Role::manifests_of_controllers())
            .unwrap();
        for (node, address) in [("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("n3", "10.0.0.3")] {
            cluster.node(node, address);
        }
        cluster.pool("large", "10.65.0.0/16", "Workload");
        cluster.pool("small", "10.66.1.0/26", "Workload");
        let start = |name: &str, port: u16| {
            let setup = cluster
                .setup()
                .env("KUBECONFIG", account.kubeconfig.display().to_string());
            setup
                .env("POD_NAME", name)
                .env("PROMETHEUS_METRICS_PORT", port.to_string())
                .start(host, name)
                .unwrap()
        };
        let leader = start("leader", METRICS_PORT);
        leader.await_log("this replica is the leader", 1).unwrap();
        let standby = start("standby", STANDBY_PORT);
        Running {
            cluster,
            account,
            leader,
            standby,
        }
    }

    /// Waits until the metrics are as expected, and returns them.
    #[track_caller]
    fn scrape(&self, what: &str, is_so: impl Fn(&Scrape) -> bool) -> Scrape {
        let mut scrape = Scrape {
            leader: String::new(),
            standby: String::new(),
        };
        let seen = await_that(PATIENCE * 2, || {
            let [leader, standby] =
                [METRICS_PORT, STANDBY_PORT].map(|port| metrics(port).unwrap_or_default());
            scrape = Scrape { leader, standby };
            let roles = shows(&scrape.leader, &format!("{LEADS} 1"))
                && shows(&scrape.standby, &format!("{LEADS} 0"));
            Ok(roles && is_so(&scrape))
        });
        let Scrape { leader, standby } = &scrape;
        let log = |replica: &Controllers| replica.log().unwrap_or_default();
        assert!(
            seen.is_ok(),
            "{what}:\n{leader}\n{standby}\n{}\n{}",
            log(&self.leader),
            log(&self.standby)
        );
        scrape
    }

    /// Waits until both replicas show these lines.
    #[track_caller]
    fn showing(&self, lines: &[&str]) -> Scrape {
        self.scrape(&lines.join(", "), |scrape| scrape.show(lines))
    }

    /// Reserves addresses of the pool `small`, and waits until the room of the pool is counted
    /// again. The only other addresses are those of the block of `n3`, of which one is in use.
    #[track_caller]
    fn reserving(&self, cidrs: &[&str], count: usize) -> Scrape {
        self.cluster.put(
            "IPReservation",
            "ipreservations",
            "some",
            &json!({ "reservedCIDRs": cidrs }),
        );
        self.showing(&[
            "ipam_allocations_in_use{ippool=\"small\",node=\"n3\"} 1",
            &format!("ipam_ippool_reserved{{ippool=\"small\"}} {count}"),
            &format!("{FREE}{{ippool=\"small\"}} {}", 63 - count),
            &format!("{FULLEST}{{ippool=\"small\"}} {}", 63 - count),
        ])
    }

    /// Withdraws the right to write blocks, and then lets the grace period of the leaks end.
    fn failing(&self) -> [Scrape; 2] {
        let (cluster, api) = (&self.cluster, self.cluster.api);
        let group = ApiGroup::CrdV1.name().to_owned();
        let write = Permission {
            group,
            resource: "ipamblocks".to_owned(),
            verb: "update".to_owned(),
        };
        let role = Role::of_manifests(&Role::manifests_of_controllers())
            .unwrap()
            .without(&write);
        api.cluster_role(NAME, &role.rules()).unwrap();
        await_that(PATIENCE, || {
            Ok(!api.allows(&self.account.user, write.access())?)
        })
        .unwrap();
        cluster.configure(&json!({ "leakGracePeriod": "1s" }));
        let first = self.scrape("a failure", |scrape| scrape.failures() > 0);
        let second = self.scrape("another failure", |scrape| {
            scrape.failures() > first.failures()
        });
        [first, second]
    }

    /// Runs a pod with a free address of the block of `n1`, and garbage collection whose clock
    /// shows when the conflict has lasted two minutes.
    fn conflict(&self) -> String {
        let cluster = &self.cluster;
        cluster.apply(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "restored", "namespace": PODS },
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }],
                "automountServiceAccountToken": false },
        }));
        let status =
            json!({ "phase": "Running", "podIP": "10.65.1.9", "podIPs": [{ "ip": "10.65.1.9" }] });
        cluster.merge(
            &format!("/api/v1/namespaces/{PODS}/pods/restored/status"),
            &json!({ "status": status }),
        );
        let never = Some(Duration::from_secs(1_000_000));
        let settings = Settings {
            leak_grace_period: never,
            ..settings(cluster.group)
        };
        let collecting =
            GarbageCollector::start(cluster.group, self.account.kubeconfig.clone(), settings);
        collecting.await_first_pass();
        let minute = Duration::from_secs(60);
        collecting.advance_until(minute, "a conflict", || {
            shows(&collecting.metrics(), CONFLICT)
        });
        collecting.metrics()
    }
}
