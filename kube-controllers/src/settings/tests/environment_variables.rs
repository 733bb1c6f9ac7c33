//! The variables of the environment alone: their values, and the tables that list them.

use super::*;

/// Returns the number of workers in force, and the notes about them.
fn merged_workers(variables: &[(&str, &str)], mode: Mode) -> (usize, Vec<String>) {
    let merged = merge(&environment(variables), &default_configuration(), mode);
    let notes = merged
        .notes
        .into_iter()
        .filter(|note| note.starts_with("NODE_WORKERS"))
        .collect();
    (merged.settings.workers_of(ControllerName::Node), notes)
}

#[test]
fn node_workers_with_effect_are_not_noted() {
    assert_eq!(
        merged_workers(&[("NODE_WORKERS", "4")], ETCD),
        (4, Vec::new())
    );
    let host_endpoints = [("NODE_WORKERS", "4"), ("AUTO_HOST_ENDPOINTS", "enabled")];
    assert_eq!(
        merged_workers(&host_endpoints, Mode::Kubernetes(ApiGroup::V3)),
        (4, Vec::new())
    );
    for mode in [ETCD, KUBERNETES] {
        assert_eq!(merged_workers(&[], mode), (1, Vec::new()));
    }
}

#[test]
fn node_workers_without_effect_are_noted_with_the_reason() {
    let (_, notes) = merged_workers(&[("NODE_WORKERS", "4")], KUBERNETES);
    assert!(matches!(
        &notes[..],
        [note] if note.starts_with("NODE_WORKERS=4 has no effect: with the datastore"),
    ));
    let others = [("NODE_WORKERS", "4"), ("ENABLED_CONTROLLERS", "policy")];
    let (_, notes) = merged_workers(&others, ETCD);
    assert_eq!(
        notes,
        ["NODE_WORKERS=4 has no effect: the controller node is not enabled"]
    );
}

#[test]
fn invalid_node_workers_are_noted_and_count_as_1() {
    for text in ["0", "many", "-1"] {
        let (workers, notes) = merged_workers(&[("NODE_WORKERS", text)], ETCD);
        let expected =
            format!("NODE_WORKERS: `{text}` is not a whole number from 1 on; 1 worker is in force");
        assert_eq!((workers, notes), (1, vec![expected]));
    }
}

#[test]
fn every_variable_read_is_listed_once_in_the_table() {
    let looked_up = std::cell::RefCell::new(BTreeSet::new());
    let lookup = |name: &str| {
        looked_up.borrow_mut().insert(name.to_owned());
        None
    };
    Environment::read(Variables::new(&lookup)).unwrap();
    let listed: Vec<_> = variables::CONTROLLERS
        .iter()
        .chain(&variables::DATASTORE)
        .map(|one| one.name)
        .collect();
    let distinct: BTreeSet<_> = listed.iter().copied().collect();
    assert_eq!(listed.len(), distinct.len());
    let missing: Vec<_> = looked_up
        .into_inner()
        .into_iter()
        .filter(|name| !distinct.contains(name.as_str()))
        .collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn controllers_readme_lists_every_variable() {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let is_row = |line: &&str| {
        let name = line
            .strip_prefix("| `")
            .and_then(|rest| rest.split_once("` |"))
            .map(|(name, _)| name);
        name.is_some_and(|name| {
            name.chars()
                .all(|letter| matches!(letter, 'A'..='Z' | '0'..='9' | '_'))
        })
    };
    let rows: Vec<_> = readme.lines().filter(is_row).collect();
    let variables = variables::CONTROLLERS.iter().chain(&variables::DATASTORE);
    let expected: Vec<_> = variables
        .map(|one| format!("| `{}` | {} | {} |", one.name, one.meaning, one.default))
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn gc_parallelism_default_matches_the_help() {
    let documented = variables::CONTROLLERS
        .iter()
        .find(|variable| variable.name == "GC_PARALLELISM")
        .unwrap();
    assert_eq!(
        GcLimits::default().parallelism.to_string(),
        documented.default
    );
}

#[test]
fn invalid_environment_values_are_rejected() {
    for (name, text, expected) in [
        ("LOG_LEVEL", "loud", "LOG_LEVEL: `loud` is not one of"),
        (
            "ENABLED_CONTROLLERS",
            "node,nodes",
            "`nodes` is not a controller",
        ),
        (
            "RECONCILER_PERIOD",
            "5",
            "RECONCILER_PERIOD: `5` is not a duration",
        ),
        (
            "COMPACTION_PERIOD",
            "ten",
            "COMPACTION_PERIOD: `ten` is not a duration",
        ),
        (
            "HEALTH_ENABLED",
            "yes",
            "HEALTH_ENABLED: `yes` is not true or false",
        ),
        (
            "SYNC_NODE_LABELS",
            "enabled",
            "SYNC_NODE_LABELS: `enabled` is not true",
        ),
        (
            "AUTO_HOST_ENDPOINTS",
            "true",
            "AUTO_HOST_ENDPOINTS: `true` is not enabled or disabled",
        ),
        (
            "LEAK_GRACE_PERIOD",
            "15",
            "LEAK_GRACE_PERIOD: `15` is not a duration",
        ),
        (
            "PROMETHEUS_METRICS_PORT",
            "70000",
            "PROMETHEUS_METRICS_PORT: `70000` is not a TCP port",
        ),
        (
            "PROFILE_WORKERS",
            "two",
            "PROFILE_WORKERS: `two` is not a whole number",
        ),
        (
            "POLICY_WORKERS",
            "0",
            "POLICY_WORKERS: `0` is not a whole number from 1",
        ),
        (
            "LEADER_ELECTION",
            "maybe",
            "LEADER_ELECTION: `maybe` is not true or false",
        ),
        (
            "STATUS_LIVENESS",
            "true",
            "STATUS_LIVENESS: `true` is not readiness or heartbeat",
        ),
        ("GC_MODE", "dry", "GC_MODE: `dry` is not reclaim or report"),
        (
            "GC_REQUESTS_PER_SECOND",
            "-1",
            "GC_REQUESTS_PER_SECOND: `-1` is not",
        ),
        (
            "ORPHAN_ENDPOINT_GRACE_PERIOD",
            "x",
            "ORPHAN_ENDPOINT_GRACE_PERIOD: `x` is not a duration",
        ),
    ] {
        let error = try_environment(&[(name, text)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(
            try_environment(&[(name, " ")]),
            try_environment(&[]),
            "{name} set to nothing"
        );
    }
}
