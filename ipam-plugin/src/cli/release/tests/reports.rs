use datastore::ClusterStore as _;
use libcalico::api::ClusterInformation;
use libcalico::ipam::Block;
use libcalico::ipam::report::IpamReport;
use libcalico::store::{Kind, Store};

use super::*;
use crate::cli::app::CommandOutcome;

/// Changes a report.
fn edit(file: &str, change: impl FnOnce(&mut IpamReport)) {
    let mut report = IpamReport::parse(&std::fs::read(file).unwrap()).unwrap();
    change(&mut report);
    std::fs::write(file, report.to_text().unwrap()).unwrap();
}

fn set_ready(shell: &Shell, ready: bool) {
    let stored = shell
        .stored::<ClusterInformation>(&ObjectKey::global("default"))
        .unwrap();
    let mut spec = json!(stored.spec);
    spec["datastoreReady"] = json!(ready);
    let metadata = json!({"name": "default"});
    let kind = "ClusterInformation";
    let manifest = json!({
        "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec,
    });
    assert!(shell.apply(&manifest).outcome.is_ok());
}

#[test]
fn release_from_a_report_repairs_its_findings() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("leaked");
    let alive = shell.allocate("alive");
    shell.endpoint("alive", &alive);
    let homeless = shell.allocate("homeless");
    shell.endpoint("homeless", &homeless);
    let block = shell.json(&["show", "--ip", &alive])["block"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = |id: &str| format!("/calico/ipam/v2/handle/{id}");
    shell.remove(&path("alive"));
    shell.put(
        &path("alive"),
        &json!({"block": {block: 3}, "future": 1}).to_string(),
    );
    shell.remove(&path("homeless"));
    shell.put(&path("orphan"), r#"{"block":{"10.0.0.0/29":1}}"#);
    // An upstream program ended between the two writes of a deletion and left this handle.
    shell.put(
        &path("going"),
        r#"{"block":{"10.0.0.0/29":1},"deleted":true}"#,
    );

    let output = shell.ok(&["release", "--from-report", &report(&shell)]);
    for line in [
        "handle going: deleted: no block names it\n",
        "handle alive: corrected: it holds 1 in ",
        "handle homeless: created: it holds 1 in ",
        "handle orphan: deleted: no block names it\n",
        &format!("{leaked}: released: "),
    ] {
        assert!(output.contains(line), "{line}: {output}");
    }
    let corrected = handle(&shell, "alive").unwrap();
    assert_eq!(
        (
            corrected.block.values().sum::<i64>(),
            &corrected.unknown["future"]
        ),
        (1, &json!(1))
    );
    shell.ok(&["check"]);
    assert!(is_held(&shell, &alive) && is_held(&shell, &homeless));
}

/// The ADD has incremented its handle and read the block, but does not write the block while
/// `check` runs.
#[test]
fn handle_repair_makes_a_concurrent_add_lose_its_race() {
    let shell = Shell::with_pool();
    let used = shell.allocate("alive");
    shell.endpoint("alive", &used);
    let (block, _) = shell.blocks().remove(0);
    let count = |id: &str, n: i64| {
        let handle = json!({"block": {block.to_string(): n}});
        shell.put(&format!("/calico/ipam/v2/handle/{id}"), &handle.to_string());
    };
    count("slow", 1);
    shell.remove("/calico/ipam/v2/handle/alive");
    count("alive", 2);
    let report = report(&shell);
    let read = block_on(shell.store.get::<Block>(&block)).unwrap();
    let output = shell.ok(&["release", "--from-report", &report]);
    assert!(
        output.contains("handle slow: deleted") && output.contains("handle alive: corrected"),
        "{output}"
    );
    let late = block_on(
        shell
            .store
            .update::<Block>(&block, &read.value, &read.revision),
    );
    assert!(late.is_err_and(|error| error.is_race()));
    shell.ok(&["check"]);
}

/// The handles of one block are corrected together, because each correction alone writes the block
/// twice.
#[test]
fn handles_of_a_report_are_corrected_together_and_printed_in_order() {
    let shell = Shell::with_pool();
    let used = shell.allocate("alive");
    shell.endpoint("web", &used);
    let (block, _) = shell.blocks().remove(0);
    let counted = json!({"block": {block.to_string(): 1}}).to_string();
    (0..40).for_each(|n| shell.put(&format!("/calico/ipam/v2/handle/orphan-{n:02}"), &counted));
    let file = report(&shell);
    let before = shell.store.requests();
    let output = shell.ok(&["release", "--from-report", &file]);
    let requests = shell.store.requests() - before;
    let expected: String = (0..40)
        .map(|n| format!("handle orphan-{n:02}: deleted: no block names it\n"))
        .collect();
    assert_eq!(output, expected);
    assert!(requests < 80, "{requests} requests");
    shell.ok(&["check"]);
}

/// The command executes several releases at the same time.
#[test]
fn addresses_of_a_report_are_released_and_printed_in_order() {
    let shell = Shell::with_pool();
    let leaked: Vec<String> = (0..40)
        .map(|n| shell.allocate(&format!("net.{n:02}")))
        .collect();
    let output = shell.ok(&["release", "--from-report", &report(&shell)]);
    let printed: Vec<&str> = output
        .lines()
        .map(|line| line.split_once(": released: ").unwrap().0)
        .collect();
    let mut addresses: Vec<std::net::IpAddr> = leaked
        .iter()
        .map(|address| address.parse().unwrap())
        .collect();
    addresses.sort();
    assert_eq!(
        printed,
        addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    );
    assert_eq!(
        shell.ok(&["check"]).lines().last(),
        Some("nothing is wrong")
    );
}

#[test]
fn release_from_a_report_skips_objects_changed_since() {
    let shell = Shell::with_pool();
    let now_used = shell.allocate("a");
    let anew = shell.allocate("b");
    shell.put(
        "/calico/ipam/v2/handle/orphan",
        r#"{"block":{"10.0.0.0/29":1}}"#,
    );
    let report = report(&shell);
    shell.endpoint("web", &now_used);
    shell.ok(&["release", &anew]);
    while shell.allocate("c") != anew {}
    shell.remove("/calico/ipam/v2/handle/orphan");
    shell.put(
        "/calico/ipam/v2/handle/orphan",
        r#"{"block":{"10.0.0.0/29":1}}"#,
    );

    let output = shell.ok(&["release", "--from-report", &report]);
    for line in [
        format!("{now_used}: left alone: endpoint default/web on node node1 has it\n"),
        format!("{anew}: left alone: it was allocated again since the report\n"),
        "handle orphan: left alone: the finding no longer applies\n".into(),
    ] {
        assert!(output.contains(&line), "{line}: {output}");
    }
    assert!(is_held(&shell, &now_used) && is_held(&shell, &anew));
    assert!(handle(&shell, "orphan").is_some(), "it was written anew");
}

#[test]
fn findings_that_need_a_decision_are_not_repaired() {
    let shell = Shell::with_pool();
    shell.endpoint("b", "10.0.0.250");
    let before = shell.ok(&["export"]);
    assert_eq!(
        shell.ok(&["release", "--from-report", &report(&shell)]),
        "nothing to release\n"
    );
    assert_eq!(shell.ok(&["export"]), before);
}

#[test]
fn release_from_an_invalid_report_is_an_error() {
    let shell = Shell::new();
    let file = shell.file("report.json", "{}");
    let error = shell.error(&["release", "--from-report", &file]);
    assert!(error.contains("check --report"), "{error}");
}

#[test]
fn release_from_two_reports_frees_what_both_list() {
    let shell = Shell::with_pool();
    let (both, later) = (shell.allocate("a"), shell.allocate("b"));
    shell.endpoint("b", &later);
    let first = report_to(&shell, "first.json");
    shell.remove(
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node1-k8s-b-eth0",
    );
    let second = report_to(&shell, "second.json");
    let output = shell.ok(&["release", "--from-report", &first, &second]);
    assert!(
        output.starts_with(&format!("{both}: released: ")) && output.lines().count() == 1,
        "{output}"
    );
    assert!(!is_held(&shell, &both) && is_held(&shell, &later));
    let output = shell.ok(&[
        "release",
        "--from-report",
        &second,
        "--from-report",
        &second,
    ]);
    assert!(
        output.contains(&format!("{both}: left alone: it is not in use\n")),
        "{output}"
    );
    assert!(!is_held(&shell, &later));
}

/// calicoctl takes the allocation of its last report (INST-208).
#[test]
fn release_of_a_reallocated_address_is_left_alone() {
    let shell = Shell::with_pool();
    let address = shell.allocate("a");
    let first = report_to(&shell, "first.json");
    shell.ok(&["release", &address]);
    while shell.allocate("c") != address {}
    let second = report_to(&shell, "second.json");
    let output = shell.ok(&["release", "--from-report", &first, &second]);
    assert_eq!(
        output,
        format!("{address}: left alone: the reports have different allocations\n")
    );
    let output = shell.ok(&["release", "--from-report", &first]);
    assert_eq!(
        output,
        format!("{address}: left alone: it was allocated again since the report\n")
    );
    assert!(is_held(&shell, &address));
}

#[test]
fn release_with_another_clusters_report_is_refused() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let file = report(&shell);
    edit(&file, |report| report.cluster_guid = "another".into());
    for options in [
        &[][..],
        &["--force"],
        &["--require-lock"],
        &["--require-lock", "--force"],
    ] {
        let error = shell.error(&[&["release", "--from-report", &file][..], options].concat());
        let expected = format!(
            "cluster does not match the provided report ({file}): mismatched cluster GUID."
        );
        assert!(error.starts_with(&expected), "{options:?}: {error}");
    }
    let before = report_to(&shell, "before.json");
    edit(&before, |report| report.version = "v3.0.0".into());
    let line = [
        "release",
        "--from-report",
        &before,
        &file,
        "--require-lock",
        "--report-version",
        VERSION,
    ];
    let error = shell.error(&line);
    assert!(
        error.contains("using a different version (v3.0.0)"),
        "calicoctl checks one report after the other: {error}"
    );
    assert!(
        shell
            .error(&[&line[..], &["--force"]].concat())
            .contains("mismatched cluster GUID")
    );
    assert!(is_held(&shell, &leaked));
}

