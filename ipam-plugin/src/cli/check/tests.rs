use datastore::ClusterStore as _;
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::ipam::report::LeakedHandle;
use node_process::process::block_on;
use serde_json::json;

use super::*;
use crate::cli::testing::Shell;

#[test]
fn check_of_a_consistent_datastore_reports_no_problem() {
    let shell = Shell::with_pool();
    let ip = shell.allocate("a");
    shell.endpoint("a", &ip);
    let text = shell.ok(&["check"]);
    assert_eq!(
        text,
        "1 pools, 1 blocks, 1 addresses in use, 1 handles, 1 endpoints\nnothing is wrong\n"
    );
}

#[test]
fn check_reports_all_inconsistencies_in_text_and_json() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    shell.endpoint("b", "10.0.0.250");
    shell.put(
        "/calico/ipam/v2/handle/orphan",
        r#"{"block":{"10.0.0.0/29":1},"deleted":false}"#,
    );
    shell.put("/calico/ipam/v2/handle/garbage", "{");
    let file = shell.dir.path().join("report.json");
    let line = [
        "check",
        "--settle",
        "0",
        "--json-report",
        file.to_str().unwrap(),
        "--report-version",
        "v3.33.0",
    ];
    let text = shell.wrong(&line);
    for expected in [
        format!("address without endpoint: {leaked} (handle a, node node1"),
        "endpoint without address: default/b on node node1 has 10.0.0.250, which is not allocated\n".into(),
        "orphan handle: orphan counts 1 addresses".into(),
        "unreadable: /calico/ipam/v2/handle/garbage: failed to parse".into(),
        "\n4 things are wrong\n".into(),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    let report = report_file::read(&file).unwrap().report;
    let [reported] = &report.allocations[&leaked][..] else {
        panic!("{report:?}")
    };
    assert_eq!(
        (reported.in_use, reported.handle.as_str(), &reported.owners),
        (false, "a", &None)
    );
    assert!(
        matches!(&report.leaked_handles[..], [LeakedHandle { id, uid: None, .. }] if id == "orphan")
    );
    assert_eq!(
        (report.version.as_str(), report.findings.len()),
        ("v3.33.0", 0)
    );
    let result = shell.json(&["check", "--settle", "0"]);
    assert_eq!(result["findings"].as_array().unwrap().len(), 3);
    assert_eq!(result["unreadable"].as_array().unwrap().len(), 1);
}

#[test]
fn pending_affinity_of_a_killed_add_is_only_a_note() {
    let shell = Shell::with_pool();
    shell.put(
        "/calico/ipam/v2/host/node1/ipv4/block/10.0.0.64-29",
        r#"{"state":"pending","deleted":false}"#,
    );
    let expected = "unfinished affinity: host:node1 to 10.0.0.64/29 is pending; the owner's next \
                    use of the block or garbage collection completes or deletes it";
    for settle in ["0", "1"] {
        let text = shell.ok(&["check", "--settle", settle]);
        assert!(
            text.ends_with(&format!("\nnote: {expected}\nnothing is wrong\n")),
            "{text}"
        );
    }
    let report = shell.json(&["check", "--settle", "0"]);
    assert_eq!(report["notes"][0]["finding"], "unfinishedClaim");
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
}

#[test]
fn finding_missing_from_the_second_read_is_dropped() {
    let overlap = Finding::OverlappingBlocks {
        outer: "10.0.0.0/26".parse().unwrap(),
        inner: "10.0.0.0/29".parse().unwrap(),
    };
    let orphan = |revision: &str| Finding::OrphanHandle {
        handle: "h".into(),
        revision: revision.into(),
        blocks: [].into(),
    };
    let result = |findings| CheckResult {
        findings,
        ..CheckResult::default()
    };
    let (first, second) = (
        result(vec![overlap.clone(), orphan("1")]),
        result(vec![overlap.clone(), orphan("2")]),
    );
    assert_eq!(
        second.retain_common(&EarlierProblems::of(first)),
        result(vec![overlap])
    );
}

#[test]
fn check_reads_again_after_the_settle_time() {
    let shell = Shell::with_pool();
    shell.allocate("a");
    let requests_of = |settle: &str| {
        let before = shell.store.requests();
        shell.wrong(&["check", "--settle", settle]);
        shell.store.requests() - before
    };
    let once = requests_of("0");
    assert!(once > 0);
    assert_eq!(requests_of("1"), 2 * once);
}

#[test]
fn check_waits_between_its_reads() {
    let shell = Shell::with_pool();
    shell.allocate("a");
    let before = shell.store.requests();
    shell.wrong(&["check", "--settle", "0"]);
    let once = shell.store.requests() - before;
    shell.run_with(&["check", "--settle", "0"], |app| {
        block_on(async {
            let before = shell.store.requests();
            let is_read = async {
                while shell.store.requests() < before + once {
                    tokio::task::yield_now().await;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            };
            tokio::select! {
                _ = read(app, Duration::from_secs(3600)) => panic!("there is no pause"),
                () = is_read => assert_eq!(shell.store.requests(), before + once),
            }
        });
    });
}

fn stored_information(shell: &Shell) -> ClusterInformation {
    shell
        .stored::<ClusterInformation>(&ObjectKey::global("default"))
        .unwrap()
}

fn set_information(shell: &Shell, spec: serde_json::Value) {
    let metadata = json!({"name": "default"});
    let kind = "ClusterInformation";
    let ran =
        shell.apply(&json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec}));
    assert_eq!(ran.outcome, Ok(CommandOutcome::Success));
}

