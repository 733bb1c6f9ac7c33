//! Calls with an unreadable journal of deferred DELs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use integration_tests::cluster::{Cluster, on_local};
use integration_tests::content::Content;
use integration_tests::journal::JOURNAL;
use serde_json::{Value, json};

/// Returns a configuration of version 1.1.0, which STATUS needs.
fn conf(cluster: &Cluster<'_>) -> Value {
    cluster.conf(
        "node1",
        json!({ "cniVersion": "1.1.0", "log_level": "info" }),
    )
}

fn with_journal(make: impl FnOnce(&Path) + Send, test: impl FnOnce(&Cluster<'_>) + Send) {
    on_local(|cluster| {
        cluster.load(&Content::dual_stack());
        let journal = Path::new(JOURNAL);
        fs::create_dir_all(journal.parent().unwrap()).unwrap();
        make(journal);
        test(cluster);
    });
}

/// Creates a link to itself in place of a failing disk. File modes do not restrict root.
fn link_to_itself(journal: &Path) {
    symlink(journal, journal).unwrap();
}

#[test]
fn add_with_an_unreadable_journal_directory_is_refused_without_changes() {
    with_journal(link_to_itself, |cluster| {
        let (conf, pod) = (conf(cluster), cluster.pod(1));
        let before = cluster.state();
        let error = cluster.verb("ADD", &pod, &conf).run().unwrap().error();
        assert!(error.code == 5 && error.msg.contains(JOURNAL), "{error:?}");
        cluster.assert_unchanged(&before);

        fs::remove_file(JOURNAL).unwrap();
        cluster.add(&pod, &conf);
        cluster.delete(&pod, &conf);
        cluster.assert_nothing_left();
    });
}

#[test]
fn status_and_del_with_an_unreadable_journal_succeed_and_log_once() {
    with_journal(
        |_| (),
        |cluster| {
            let (conf, pod) = (conf(cluster), cluster.pod(1));
            cluster.add(&pod, &conf);
            _ = fs::remove_dir_all(JOURNAL);
            link_to_itself(Path::new(JOURNAL));
            for verb in ["STATUS", "DEL"] {
                let outcome = cluster.verb(verb, &pod, &conf).run().unwrap();
                assert_eq!(outcome.success(), "", "{verb}");
                let told = outcome
                    .stderr
                    .lines()
                    .filter(|line| line.contains(JOURNAL))
                    .count();
                assert_eq!(told, 1, "{verb}: {}", outcome.stderr);
            }
            cluster.assert_nothing_left();
        },
    );
}

#[test]
fn add_with_a_file_in_place_of_the_journal_succeeds_and_logs() {
    with_journal(
        |journal| fs::write(journal, "").unwrap(),
        |cluster| {
            let (conf, pod) = (conf(cluster), cluster.pod(1));
            let outcome = cluster.verb("ADD", &pod, &conf).run().unwrap();
            outcome.success();
            assert!(outcome.stderr.contains(JOURNAL), "{}", outcome.stderr);
            cluster.delete(&pod, &conf);
            cluster.assert_nothing_left();
        },
    );
}

#[test]
fn calico_ipam_journal_with_an_unreadable_directory_fails() {
    with_journal(link_to_itself, |cluster| {
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
    });
}
