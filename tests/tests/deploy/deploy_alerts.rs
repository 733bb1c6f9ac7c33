//! The alerts of `deploy/components/prometheus-rule`, evaluated by Prometheus with the metrics of
//! agents and of kube-controllers that run here.
//!
//! The series of kube-state-metrics are written by hand, with the names and labels of its
//! documentation: the Go module proxy of the machines that test this project does not serve the
//! program.

mod agents;
mod evaluation;
mod replicas;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::thread;

use agents::run_agents;
use evaluation::{Series, assert_pass, firing, kube_state, scraped};
use integration_tests::kubernetes::on_kubernetes;
use integration_tests::manifests::promtool;
use integration_tests::skip::skipped;
use replicas::{of_replica, run_replicas};
use serde_json::Value;

/// Labels that the monitor of the Prometheus operator adds to the series of an agent.
const OF_AGENT: &str =
    r#"job="kube-system/calico-cni",namespace="kube-system",pod="calico-cni-x",instance="n1:1""#;

/// Returns the series of an agent that answers scrapes.
fn answering(page: &str) -> Vec<Series> {
    [scraped(page, OF_AGENT), vec![up(1)]].concat()
}

fn up(value: u8) -> Series {
    Series::constant(&format!("up{{{OF_AGENT}}}"), value)
}

fn unavailable(values: &str) -> Vec<Series> {
    vec![kube_state(
        "kube_daemonset_status_number_unavailable",
        r#"daemonset="calico-cni""#,
        values,
    )]
}