#[test]
fn report_without_a_version_is_refused() {
    let shell = Shell::with_pool();
    let file = shell.dir.path().join("report.json");
    let path = file.to_str().unwrap();
    let ran = shell.run(&["check", "--report", path]);
    let error = ran.outcome.unwrap_err();
    assert!(error.contains("--report-version"), "{error}");
    assert_eq!(
        ran.out,
        shell.ok(&["check"]),
        "the findings are printed nevertheless"
    );
    assert!(!file.exists());

    let mut spec = json!(stored_information(&shell).spec);
    spec["calicoVersion"] = json!("v3.30.1");
    set_information(&shell, spec.clone());
    shell.ok(&["check", "--report", path]);
    let report = report_file::read(&file).unwrap().report;
    assert_eq!(
        (report.version.as_str(), report.datastore_locked),
        ("v3.30.1", false)
    );
    assert_eq!(json!(report.cluster_guid), spec["clusterGUID"]);
    assert_eq!(
        report.cluster_information_revision,
        stored_information(&shell).metadata.resource_version
    );

    spec["datastoreReady"] = json!(false);
    set_information(&shell, spec);
    shell.ok(&["check", "--report", path, "--report-version", "v3.33.0"]);
    let locked = report_file::read(&file).unwrap().report;
    assert_eq!(
        (locked.version.as_str(), locked.datastore_locked),
        ("v3.33.0", true)
    );
    assert_ne!(
        locked.cluster_information_revision,
        report.cluster_information_revision
    );
}

#[test]
fn report_of_a_cluster_without_identity_is_refused() {
    let shell = Shell::with_pool();
    shell.remove("/calico/resources/v3/projectcalico.org/clusterinformations/default");
    let file = shell.dir.path().join("report.json");
    let error = shell.error(&[
        "check",
        "--report",
        file.to_str().unwrap(),
        "--report-version",
        "v1",
    ]);
    assert!(
        error.contains("has no identity") && !file.exists(),
        "{error}"
    );
}

#[test]
fn report_carries_findings_that_calicoctl_does_not_know() {
    let shell = Shell::with_pool();
    let used = shell.allocate("a");
    shell.endpoint("a", &used);
    shell.remove("/calico/ipam/v2/handle/a");
    let file = shell.dir.path().join("report.json");
    shell.wrong(&[
        "check",
        "--settle",
        "0",
        "--report",
        file.to_str().unwrap(),
        "--report-version",
        "v1",
    ]);
    let report = report_file::read(&file).unwrap().report;
    assert!(
        matches!(report.findings[..], [Finding::MissingHandle(_)]),
        "{report:?}"
    );
    let [reported] = &report.allocations[&used][..] else {
        panic!("{report:?}")
    };
    assert_eq!(
        reported.owners,
        Some(vec!["Workload(default/node1-k8s-a-eth0)".into()])
    );
}

#[test]
fn all_addresses_are_listed_below_their_blocks() {
    let shell = Shell::with_pool();
    let address = shell.allocate("a");
    shell.endpoint("a", &address);
    let text = shell.ok(&["check", "--show-all-ips", "--show-problem-ips"]);
    let block = shell.blocks().remove(0).0;
    let listed = format!(
        " IPAM block {block} affinity=host:node1:\n  {address} allocated; attrs Main:a \
         Extra:namespace=default,node=node1,pod=a,timestamp="
    );
    assert!(text.contains(&listed), "{listed}: {text}");
    let result = shell.json(&["check", "--show-all-ips"]);
    assert_eq!(result["addresses"][0]["address"], json!(address));
    assert_eq!(result["addresses"][0]["attributes"]["pod"], "a");
    assert!(shell.json(&["check"])["addresses"].is_null());
}

#[test]
fn report_beside_an_unreadable_endpoint_lists_no_leaks() {
    let shell = Shell::with_pool();
    let address = shell.allocate("a");
    shell.put(
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node1-k8s-a-eth0",
        "{",
    );
    let file = shell.dir.path().join("report.json");
    let line = [
        "check",
        "--settle",
        "0",
        "--report",
        file.to_str().unwrap(),
        "--report-version",
        "v1",
    ];
    let text = shell.wrong(&line);
    assert!(
        text.contains(&format!("address without endpoint: {address} ")),
        "{text}"
    );
    let report = report_file::read(&file).unwrap().report;
    assert!(
        report.allocations[&address]
            .iter()
            .all(|allocation| allocation.in_use),
        "{report:?}"
    );
}
