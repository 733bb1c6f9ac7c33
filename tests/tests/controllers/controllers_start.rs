//! kube-controllers on each datastore: its first objects, changes of its configuration, and its
//! exit.

mod startup;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use integration_tests::command::present;
use integration_tests::controllers::{PATIENCE, await_that, exit_text};
use integration_tests::plugin::Plugins;
use integration_tests::proxy::{Fault, Point};
use integration_tests::skip::skipped;
use prost::Message;
use serde_json::{Value, json};

use crate::controllers_start::startup::{
    Startup, await_ready, await_served, check_status, on, page, serves,
};

/// Upstream's tests search for this text.
const RESTARTING: &str = "Received exit status 129, restarting";

#[on(etcd, kubernetes_v1, kubernetes_v3)]
fn start_on_an_empty_datastore_creates_the_required_objects_and_sigterm_ends_with_success(
    startup: &mut Startup<'_>,
) {
    let mut controllers = startup.start(startup.setup().arg("--health-port=9099"));
    await_ready(&controllers, true);
    await_served(9099, "/readiness");
    assert!(serves(9099, "/liveness"));
    let information = || startup.cluster().calico("clusterinformations", "default");
    let spec = &information()["spec"];
    let guid = spec["clusterGUID"].as_str().unwrap();
    assert!(
        guid.len() == 32
            && guid
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')),
        "{guid}"
    );
    let cluster_type = if startup.group.is_some() {
        "k8s,kdd"
    } else {
        "k8s"
    };
    assert_eq!(
        *spec,
        json!({ "clusterGUID": guid, "clusterType": cluster_type, "datastoreReady": true })
    );
    for (name, action, order) in [
        ("default", "Deny", 1_000_000),
        ("kube-admin", "Pass", 1_000),
        ("kube-baseline", "Pass", 10_000_000),
    ] {
        let tier = startup.cluster().calico("tiers", name);
        assert_eq!(
            tier["spec"],
            json!({ "defaultAction": action, "order": order }),
            "{name}"
        );
    }
    assert_eq!(exit_text(controllers.terminate().unwrap()), "0");
    assert!(controllers.log().unwrap().ends_with("; the process ends\n"));

    controllers.restart().unwrap();
    await_ready(&controllers, true);
    assert_eq!(information()["spec"]["clusterGUID"], guid);
}

#[on(etcd, kubernetes_v1, kubernetes_v3)]
fn configuration_is_created_and_its_status_restored(startup: &mut Startup<'_>) {
    let setup = startup
        .setup()
        .env("ENABLED_CONTROLLERS", "node")
        .env("LOG_LEVEL", "info");
    let mut controllers = startup.start(setup);
    startup.await_status("/environmentVars/LOG_LEVEL", &json!("info"));
    let made = startup.configuration();
    assert_eq!(
        made["spec"]["controllers"].as_object().unwrap().len(),
        7,
        "{made}"
    );
    assert_eq!(made["spec"]["prometheusMetricsPort"], 9094);

    startup.overwrite_status();
    let restored = await_that(PATIENCE, || {
        Ok(startup.configuration()["status"] == made["status"])
    });
    assert!(restored.is_ok(), "{}", startup.configuration());

    // A process that observed the deletion would wait a minute, because a tool may replace the
    // object.
    startup.delete_configuration();
    controllers.terminate().unwrap();
    controllers.restart().unwrap();
    let again = await_that(PATIENCE, || {
        Ok(startup.configuration()["status"] == made["status"])
    });
    assert!(again.is_ok(), "{}", startup.configuration());
    let again = startup.configuration();
    assert_eq!(again["spec"], made["spec"]);
    assert_ne!(again["metadata"]["uid"], made["metadata"]["uid"]);
}