#[test]
fn require_lock_releases_only_with_a_fresh_report_of_a_locked_datastore() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let before_the_lock = report_to(&shell, "before.json");
    let release = |file: &str, options: &[&str]| {
        let line = [
            "release",
            "--from-report",
            file,
            "--require-lock",
            "--report-version",
            VERSION,
        ];
        shell.run(&[&line[..], options].concat())
    };
    let refusal = |file: &str, options: &[&str]| release(file, options).outcome.unwrap_err();
    assert!(refusal(&before_the_lock, &[]).starts_with("data store is not locked."));
    set_ready(&shell, false);
    assert!(
        refusal(&before_the_lock, &["--force"]).starts_with("the provided reports are all stale")
    );
    let locked = report_to(&shell, "locked.json");
    let other = report_to(&shell, "other.json");
    edit(&other, |report| report.version = "v3.0.0".into());
    assert!(refusal(&other, &[]).contains("using a different version (v3.0.0) of calicoctl"));
    assert!(is_held(&shell, &leaked));

    let dry = release(&other, &["--force", "--dry-run"]);
    assert!(
        dry.notices
            .contains("WARNING: Report was produced using a different version"),
        "{dry:?}"
    );
    let done = release(&locked, &[]);
    assert!(
        done.out.starts_with(&format!("{leaked}: released: ")),
        "{done:?}"
    );
    assert!(
        done.notices
            .ends_with("You may now unlock the data store.\n"),
        "{done:?}"
    );
    assert!(!is_held(&shell, &leaked));
}

