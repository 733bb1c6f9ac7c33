use libcalico::api::ObjectKey;
use libcalico::ipam::{Block, Handle, HandleId, Sight};
use libcalico::kubernetes::Pod;
use libcalico::store::Store;
use serde_json::json;
use time::OffsetDateTime;

use super::plan::{Step, Verdict, of_addresses};
use crate::cli::reading::Reading;
use crate::cli::testing::Shell;
use crate::process::block_on;

/// A report of what is wrong now.
fn report(shell: &Shell) -> String {
    let file = shell.dir.path().join("report.json");
    let file = file.to_str().unwrap().to_owned();
    shell.wrong(&["check", "--settle", "0", "--json-report", &file]);
    file
}

fn is_held(shell: &Shell, address: &str) -> bool {
    shell.json(&["show", "--ip", address])["state"] == "inUse"
}

fn handle(shell: &Shell, id: &str) -> Option<Handle> {
    shell.stored::<Handle>(&HandleId::new(id))
}

#[test]
fn a_leaked_address_goes_with_its_handle() {
    let shell = Shell::with_pool();
    let (leaked, kept) = (shell.allocate("a"), shell.allocate("b"));
    let said = shell.ok(&["release", &leaked]);
    assert!(said.starts_with(&format!("{leaked}: released: handle a, node node1, ")), "{said}");
    assert!(!is_held(&shell, &leaked) && is_held(&shell, &kept));
    assert_eq!((handle(&shell, "a"), handle(&shell, "b").is_some()), (None, true));
    assert_eq!(shell.ok(&["release", &leaked]), format!("{leaked}: left alone: it is not in use\n"));
    assert_eq!(shell.ok(&["release", "10.9.9.9"]), "10.9.9.9: left alone: it is not in use\n");
}

#[test]
fn what_is_in_use_is_refused_without_force() {
    let shell = Shell::with_pool();
    let used = shell.allocate("a");
    shell.endpoint("web", &used);
    let young = shell.allocate_at("b", OffsetDateTime::now_utc());
    for (address, reason) in
        [(&used, "endpoint default/web on node node1 has it"), (&young, "it was allocated moments ago")]
    {
        let said = shell.wrong(&["release", address]);
        assert!(said.contains(reason) && said.contains("--force"), "{said}");
        assert!(is_held(&shell, address));
        shell.ok(&["release", address, "--force"]);
        assert!(!is_held(&shell, address));
    }
}