#[on(etcd, kubernetes_v1, kubernetes_v3)]
fn configuration_changes_apply_in_place_or_by_a_restart(startup: &mut Startup<'_>) {
    let controllers = startup.start(startup.setup());
    startup.await_status("/runningConfig/logSeverityScreen", &json!("Info"));
    startup.configure(&json!({ "spec": {
        "logSeverityScreen": "Debug", "prometheusMetricsPort": 9097,
        "controllers": { "node": { "leakGracePeriod": "1h" } },
    } }));
    startup.await_status("/runningConfig/logSeverityScreen", &json!("Debug"));
    startup.await_status(
        "/runningConfig/controllers/node/leakGracePeriod",
        &json!("1h0m0s"),
    );
    await_served(9097, "/metrics");
    assert!(!serves(9094, "/metrics"));
    assert!(
        !controllers.log().unwrap().contains(RESTARTING),
        "{}",
        controllers.log().unwrap()
    );

    startup.configure(&json!({ "spec": { "controllers": { "loadBalancer": null } } }));
    controllers.await_log(RESTARTING, 1).unwrap();
    startup.await_status("/runningConfig/controllers/loadBalancer", &Value::Null);
    let requested = json!({ "assignIPs": "RequestedServicesOnly" });
    startup.configure(&json!({ "spec": { "controllers": { "loadBalancer": requested } } }));
    controllers.await_log(RESTARTING, 2).unwrap();
    startup.await_status(
        "/runningConfig/controllers/loadBalancer/assignIPs",
        &json!("RequestedServicesOnly"),
    );
    await_ready(&controllers, true);
    let log = controllers.log().unwrap();
    assert_eq!(log.matches(" version ").count(), 1, "it is one process");
    assert!(!log.contains("[ERROR]"), "{log}");
}

#[on(etcd, kubernetes_v1)]
fn configuration_does_not_override_the_environment(startup: &mut Startup<'_>) {
    let setup = startup
        .setup()
        .env("ENABLED_CONTROLLERS", "node")
        .env("LOG_LEVEL", "warn")
        .env("AUTO_HOST_ENDPOINTS", "Disabled");
    let controllers = startup.start(setup.env("HEALTH_ENABLED", "false"));
    startup.await_status("/runningConfig/logSeverityScreen", &json!("Warning"));
    startup.configure(&json!({ "spec": {
        "logSeverityScreen": "Debug", "healthChecks": "Enabled",
        "controllers": {
            "namespace": null, "loadBalancer": null,
            "node": { "hostEndpoint": { "autoCreate": "Enabled" } },
        },
    } }));
    // Once the status shows this change, the program has also read the change before it.
    startup
        .configure(&json!({ "spec": { "controllers": { "node": { "leakGracePeriod": "7m" } } } }));
    startup.await_status(
        "/runningConfig/controllers/node/leakGracePeriod",
        &json!("7m0s"),
    );
    startup.await_status("/runningConfig/logSeverityScreen", &json!("Warning"));
    startup.await_status("/runningConfig/healthChecks", &json!("Disabled"));
    startup.await_status(
        "/runningConfig/controllers/node/hostEndpoint/autoCreate",
        &json!("Disabled"),
    );
    startup.await_status("/environmentVars/AUTO_HOST_ENDPOINTS", &json!("Disabled"));
    assert!(!controllers.log().unwrap().contains(RESTARTING));
    await_ready(&controllers, true);
}

/// Upstream fills in defaults only through its own client, so an object written with kubectl lacks
/// them.
#[on(etcd, kubernetes_v1)]
fn configuration_written_with_kubectl_gets_defaults(startup: &mut Startup<'_>) {
    startup.cluster().put(
        "KubeControllersConfiguration",
        "kubecontrollersconfigurations",
        "default",
        &json!({ "controllers": { "node": {}, "namespace": {} } }),
    );
    let _controllers = startup.start(startup.setup());
    startup.await_status(
        "/runningConfig/controllers/node/leakGracePeriod",
        &json!("15m0s"),
    );
    await_served(9094, "/metrics");
    assert!(!serves(9094, "/debug/pprof/profile"));
    let namespace = if startup.group.is_some() {
        Value::Null
    } else {
        json!({ "reconcilerPeriod": "5m0s" })
    };
    startup.await_status("/runningConfig/controllers/namespace", &namespace);
    assert_eq!(
        startup.configuration()["spec"]["controllers"]["policy"],
        Value::Null,
        "no program completes the object"
    );
}