#[test]
fn require_lock_needs_a_version() {
    let shell = Shell::with_pool();
    shell.allocate("a");
    let file = report(&shell);
    let error = shell.error(&["release", "--from-report", &file, "--require-lock"]);
    assert!(error.contains("--report-version"), "{error}");
}

#[test]
fn forced_release_with_the_lock_rule_keeps_addresses_in_use() {
    let shell = Shell::with_pool();
    let (used, young) = (
        shell.allocate("a"),
        shell.allocate_at("b", OffsetDateTime::now_utc()),
    );
    let file = report(&shell);
    shell.endpoint("a", &used);
    let line = [
        "release",
        "--from-report",
        &file,
        "--require-lock",
        "--report-version",
        VERSION,
        "--force",
        "-o",
        "json",
    ];
    let ran = shell.run(&line);
    assert_eq!(ran.outcome, Ok(CommandOutcome::Findings), "{ran:?}");
    assert!(
        ran.notices.contains("WARNING: Data store is not locked")
            && !ran.notices.contains("may now unlock")
    );
    assert!(is_held(&shell, &used) && is_held(&shell, &young));
}

#[test]
fn release_with_an_error_exits_1() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let file = report(&shell);
    let (key, mut block) = shell.blocks().remove(0);
    block.unallocated.push(100);
    let path = <Block as Kind>::path(&key);
    shell.remove(&path);
    shell.put(&path, &serde_json::to_string(&block).unwrap());
    let ran = shell.run(&["release", "--from-report", &file]);
    assert_eq!(ran.outcome, Ok(CommandOutcome::Findings), "{ran:?}");
    assert!(
        ran.out.contains(&format!("{leaked}: refused: block ")),
        "{ran:?}"
    );
    assert!(
        ran.notices.contains("findings about blocks and handles"),
        "{ran:?}"
    );
}