/// On Kubernetes annotations have a say in endpoints. They free nothing that the pod still reports, or has yet to report.
#[test]
fn release_of_an_address_that_its_pod_may_have_is_refused_without_endpoint() {
    let shell = Shell::with_pool();
    let address = shell.allocate("web");
    let pod = |status: serde_json::Value| -> Pod {
        let metadata = json!({
            "name": "web", "namespace": "default", "deletionTimestamp": "2026-11-21T21:00:00Z",
            "annotations": {"cni.projectcalico.org/podIP": "", "cni.projectcalico.org/podIPs": ""},
        });
        serde_json::from_value(json!({"metadata": metadata, "spec": {"nodeName": "node1"}, "status": status})).unwrap()
    };
    let status = |phase: &str, ip: &str| pod(json!({"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]}));
    let mut reading = block_on(Reading::take(&shell.store)).unwrap();
    for (pod, refusal) in [
        (Sight::Present(status("Running", &address)), Some("its pod has it")),
        (Sight::Present(pod(json!({"phase": "Pending"}))), Some("its pod has told no address yet")),
        (Sight::Unknown, Some("its holder could not be looked at")),
        (Sight::Present(status("Running", "10.9.9.9")), None),
        (Sight::Present(status("Succeeded", &address)), None),
    ] {
        reading.pods = [(ObjectKey::namespaced("default", "web"), pod)].into();
        let steps = of_addresses(&[address.parse().unwrap()], &reading, false);
        match (&steps[..], refusal) {
            ([Step { verdict: Verdict::Refuse(why), .. }], Some(refusal)) => assert!(why.starts_with(refusal), "{why}"),
            ([Step { verdict: Verdict::Do(_), .. }], None) => {}
            _ => panic!("{refusal:?}: {steps:?}"),
        }
    }
}

#[test]
fn addresses_of_tunnels_are_no_leaks() {
    let shell = Shell::with_pool();
    let address = shell.allocate_tunnel("ipip-tunnel-addr-node1");
    let said = shell.wrong(&["release", &address]);
    assert!(said.contains("kept for a tunnel"), "{said}");
    assert!(is_held(&shell, &address));
}

#[test]
fn a_dry_run_changes_nothing() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let before = shell.ok(&["export"]);
    let said = shell.ok(&["release", "--dry-run", &leaked]);
    assert!(said.starts_with(&format!("{leaked}: would be: released, handle a")), "{said}");
    shell.ok(&["release", "--dry-run", "--from-report", &report(&shell)]);
    assert_eq!(shell.ok(&["export"]), before);
}

#[test]
fn a_report_is_mended() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("leaked");
    let alive = shell.allocate("alive");
    shell.endpoint("alive", &alive);
    let homeless = shell.allocate("homeless");
    shell.endpoint("homeless", &homeless);
    // One handle counts too much, one is gone, one is nobody's.
    let block = shell.json(&["show", "--ip", &alive])["block"].as_str().unwrap().to_owned();
    let path = |id: &str| format!("/calico/ipam/v2/handle/{id}");
    shell.remove(&path("alive"));
    shell.put(&path("alive"), &json!({"block": {block: 3}, "future": 1}).to_string());
    shell.remove(&path("homeless"));
    shell.put(&path("orphan"), r#"{"block":{"10.0.0.0/29":1}}"#);
    // Of an upstream program that ended between the two writes of a deletion.
    shell.put(&path("going"), r#"{"block":{"10.0.0.0/29":1},"deleted":true}"#);

    let said = shell.ok(&["release", "--from-report", &report(&shell)]);
    for line in [
        "handle going: deleted: no block names it\n",
        "handle alive: corrected: it holds 1 in ",
        "handle homeless: created: it holds 1 in ",
        "handle orphan: deleted: no block names it\n",
        &format!("{leaked}: released: "),
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let corrected = handle(&shell, "alive").unwrap();
    assert_eq!((corrected.block.values().sum::<i64>(), &corrected.unknown["future"]), (1, &json!(1)));
    shell.ok(&["check"]);
    assert!(is_held(&shell, &alive) && is_held(&shell, &homeless));
}

/// It has its handle, read the block, and wrote nothing for as long as `check` looked.
#[test]
fn an_add_that_is_under_way_loses_its_race_when_its_handle_is_mended() {
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
    let said = shell.ok(&["release", "--from-report", &report]);
    assert!(said.contains("handle slow: deleted") && said.contains("handle alive: corrected"), "{said}");
    let late = block_on(shell.store.update::<Block>(&block, &read.value, &read.revision));
    assert!(late.is_err_and(|error| error.is_race()));
    shell.ok(&["check"]);
}

#[test]
fn what_changed_since_the_report_is_left_alone() {
    let shell = Shell::with_pool();
    let now_used = shell.allocate("a");
    let anew = shell.allocate("b");
    shell.put("/calico/ipam/v2/handle/orphan", r#"{"block":{"10.0.0.0/29":1}}"#);
    let report = report(&shell);
    shell.endpoint("web", &now_used);
    shell.ok(&["release", &anew]);
    while shell.allocate("c") != anew {}
    shell.remove("/calico/ipam/v2/handle/orphan");
    shell.put("/calico/ipam/v2/handle/orphan", r#"{"block":{"10.0.0.0/29":1}}"#);

    let said = shell.ok(&["release", "--from-report", &report]);
    assert_eq!(said.matches(": left alone: it is no longer so\n").count(), 3, "{said}");
    assert!(is_held(&shell, &now_used) && is_held(&shell, &anew));
    assert!(handle(&shell, "orphan").is_some(), "it was written anew");
}

#[test]
fn findings_for_a_person_are_left_alone() {
    let shell = Shell::with_pool();
    shell.endpoint("b", "10.0.0.250");
    let said = shell.ok(&["release", "--from-report", &report(&shell)]);
    assert!(said.ends_with("10.0.0.250, which is free: left alone: this takes a person's decision\n"), "{said}");
}

#[test]
fn a_block_that_contradicts_itself_is_refused() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let (key, mut block) = shell.blocks().remove(0);
    block.unallocated.push(100);
    shell.remove(&<Block as libcalico::store::Kind>::path(&key));
    shell.put(&<Block as libcalico::store::Kind>::path(&key), &serde_json::to_string(&block).unwrap());
    let said = shell.wrong(&["release", &leaked]);
    assert!(said.contains("refused: block ") && said.contains("is corrupt"), "{said}");
}

#[test]
fn a_file_that_is_no_report() {
    let shell = Shell::new();
    let file = shell.file("report.json", "{}");
    let error = shell.error(&["release", "--from-report", &file]);
    assert!(error.contains("check --json-report"), "{error}");
}