#[on(etcd, kubernetes_v1)]
fn start_with_unreachable_servers_waits_and_stays_live(startup: &mut Startup<'_>) {
    let (proxy, setup) = startup.behind_proxy();
    proxy.go_away();
    if startup.group.is_none() {
        startup.servers.etcd.freeze().unwrap();
    }
    // Without the heartbeat, `-l` returns the result of `-r`, as upstream's does.
    let mut setup = setup.env("STATUS_LIVENESS", "heartbeat");
    if startup.group.is_some() {
        // With an election, the replica would wait for half a minute before its first write: the
        // Lease is too old when the server is reachable.
        setup = setup.env("LEADER_ELECTION", "false");
    }
    let mut controllers = startup.start(setup);
    controllers.await_log("trying again", 1).unwrap();
    assert!(!check_status(&controllers, "-r").0);
    assert_eq!(check_status(&controllers, "-l"), (true, "Live".into()));
    assert_eq!(exit_text(controllers.terminate().unwrap()), "0");
    controllers.restart().unwrap();
    controllers.await_log("trying again", 2).unwrap();
    if startup.group.is_none() {
        startup.servers.etcd.thaw().unwrap();
    }
    proxy.arm(None);
    await_ready(&controllers, true);

    proxy.go_away();
    await_ready(&controllers, false);
    // At first only the check of the datastore may have failed.
    let said = || check_status(&controllers, "-r").1;
    let names_server = await_that(PATIENCE, || {
        Ok(said().contains("Error reaching apiserver: "))
    });
    assert!(names_server.is_ok(), "{}", said());
    assert_eq!(
        check_status(&controllers, "-l"),
        (true, "Live".into()),
        "the process needs no restart"
    );
    proxy.arm(None);
    await_ready(&controllers, true);
    assert!(controllers.terminate().unwrap().success());
}

/// The API server becomes unreachable at the request for the KubeControllersConfiguration.
#[on(kubernetes_v3)]
fn readiness_names_a_server_lost_before_the_configuration_read(startup: &mut Startup<'_>) {
    let (proxy, setup) = startup.behind_proxy();
    proxy.arm(Some((
        Point::First("GET", "kubecontrollersconfigurations"),
        Fault::Gone,
    )));
    // With an election, the replica would wait for half a minute: the Lease is too old when the
    // server is reachable.
    let setup = setup.env("LEADER_ELECTION", "false");
    let controllers = startup.start(setup);
    let reasons = || check_status(&controllers, "-r").1;
    let expected = [
        "no controller runs until the object has been read: ",
        "Error reaching apiserver: ",
        "Error verifying datastore: ",
    ];
    let all = await_that(PATIENCE, || {
        Ok(expected.iter().all(|reason| reasons().contains(reason)))
    });
    assert!(all.is_ok(), "{}\n{}", reasons(), controllers.log().unwrap());
    proxy.arm(None);
    await_ready(&controllers, true);
}

/// A pprof profile, reduced to the depth of its stacks.
#[derive(Clone, PartialEq, prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
}