#[test]
fn each_alert_fires_in_its_state_alone() {
    if let Err(missing) = promtool() {
        return skipped(&missing.to_string());
    }
    on_kubernetes(|host, servers| {
        // The agents and the replicas wait most of the time, so they run at the same time.
        let (agents, replicas) = thread::scope(|scope| {
            let agents = scope.spawn(|| run_agents(host, &servers));
            let replicas = run_replicas(host, &servers);
            (agents.join().unwrap(), replicas)
        });
        let (tests, fired) = (
            RefCell::new(Vec::<Value>::new()),
            RefCell::new(BTreeSet::<String>::new()),
        );
        let fires = |series: [Vec<Series>; 3], expected: &[&str]| {
            let state = format!("state {}: {expected:?}", tests.borrow().len());
            tests
                .borrow_mut()
                .push(firing(&state, &series.concat(), expected));
            fired
                .borrow_mut()
                .extend(expected.iter().map(|&name| name.to_owned()));
        };
        let (agent, idle, available) = (
            || answering(&agents.healthy),
            || replicas.idle.series(),
            || unavailable("0x120"),
        );

        fires([agent(), idle(), available()], &[]);

        fires(
            [Vec::new(), idle(), available()],
            &["CalicoCniAgentMissing"],
        );
        let unanswered = [scraped(&agents.healthy, OF_AGENT), vec![up(0)]].concat();
        fires(
            [unanswered, idle(), available()],
            &["CalicoCniAgentMissing"],
        );
        for (page, alert) in [
            (&agents.without_rights, "CalicoCniNoToken"),
            (&agents.with_a_short_token, "CalicoCniTokenNearItsEnd"),
            (&agents.without_its_template, "CalicoCniFilesMissing"),
            (
                &agents.beside_another_network,
                "CalicoCniConfigurationNotUsed",
            ),
            (&agents.of_another_installation, "CalicoCniFilesNotRestored"),
        ] {
            fires([answering(page), idle(), available()], &[alert]);
        }

        fires([answering(&agents.repairing), idle(), available()], &[]);
        // The agent of installer_agent/repair.rs shows the number of a real interface.
        let stuck = agents.repairing.replace(
            "\ncalico_cni_dead_interfaces 0\n",
            "\ncalico_cni_dead_interfaces 1\n",
        );
        assert_ne!(stuck, agents.repairing);
        fires(
            [answering(&stuck), idle(), available()],
            &["CalicoCniDeadInterfaces"],
        );
        let blind = agents.repairing.replace(
            "\ncalico_cni_repair_unknown 0\n",
            "\ncalico_cni_repair_unknown 1\n",
        );
        assert_ne!(blind, agents.repairing);
        fires(
            [answering(&blind), idle(), available()],
            &["CalicoCniRepairLacksEvidence"],
        );

        let standby = scraped(&replicas.idle.standby, &of_replica(2));
        fires([agent(), standby, available()], &["CalicoNoLeader"]);
        fires([agent(), Vec::new(), available()], &["CalicoNoLeader"]);
        let (nearly, almost, node) = (
            "CalicoPoolNearlyFull",
            "CalicoPoolAlmostFull",
            "CalicoNodeNearlyOutOfAddresses",
        );
        fires(
            [agent(), replicas.pool_half_full.series(), available()],
            &[node],
        );
        fires(
            [agent(), replicas.pool_full.series(), available()],
            &[nearly, almost, node],
        );
        // A pool of 65536 addresses in which no node has a block.
        for (free, expected) in [
            (13_200, &[][..]),
            (13_000, &[nearly][..]),
            (3_300, &[nearly]),
            (3_200, &[nearly, almost]),
        ] {
            let used = replicas.idle.with_free("large", 65_536, free).series();
            fires([agent(), used, available()], expected);
        }
        let [before, after] = &replicas.leaks;
        fires([agent(), after.series(), available()], &[]);
        fires(
            [agent(), before.growing_to(after), available()],
            &["CalicoLeakedAddressesGrow"],
        );
        let [before, after] = &replicas.failures;
        fires([agent(), after.series(), available()], &[]);
        fires(
            [agent(), before.growing_to(after), available()],
            &["CalicoGarbageCollectionFails"],
        );
        let conflict = [idle(), scraped(&replicas.conflict, &of_replica(3))].concat();
        fires(
            [agent(), conflict, available()],
            &["CalicoAddressesInConflict"],
        );

        // These states last for minutes, so their series are written by hand, beside those of the
        // replica.
        let beside_idle = |series: &[(&str, &str)], labels: &str| {
            let of_leader = |(name, value): &(&str, &str)| {
                let (metric, own) = name.trim_end_matches('}').split_once('{').unwrap();
                Series::constant(&format!("{metric}{{{own},{labels}}}"), value)
            };
            [idle(), series.iter().map(of_leader).collect()].concat()
        };
        let stuck = [(
            "workqueue_longest_running_processor_seconds{name=\"of-a-test\"}",
            "600",
        )];
        fires(
            [agent(), beside_idle(&stuck, &of_replica(1)), available()],
            &["CalicoControllersStuck"],
        );
        for (code, alert) in [
            ("503", true),
            ("429", true),
            ("<error>", true),
            ("409", false),
            ("404", false),
        ] {
            let failing = format!(
                "rest_client_requests_total{{verb=\"get\",kind=\"of-a-test\",code=\"{code}\"}}"
            );
            let answered = failing.replace(code, "200");
            let expected: &[&str] = if alert {
                &["CalicoApiServerRequestsFail"]
            } else {
                &[]
            };
            let series = [(&*answered, "0+80"), (&*failing, "0+20")];
            fires(
                [agent(), beside_idle(&series, &of_replica(1)), available()],
                expected,
            );
            let few = [(&*answered, "0+95"), (&*failing, "0+5")];
            fires(
                [agent(), beside_idle(&few, &of_replica(1)), available()],
                &[],
            );
        }
        // Another program with metrics of these names.
        let foreign = "job=\"kubelet\",instance=\"n1:3\"";
        fires([agent(), beside_idle(&stuck, foreign), available()], &[]);

        // The replicas have no Services, so the numbers of waiting ones are written by hand too.
        for (reason, alert) in [
            ("no_pool", true),
            ("pool_full", true),
            ("address_taken", true),
            ("not_enabled", true),
            ("class", false),
            ("invalid_request", false),
        ] {
            let waiting =
                format!("kube_controllers_load_balancer_waiting_services{{reason=\"{reason}\"}}");
            let expected: &[&str] = if alert {
                &["CalicoLoadBalancerServicesWait"]
            } else {
                &[]
            };
            fires(
                [
                    agent(),
                    beside_idle(&[(&*waiting, "1")], &of_replica(3)),
                    available(),
                ],
                expected,
            );
        }

        for (phase, alert) in [
            ("migrating", true),
            ("waiting_for_conflict_resolution", false),
            ("converged", false),
        ] {
            let shown = format!("calico_migration_phase{{phase=\"{phase}\"}}");
            let expected: &[&str] = if alert {
                &["CalicoMigrationHoldsTheLock"]
            } else {
                &[]
            };
            fires(
                [
                    agent(),
                    beside_idle(&[(&*shown, "1")], &of_replica(1)),
                    available(),
                ],
                expected,
            );
        }

        fires(
            [agent(), idle(), unavailable("2x120")],
            &["CalicoCniDaemonSetUnavailable"],
        );
        let container = r#"pod="calico-cni-x",container="install-cni""#;
        let in_state = |reason: &str, values: &str| {
            let labels = format!(r#"{container},reason="{reason}""#);
            vec![kube_state(
                "kube_pod_init_container_status_waiting_reason",
                &labels,
                values,
            )]
        };
        // The container runs for a minute between two pauses.
        let looping = in_state("CrashLoopBackOff", &"1 1 1 0 ".repeat(30));
        fires([agent(), idle(), looping], &["CalicoCniInstallationFails"]);
        fires(
            [agent(), idle(), in_state("ImagePullBackOff", "1x120")],
            &["CalicoCniInstallationFails"],
        );
        fires([agent(), idle(), in_state("PodInitializing", "1x120")], &[]);
        let restarts = vec![kube_state(
            "kube_pod_init_container_status_restarts_total",
            container,
            "0+1x120",
        )];
        fires([agent(), idle(), restarts], &["CalicoCniInstallationFails"]);

        assert_pass(&host.dir("alerts"), &tests.into_inner());
        assert_eq!(fired.into_inner(), evaluation::alerts());
    });
}

#[test]
fn promtool_accepts_the_rules() {
    let promtool = match promtool() {
        Ok(promtool) => promtool.display().to_string(),
        Err(missing) => return skipped(&missing.to_string()),
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.json");
    fs::write(&file, evaluation::rules().to_string()).unwrap();
    let checked = integration_tests::command::run(
        &promtool,
        &["check", "rules", &file.display().to_string()],
    )
    .unwrap();
    assert!(checked.contains("SUCCESS: 21 rules found"), "{checked}");
}
