//! The machine is unchanged after a test on a private host. `make test` compares the machine before
//! and after the whole run.

use integration_tests::Place;
use integration_tests::cluster::{Cluster, on};
use integration_tests::content::Content;
use integration_tests::machine::{Machine, servers};
use serde_json::json;

/// Runs CNI commands, including an ADD of a pod that is never deleted.
fn session(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let log = cluster.host.dir("log").join("calico.log");
    let conf = cluster.conf(
        "node1",
        json!({ "log_level": "debug", "log_file_path": log }),
    );
    let pod = cluster.pod(1);
    let mut check = conf.clone();
    check["prevResult"] = cluster.add(&pod, &conf);
    cluster.verb("CHECK", &pod, &check).run().success();
    let refused = cluster.conf("node1", json!({ "num_queues": 5000 }));
    cluster.verb("ADD", &cluster.pod(2), &refused).run().error();
    assert!(log.is_file());
    let running = servers(Some(std::process::id()));
    assert_eq!(
        running.len(),
        usize::from(cluster.store.name() == "etcd"),
        "{running:?}"
    );
}

#[test]
fn tests_on_private_hosts_leave_the_machine_unchanged() {
    let before = Machine::read().unwrap();
    on(Place::Etcd, session);
    on(Place::Local, session);
    let failed = std::panic::catch_unwind(|| {
        on(Place::Local, |cluster: &Cluster<'_>| {
            session(cluster);
            panic!("a test that fails half-way");
        });
    });
    assert!(failed.is_err());
    assert_eq!(
        before.changes(&Machine::read().unwrap()),
        Vec::<String>::new()
    );
    assert_eq!(servers(Some(std::process::id())), Vec::<String>::new());
}