/// A signal handler can walk a stack only if the C library and the linking of the program allow it.
#[on(etcd)]
fn cpu_profile_contains_whole_stacks(startup: &mut Startup<'_>) {
    let controllers = startup.start(startup.setup());
    await_served(9094, "/metrics");
    startup.configure(&json!({ "spec": { "debugProfilePort": 9095 } }));
    await_served(9095, "/debug/pprof/");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Keeps the program busy during the profile.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = page(9095, "/debug/pprof/heap");
            }
        });
        // On a busy machine, 2 s yield few samples.
        let mut samples = Vec::new();
        let found = await_that(PATIENCE, || {
            let profile = page(9095, "/debug/pprof/profile?seconds=2")?;
            samples.extend(Profile::decode(&profile[..])?.samples);
            Ok(samples.iter().any(|sample| sample.locations.len() > 8))
        });
        is_over.store(true, Ordering::Relaxed);
        found.unwrap_or_else(|error| {
            panic!("{error:#}: {samples:?}\n{}", controllers.log().unwrap())
        });
    });
}

#[on(etcd)]
fn first_objects_equal_the_recorded_start_of_upstream(startup: &mut Startup<'_>) {
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/golden/controllers/kubernetes-to-calico.json"
    );
    let recording: Value = serde_json::from_slice(&std::fs::read(recording).unwrap()).unwrap();
    let enabled = "workloadendpoint,policy,namespace,serviceaccount,node";
    let setup = startup
        .setup()
        .env("ENABLED_CONTROLLERS", enabled)
        .env("LOG_LEVEL", "info");
    let _controllers = startup.start(setup.env("DATASTORE_TYPE", "etcdv3"));
    startup.await_status("/environmentVars/ENABLED_CONTROLLERS", &json!(enabled));
    let stored = startup.servers.etcd.dump().unwrap();
    let first = [
        "clusterinformations",
        "kubecontrollersconfigurations",
        "tiers",
    ];
    let expected = recording["store"].as_object().unwrap().iter();
    let expected: Vec<_> = expected
        .filter(|(key, _)| first.iter().any(|kind| key.contains(kind)))
        .collect();
    assert_eq!(expected.len(), 5);
    for (key, expected) in expected {
        let mut found = stored[key].clone();
        found["metadata"]["uid"] = json!("<uid>");
        found["metadata"]["creationTimestamp"] = json!("<time>");
        if found["spec"]["clusterGUID"].is_string() {
            found["spec"]["clusterGUID"] = json!("<guid>");
        }
        assert_eq!(found, *expected, "{key}");
    }
}

/// These controllers would write objects that the API server rejects. Upstream runs them
/// nevertheless (KC-020).
#[on(kubernetes_v1)]
fn etcd_controllers_on_a_kubernetes_datastore_are_refused_in_one_line(startup: &mut Startup<'_>) {
    let controllers = startup.start(
        startup
            .setup()
            .env("ENABLED_CONTROLLERS", "networkpolicy, namespace ,node"),
    );
    startup.await_status("/environmentVars/DATASTORE_TYPE", &json!("kubernetes"));
    startup.await_status("/runningConfig/controllers/policy", &Value::Null);
    let log = controllers.log().unwrap();
    let warnings: Vec<_> = log
        .lines()
        .filter(|line| line.contains("not running controllers whose objects"))
        .collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(
        warnings[0].contains("[WARNING]") && warnings[0].ends_with(": policy, namespace"),
        "{}",
        warnings[0]
    );
}

#[on(etcd)]
fn invalid_environment_variable_or_flag_ends_the_process(startup: &mut Startup<'_>) {
    for (name, text, expected) in [
        (
            "ENABLED_CONTROLLERS",
            "node,nodes",
            "ENABLED_CONTROLLERS: `nodes` is not a controller; valid are node",
        ),
        (
            "ENABLED_CONTROLLERS",
            "flannelmigration",
            "docs/moving-from-flannel.md says how to migrate",
        ),
        ("LOG_LEVEL", "loud", "LOG_LEVEL: `loud` is not one of"),
        (
            "POLICY_WORKERS",
            "many",
            "POLICY_WORKERS: `many` is not a whole number",
        ),
        (
            "RECONCILER_PERIOD",
            "soon",
            "RECONCILER_PERIOD: `soon` is not a duration",
        ),
        ("DATASTORE_TYPE", "local", "DATASTORE_TYPE: `local`"),
        ("KUBECONFIG", "/nowhere", "/nowhere"),
    ] {
        let mut controllers = startup
            .setup()
            .env(name, text)
            .start(startup.host, name)
            .unwrap();
        assert_eq!(exit_text(controllers.ended().unwrap()), "1", "{name}");
        let log = controllers.log().unwrap();
        assert!(
            log.contains("[ERROR]") && log.contains(expected),
            "{name}: {log}"
        );
    }
    let mut controllers = startup
        .setup()
        .arg("--no-such-flag")
        .start(startup.host, "flag")
        .unwrap();
    assert_eq!(exit_text(controllers.ended().unwrap()), "1");
    assert!(controllers.log().unwrap().contains("--no-such-flag"));
}

