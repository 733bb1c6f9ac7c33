//! Calls with an unreadable journal of deferred DELs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::content::Content;
use integration_tests::journal::JOURNAL;
use serde_json::{Value, json};

/// Loads a node and pools, and creates the directory of the journal's directory. Returns a pod, and
/// a configuration of version 1.1.0, which STATUS needs.
fn prepared(cluster: &Cluster<'_>) -> (Pod, Value) {
    cluster.load(&Content::dual_stack());
    fs::create_dir_all(Path::new(JOURNAL).parent().unwrap()).unwrap();
    let more = json!({ "cniVersion": "1.1.0", "log_level": "info" });
    (cluster.pod(1), cluster.conf("node1", more))
}

/// Creates a link to itself in place of the journal, as on a failing disk. File modes do not
/// restrict root.
fn link_journal_to_itself() {
    symlink(JOURNAL, JOURNAL).unwrap();
}

#[on(local)]
fn add_with_an_unreadable_journal_directory_is_refused_without_changes(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    link_journal_to_itself();
    let before = cluster.state();
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(error.code == 5 && error.msg.contains(JOURNAL), "{error:?}");
    cluster.assert_unchanged(&before);

    fs::remove_file(JOURNAL).unwrap();
    cluster.add(&pod, &conf);
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(local)]
fn status_and_del_with_an_unreadable_journal_succeed_and_log_once(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    cluster.add(&pod, &conf);
    _ = fs::remove_dir_all(JOURNAL);
    link_journal_to_itself();
    for verb in ["STATUS", "DEL"] {
        let outcome = cluster.verb(verb, &pod, &conf).run();
        assert_eq!(outcome.success(), "", "{verb}");
        let lines = outcome
            .stderr
            .lines()
            .filter(|line| line.contains(JOURNAL))
            .count();
        assert_eq!(lines, 1, "{verb}: {}", outcome.stderr);
    }
    cluster.assert_nothing_left();
}

#[on(local)]
fn add_with_a_file_in_place_of_the_journal_succeeds_and_logs(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    fs::write(JOURNAL, "").unwrap();
    let outcome = cluster.verb("ADD", &pod, &conf).run();
    outcome.success();
    assert!(outcome.stderr.contains(JOURNAL), "{}", outcome.stderr);
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(local)]
fn calico_ipam_journal_with_an_unreadable_directory_fails(cluster: &Cluster<'_>) {
    prepared(cluster);
    link_journal_to_itself();
    let listed = cluster
        .store
        .calico_ipam(&cluster.plugins, &["journal"])
        .unwrap();
    assert_eq!((listed.exit, listed.stdout.as_str()), (Some(1), ""));
    assert!(
        listed.stderr.contains(&format!("read {JOURNAL}: ")),
        "{}",
        listed.stderr
    );
}