/// A newer program may have written an endpoint that this one cannot read.
#[test]
fn release_beside_an_unreadable_endpoint_is_refused() {
    let shell = Shell::with_pool();
    let address = shell.allocate("a");
    let file = report(&shell);
    let endpoint =
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node1-k8s-a-eth0";
    shell.put(endpoint, "{");
    let expected = format!(
        "{address}: refused: endpoint {endpoint} cannot be read, and may have it; --force "
    );
    for line in [
        &["release", &address][..],
        &["release", "--from-report", &file],
    ] {
        let output = shell.wrong(line);
        assert!(output.contains(&expected), "{line:?}: {output}");
    }
    assert!(is_held(&shell, &address));
    shell.ok(&["release", &address, "--force"]);
    assert!(!is_held(&shell, &address));
}

#[test]
fn allocation_of_an_overlapping_block_is_not_released_by_the_report_of_another() {
    let shell = Shell::new();
    shell.ok(&[
        "init",
        "--node",
        "node1",
        "--pool",
        "10.0.0.0/29",
        "--block-size",
        "29",
    ]);
    let address = shell.allocate("a");
    let file = report(&shell);
    let [.., last] = address.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let (first, ordinal) = (last / 4 * 4, usize::from(last % 4));
    let mut allocations = vec![json!(null); 4];
    allocations[ordinal] = json!(0);
    let unallocated: Vec<usize> = (0..4).filter(|&free| free != ordinal).collect();
    let block = json!({
        "cidr": format!("10.0.0.{first}/30"), "affinity": "host:node1", "allocations": allocations,
        "unallocated": unallocated,
        "attributes": [{"handle_id": "b", "secondary": {"node": "node1"}}],
    });
    let path = format!("/calico/ipam/v2/assignment/ipv4/block/10.0.0.{first}-30");
    shell.put(&path, &block.to_string());
    let before = shell.ok(&["export"]);
    let output = shell.ok(&["release", "--from-report", &file]);
    assert_eq!(
        output,
        format!("{address}: left alone: it was allocated again since the report\n")
    );
    assert_eq!(shell.ok(&["export"]), before);
}
