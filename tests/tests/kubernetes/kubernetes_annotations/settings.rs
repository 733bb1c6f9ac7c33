//! Conditions and files on the node for which ADD waits or which it reads.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Instant;

use integration_tests::cluster::{Cluster, Pod};
use integration_tests::content::Content;
use integration_tests::controllers::await_that;
use integration_tests::kernel;
use integration_tests::plugin::{self, Outcome};
use serde_json::{Value, json};

use crate::kubernetes_annotations::{annotated, annotation, on};

fn watches_a_directory(process: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fdinfo"))
        .unwrap()
        .flatten();
    files
        .filter_map(|file| fs::read_to_string(file.path()).ok())
        .any(|text| text.contains("inotify wd:"))
}

#[on(kubernetes_v1)]
fn add_waits_for_the_policy_status_file_until_the_timeout(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let directory = cluster.host.dir("endpoint-status");
    let wait = |seconds: i64| {
        cluster.conf(
            "node1",
            json!({
                "policy_setup_timeout_seconds": seconds, "endpoint_status_dir": directory,
            }),
        )
    };
    let pod = annotated(cluster, 1, &[]);
    let before = cluster.state();
    let error = cluster.verb("ADD", &pod, &wait(-1)).run().error();
    assert!(
        error.msg.contains("policy_setup_timeout_seconds"),
        "{error:?}"
    );
    cluster.assert_unchanged(&before);

    // Felix writes the file only after the endpoint exists.
    let (file, conf) = (directory.join("k8s suite%2Fpod1 eth0"), wait(600));
    let call = cluster.verb("ADD", &pod, &conf);
    let child = call.spawn().unwrap();
    await_that(plugin::DEADLINE, || {
        Ok(!annotation(cluster, "pod1", "podIP").is_null())
    })
    .unwrap();
    await_that(plugin::DEADLINE, || Ok(watches_a_directory(child.id()))).unwrap();
    fs::write(&file, "").unwrap();
    let outcome = plugin::wait(child, Instant::now(), plugin::DEADLINE).unwrap();
    outcome.success();
    cluster.delete(&pod, &conf);

    fs::remove_file(file).unwrap();
    let late = annotated(cluster, 2, &[]);
    let mut brief = wait(1);
    brief["log_level"] = json!("info");
    let outcome = cluster.verb("ADD", &late, &brief).run();
    outcome.success();
    assert!(
        outcome
            .stderr
            .contains("by which Felix reports the policy of the pod"),
        "it does not wait: {}",
        outcome.stderr
    );
    cluster.delete(&late, &conf);
    cluster.assert_nothing_left();
}

/// Adds a pod that waits at a gate, calls `meanwhile`, opens the gate, and deletes the pod. `judge`
/// gets the outcome of the ADD.
fn add_at_a_gate(
    cluster: &Cluster,
    pod: &Pod,
    meanwhile: impl FnOnce(),
    judge: impl FnOnce(&Outcome),
) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let gate = format!("http://{}/ready", listener.local_addr().unwrap());
    let conf = cluster.conf("node1", json!({ "readiness_gates": [gate] }));
    let child = cluster.verb("ADD", pod, &conf).spawn().unwrap();
    let (mut asking, _) = listener.accept().unwrap();
    meanwhile();
    let _ = asking.read(&mut [0; 4096]).unwrap();
    asking
        .write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        .unwrap();
    judge(&plugin::wait(child, Instant::now(), plugin::DEADLINE).unwrap());
    drop(listener);
    cluster.delete(pod, &conf);
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn add_waits_for_gates_without_changes(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let pod = annotated(cluster, 1, &[]);
    let meanwhile = || {
        assert_eq!(annotation(cluster, "pod1", "podIP"), Value::Null);
        cluster.assert_nothing_left();
    };
    add_at_a_gate(cluster, &pod, meanwhile, |outcome| _ = outcome.success());
}

// A gate may take half a minute, and objects read before would be out of date.
#[on(kubernetes_v1)]
fn add_uses_the_pools_that_exist_after_the_gates_open(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let pod = annotated(cluster, 1, &[]);
    let meanwhile = || cluster.store.delete("ippools/pool4").unwrap();
    add_at_a_gate(cluster, &pod, meanwhile, |outcome| {
        let error = outcome.error();
        assert!(error.msg.contains("qualified ippool"), "{error:?}");
    });
}

#[on(kubernetes_v1)]
fn add_reads_mtu_and_node_name_from_their_files_or_fails_unchanged(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let required = cluster.conf("node1", json!({ "require_mtu_file": true }));
    let pod = annotated(cluster, 1, &[]);
    let before = cluster.state();
    let error = cluster.verb("ADD", &pod, &required).run().error();
    assert!(
        error
            .msg
            .starts_with("failed to read MTU file /var/lib/calico/mtu"),
        "{error:?}"
    );
    // The file is checked before an address is assigned; otherwise the block's sequence number
    // would have changed.
    cluster.assert_unchanged(&before);
    let mut by_file = cluster.conf("node1", json!({ "nodename_file_optional": false }));
    by_file.as_object_mut().unwrap().remove("nodename");
    let error = cluster.verb("ADD", &pod, &by_file).run().error();
    assert!(error.msg.contains("/var/lib/calico/nodename"), "{error:?}");
    assert!(error.details.contains("calico/node"), "{error:?}");
    cluster.assert_unchanged(&before);

    fs::create_dir_all("/var/lib/calico").unwrap();
    fs::write("/var/lib/calico/mtu", "1430\n").unwrap();
    fs::write("/var/lib/calico/nodename", "node1").unwrap();
    by_file["require_mtu_file"] = json!(true);
    let result = cluster.add(&pod, &by_file);
    assert_eq!(result["interfaces"][1]["mtu"], 1430);
    assert_eq!(
        kernel::pod(cluster.host, "pod1").unwrap()["links"]["eth0"]["mtu"],
        1430
    );
    cluster.delete(&pod, &by_file);
    assert_eq!(annotation(cluster, "pod1", "podIP"), "");
    cluster.assert_nothing_left();
}
