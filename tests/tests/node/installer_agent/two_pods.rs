//! Two pods on one node, as in an upgrade. Only the pod that installed last restores files, unless
//! both pods have the same version and environment.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use integration_tests::clock::KNOWN;
use integration_tests::installation::{BIN, NET};
use integration_tests::neighbours::OwnWrites;
use integration_tests::node_pod::NodePod;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

use crate::installer_agent::pod::{CONF, ClockedAgent, REASON, in_pod, install};

/// The address of the later pod's agent.
const LATER_LISTEN: &str = "127.0.0.1:9098";

const STATE: &str = "var/lib/calico/cni-install-state.json";

/// Another configuration than the built-in one.
const LATER: &str = r#"{"name": "k8s-pod-network", "cniVersion": "1.0.0", "plugins": [{"type": "calico", "mtu": 1400,
    "datastore_type": "kubernetes", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}]}"#;

/// Returns the inode of each file of the configuration directory. A restored file has another
/// inode.
fn files(pod: &NodePod) -> BTreeMap<String, u64> {
    use std::os::unix::fs::MetadataExt;
    let directory: PathBuf = pod.container.path(NET);
    let inode = |name: String| {
        (
            name.clone(),
            fs::metadata(directory.join(name)).unwrap().ino(),
        )
    };
    // Both agents renew the token in the kubeconfig.
    pod.container
        .names(NET)
        .into_iter()
        .filter(|name| name != "calico-kubeconfig")
        .map(inode)
        .collect()
}

/// Lets the agent check the files. Asserts that it takes itself for the agent of an earlier pod and
/// restores nothing.
fn assert_restores_nothing(agent: &mut ClockedAgent) {
    agent.check_files();
    agent
        .await_reason(&[
            "restoring no file",
            "delete its DaemonSet if the node has two",
        ])
        .unwrap();
    assert_eq!(agent.metric("restoration_suspended").unwrap(), 1);
    assert_eq!(agent.metric("files_restored_total").unwrap(), 0);
}

/// Starts an agent that owns the files. Then installs as a later pod with these variables does.
fn agent_before_a_later_pod(pod: &mut NodePod, variables: &[(&str, &str)]) -> ClockedAgent {
    install(pod);
    let earlier = ClockedAgent::start(pod);
    earlier.await_page("/readiness", 200).unwrap();
    assert_eq!(earlier.metric("restoration_suspended").unwrap(), 0);
    for (name, value) in variables {
        pod.set(name, *value);
    }
    install(pod);
    earlier
}

#[test]
fn configuration_of_a_later_pod_under_another_name_stays_the_only_one() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        let mut earlier =
            agent_before_a_later_pod(&mut pod, &[("CNI_CONF_NAME", "05-calico.conflist")]);
        let installed = files(&pod);
        assert_eq!(installed.keys().collect::<Vec<_>>(), ["05-calico.conflist"]);
        for _ in 0..3 {
            assert_restores_nothing(&mut earlier);
            assert_eq!(files(&pod), installed);
        }
    });
}

/// After a rollback, the pod with the earlier environment is the one that installed last.
#[test]
fn files_belong_to_the_earlier_pod_again_after_it_installs_again() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        let mut earlier = agent_before_a_later_pod(&mut pod, &[("CNI_NETWORK_CONFIG", LATER)]);
        assert_restores_nothing(&mut earlier);
        pod.set("CNI_NETWORK_CONFIG", "");
        install(&mut pod);
        earlier.make_check_due();
        earlier.await_page("/readiness", 200).unwrap();
        assert_eq!(earlier.metric("restoration_suspended").unwrap(), 0);
        fs::remove_file(pod.container.path(NET).join(CONF)).unwrap();
        earlier.check_and_restore();
        assert!(pod.container.conf(CONF).is_ok());
    });
}

/// The earlier agent would install all programs of its version.
#[test]
fn files_of_a_later_version_are_not_restored_by_the_agent_of_an_earlier_one() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        let mut earlier = agent_before_a_later_pod(&mut pod, &[]);
        let file = pod.container.path(STATE);
        let mut state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        state["version"] = json!("v9.9.9");
        fs::write(&file, state.to_string()).unwrap();
        fs::remove_file(pod.container.path(BIN).join("portmap")).unwrap();
        assert_restores_nothing(&mut earlier);
        assert!(!pod.container.names(BIN).contains(&"portmap".to_owned()));
    });
}

#[test]
fn two_running_agents_write_each_file_once() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        let mut earlier = agent_before_a_later_pod(
            &mut pod,
            &[
                ("CNI_NETWORK_CONFIG", LATER),
                ("CNI_AGENT_LISTEN", LATER_LISTEN),
            ],
        );
        let installed = pod.container.conf(CONF).unwrap();
        let mut later = ClockedAgent::start(&pod);
        later.await_metric("file_checks_total", 1).unwrap();
        let watched = [
            pod.container.path(NET).join(CONF),
            pod.container.path(BIN).join("portmap"),
        ];
        let mut writes = watched
            .each_ref()
            .map(|file| OwnWrites::watch(file).unwrap());
        for removals in 1..=3 {
            watched
                .iter()
                .for_each(|file| fs::remove_file(file).unwrap());
            for _ in 0..2 {
                assert_restores_nothing(&mut earlier);
                later.check_files();
            }
            assert_eq!(
                writes.each_mut().map(|writes| writes.count().unwrap()),
                [removals; 2]
            );
        }
        later.await_page("/readiness", 200).unwrap();
        assert_eq!(pod.container.conf(CONF).unwrap(), installed);
    });
}

/// Both agents count the files as their own, as with two DaemonSets that differ only in their
/// names.
#[test]
fn two_identical_pods_write_nothing_in_turn() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        let mut earlier = agent_before_a_later_pod(&mut pod, &[("CNI_AGENT_LISTEN", LATER_LISTEN)]);
        let mut later = ClockedAgent::start(&pod);
        for agent in [&earlier, &later] {
            agent.await_metric("token_refreshes_total", 1).unwrap();
            agent.await_metric("file_checks_total", 1).unwrap();
        }
        let conf = pod.container.path(NET).join(CONF);
        let program = pod.container.path(BIN).join("portmap");
        let watched = [
            pod.kubeconfig(),
            conf.clone(),
            program,
            pod.container.path(STATE),
        ];
        let mut writes = watched.map(|file| OwnWrites::watch(&file).unwrap());
        let mut written = || writes.each_mut().map(|writes| writes.count().unwrap());
        let mut check = |times: usize| {
            for _ in 0..times {
                earlier.check_files();
                later.check_files();
            }
        };
        check(3);
        assert_eq!(written(), [0; 4]);
        fs::remove_file(&conf).unwrap();
        check(2);
        let [token, conf, program, _] = written();
        assert_eq!((token, conf, program), (0, 1, 0));
        for agent in [&earlier, &later] {
            agent.await_page("/readiness", 200).unwrap();
            assert_eq!(agent.metric("restoration_suspended").unwrap(), 0);
        }
    });
}