/// Upstream reads the variable and does not use it.
#[on(kubernetes_v1)]
fn node_workers_without_effect_are_named_in_a_warning(startup: &mut Startup<'_>) {
    for (text, expected) in [
        (
            "4",
            "NODE_WORKERS=4 has no effect: with the datastore kubernetes",
        ),
        ("none", "NODE_WORKERS: `none` is not"),
    ] {
        let controllers = startup
            .setup()
            .env("NODE_WORKERS", text)
            .start(startup.host, text)
            .unwrap();
        await_ready(&controllers, true);
        let log = controllers.log().unwrap();
        assert!(
            log.lines()
                .any(|line| line.contains("[WARNING]") && line.contains(expected)),
            "{log}"
        );
    }
}

/// A period of 0 turns compaction off.
#[on(etcd)]
fn etcd_is_compacted_every_compaction_period(startup: &mut Startup<'_>) {
    let mark = || {
        startup
            .servers
            .etcd
            .dump()
            .unwrap()
            .get("compact_rev_key")
            .and_then(Value::as_u64)
    };
    // An earlier test on this etcd may have left a mark.
    let former = mark();
    let controllers = startup.start(startup.setup().env("COMPACTION_PERIOD", "1s"));
    controllers
        .await_log("etcd compacted to revision", 2)
        .unwrap();
    startup.await_status("/runningConfig/etcdV3CompactionPeriod", &json!("1s"));
    assert!(mark() > former, "{:?} {former:?}", mark());
    drop(controllers);

    let never = startup
        .setup()
        .env("COMPACTION_PERIOD", "0")
        .start(startup.host, "never")
        .unwrap();
    await_ready(&never, true);
    let before = mark();
    sleep(Duration::from_secs(2));
    assert_eq!(mark(), before);
}

/// Every replica runs the probe every few seconds.
#[test]
fn check_status_opens_only_the_status_file() {
    if !present("strace") {
        return skipped("strace is not installed (Debian: strace)");
    }
    let directory = tempfile::tempdir().unwrap();
    let (status, trace) = (
        directory.path().join("status.json"),
        directory.path().join("trace"),
    );
    std::fs::write(
        &status,
        r#"{"Readiness":{"Startup":{"Ready":true,"Reason":""}}}"#,
    )
    .unwrap();
    let program = Plugins::locate().unwrap().dir().join("check-status");
    let calls = "trace=open,openat,clone,clone3,fork,vfork,socket,execve";
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-e", calls, "-o"])
        .arg(&trace)
        .arg(program)
        .args(["-r", "-f"])
        .arg(&status);
    assert!(strace.status().unwrap().success());
    let trace = std::fs::read_to_string(trace).unwrap();
    // A build against glibc loads libraries.
    let is_library = |line: &&str| line.contains("/lib") || line.contains("/etc/ld.so");
    let calls: Vec<&str> = trace.lines().filter(|line| !is_library(line)).collect();
    let [execve, open] = calls[..] else {
        panic!("{trace}")
    };
    assert!(
        execve.contains("execve(") && open.contains("status.json"),
        "{trace}"
    );
}
