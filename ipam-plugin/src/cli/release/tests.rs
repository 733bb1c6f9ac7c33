use libcalico::api::{Node, NodeSpec, ObjectKey};
use libcalico::ipam::{AuditedEndpoint, Block, Handle, HandleId, Lookup};
use libcalico::kubernetes::Pod;
use libcalico::store::{Entry, Revision, Store, StoreError};
use serde_json::json;
use time::OffsetDateTime;

use super::plan::{steps_for_addresses, steps_for_report};
use super::step::{ChangeOutcome, ReleaseChange, ReleaseStep, StepVerdict, execute};
use crate::cli::check::Report;
use crate::cli::cluster_read::ClusterRead;
use crate::cli::testing::Shell;
use node_process::process::block_on;

/// Writes a report of the present inconsistencies and returns its path.
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
fn release_of_a_leaked_address_deletes_its_handle() {
    let shell = Shell::with_pool();
    let (leaked, kept) = (shell.allocate("a"), shell.allocate("b"));
    let output = shell.ok(&["release", &leaked]);
    assert!(output.starts_with(&format!("{leaked}: released: handle a, node node1, ")), "{output}");
    assert!(!is_held(&shell, &leaked) && is_held(&shell, &kept));
    assert_eq!((handle(&shell, "a"), handle(&shell, "b").is_some()), (None, true));
    assert_eq!(shell.ok(&["release", &leaked]), format!("{leaked}: left alone: it is not in use\n"));
    assert_eq!(shell.ok(&["release", "10.9.9.9"]), "10.9.9.9: left alone: it is not in use\n");
}

#[test]
fn release_of_an_address_in_use_requires_force() {
    let shell = Shell::with_pool();
    let used = shell.allocate("a");
    shell.endpoint("web", &used);
    let young = shell.allocate_at("b", OffsetDateTime::now_utc());
    for (address, reason) in
        [(&used, "endpoint default/web on node node1 has it"), (&young, "it was allocated moments ago")]
    {
        let output = shell.wrong(&["release", address]);
        assert!(output.contains(reason) && output.contains("--force"), "{output}");
        assert!(is_held(&shell, address));
        shell.ok(&["release", address, "--force"]);
        assert!(!is_held(&shell, address));
    }
}

/// On Kubernetes, annotations do not free an address that the pod still reports, or has yet to report.
#[test]
fn release_of_an_address_that_its_pod_may_have_is_rejected() {
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
    let mut cluster = block_on(ClusterRead::read(&shell.store)).unwrap();
    for (pod, refusal) in [
        (Lookup::Present(status("Running", &address)), Some("its pod has the address")),
        (Lookup::Present(pod(json!({"phase": "Pending"}))), Some("its pod has reported no address yet")),
        (Lookup::Unknown, Some("its owner cannot be looked up")),
        (Lookup::Present(status("Running", "10.9.9.9")), None),
        (Lookup::Present(status("Succeeded", &address)), None),
    ] {
        cluster.pods = [(ObjectKey::namespaced("default", "web"), pod)].into();
        let steps = steps_for_addresses(&[address.parse().unwrap()], &cluster, false);
        match (&steps[..], refusal) {
            ([ReleaseStep { verdict: StepVerdict::Refuse(why), .. }], Some(refusal)) => {
                assert!(why.starts_with(refusal), "{why}")
            }
            ([ReleaseStep { verdict: StepVerdict::Do(_), .. }], None) => {}
            _ => panic!("{refusal:?}: {steps:?}"),
        }
    }
}

#[test]
fn release_of_a_tunnel_address_is_rejected() {
    let shell = Shell::with_pool();
    let address = shell.allocate_tunnel("ipip-tunnel-addr-node1");
    let output = shell.wrong(&["release", &address]);
    assert!(output.contains("kept for a tunnel"), "{output}");
    assert!(is_held(&shell, &address));
}

#[test]
fn release_dry_run_changes_no_data() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let before = shell.ok(&["export"]);
    let output = shell.ok(&["release", "--dry-run", &leaked]);
    assert!(output.starts_with(&format!("{leaked}: would be: released, handle a")), "{output}");
    shell.ok(&["release", "--dry-run", "--from-report", &report(&shell)]);
    assert_eq!(shell.ok(&["export"]), before);
}

#[test]
fn release_from_a_report_repairs_its_findings() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("leaked");
    let alive = shell.allocate("alive");
    shell.endpoint("alive", &alive);
    let homeless = shell.allocate("homeless");
    shell.endpoint("homeless", &homeless);
    let block = shell.json(&["show", "--ip", &alive])["block"].as_str().unwrap().to_owned();
    let path = |id: &str| format!("/calico/ipam/v2/handle/{id}");
    shell.remove(&path("alive"));
    shell.put(&path("alive"), &json!({"block": {block: 3}, "future": 1}).to_string());
    shell.remove(&path("homeless"));
    shell.put(&path("orphan"), r#"{"block":{"10.0.0.0/29":1}}"#);
    // An upstream program ended between the two writes of a deletion and left this handle.
    shell.put(&path("going"), r#"{"block":{"10.0.0.0/29":1},"deleted":true}"#);

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
    assert_eq!((corrected.block.values().sum::<i64>(), &corrected.unknown["future"]), (1, &json!(1)));
    shell.ok(&["check"]);
    assert!(is_held(&shell, &alive) && is_held(&shell, &homeless));
}

/// The ADD has incremented its handle and read the block, but does not write the block while `check` runs.
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
    assert!(output.contains("handle slow: deleted") && output.contains("handle alive: corrected"), "{output}");
    let late = block_on(shell.store.update::<Block>(&block, &read.value, &read.revision));
    assert!(late.is_err_and(|error| error.is_race()));
    shell.ok(&["check"]);
}

#[test]
fn release_from_a_report_skips_objects_changed_since() {
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

    let output = shell.ok(&["release", "--from-report", &report]);
    assert_eq!(output.matches(": left alone: the finding no longer applies\n").count(), 3, "{output}");
    assert!(is_held(&shell, &now_used) && is_held(&shell, &anew));
    assert!(handle(&shell, "orphan").is_some(), "it was written anew");
}

#[test]
fn findings_that_need_a_decision_are_not_repaired() {
    let shell = Shell::with_pool();
    shell.endpoint("b", "10.0.0.250");
    let output = shell.ok(&["release", "--from-report", &report(&shell)]);
    assert!(
        output.ends_with("10.0.0.250, which is not allocated: left alone: an operator has to decide\n"),
        "{output}"
    );
}

#[test]
fn release_from_an_inconsistent_block_is_rejected() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let (key, mut block) = shell.blocks().remove(0);
    block.unallocated.push(100);
    shell.remove(&<Block as libcalico::store::Kind>::path(&key));
    shell.put(&<Block as libcalico::store::Kind>::path(&key), &serde_json::to_string(&block).unwrap());
    let output = shell.wrong(&["release", &leaked]);
    assert!(output.contains("refused: block ") && output.contains("is corrupt"), "{output}");
}

#[test]
fn release_from_an_invalid_report_is_an_error() {
    let shell = Shell::new();
    let file = shell.file("report.json", "{}");
    let error = shell.error(&["release", "--from-report", &file]);
    assert!(error.contains("check --json-report"), "{error}");
}

fn damage(shell: &Shell, change: impl FnOnce(&mut Block)) -> Block {
    let [entry] = &mut block_on(shell.store.list::<Block>(&None)).unwrap()[..] else { panic!("one block") };
    change(&mut entry.value);
    block_on(shell.store.update(&entry.key, &entry.value, &entry.revision)).unwrap();
    entry.value.clone()
}

fn only_block(shell: &Shell) -> Block {
    shell.blocks().remove(0).1
}

#[test]
fn release_from_a_report_repairs_an_inconsistent_block() {
    let shell = Shell::with_pool();
    let addresses = [shell.allocate("a"), shell.allocate("b"), shell.allocate("c")];
    let endpoint_of = |name: &str, n: usize| shell.endpoint(name, &addresses[n]);
    endpoint_of("a", 0);
    endpoint_of("b", 1);
    // The first address is both allocated and free. The second, which a pod has, is neither. The third, which no pod
    // has, names attributes that do not exist. The fourth is in the free list twice.
    let damaged = damage(&shell, |block| {
        block.unallocated.extend([0, 3]);
        (block.allocations[1], block.allocations[2]) = (None, Some(77));
    });
    let file = report(&shell);
    let dry = shell.ok(&["release", "--from-report", &file, "--dry-run"]);
    assert!(dry.contains("would be: repaired"), "{dry}");
    assert_eq!(only_block(&shell), damaged);

    let expected = format!("repaired: free again: {}; kept for the recorded owners: {}", addresses[2], addresses[1]);
    let output = shell.ok(&["release", "--from-report", &file]);
    assert!(output.contains(&expected), "{output}");
    let block = only_block(&shell);
    assert_eq!((block.verify(), block.lost_ordinal()), (Ok(()), None));
    assert!(block.sequence_number > damaged.sequence_number);
    assert!(is_held(&shell, &addresses[0]) && is_held(&shell, &addresses[1]) && !is_held(&shell, &addresses[2]));
    let kept = block.allocation(addresses[1].parse().unwrap()).unwrap();
    let noted: Vec<_> = kept.attributes().unwrap().iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(noted, ["namespace=default", "node=node1", "pod=b"]);
    assert_eq!(shell.ok(&["check", "--settle", "0"]).lines().last(), Some("nothing is wrong"));
}

#[test]
fn repair_retains_an_address_reported_by_a_running_pod() {
    let shell = Shell::with_pool();
    let address = shell.allocate("web");
    damage(&shell, |block| block.allocations[0] = None);
    let report = Report::new(&block_on(ClusterRead::read(&shell.store)).unwrap());
    let mut cluster = block_on(ClusterRead::read(&shell.store)).unwrap();
    let pod = |phase: &str, ip: &str| -> Lookup<Pod> {
        let status = json!({"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]});
        let metadata = json!({"name": "web", "namespace": "default"});
        let pod = json!({"metadata": metadata, "spec": {"nodeName": "node1"}, "status": status});
        Lookup::Present(serde_json::from_value(pod).unwrap())
    };
    for (pod, expected) in [
        (pod("Running", &address), "kept for the recorded owners: 10."),
        (pod("Succeeded", &address), "free again: 10."),
        (pod("Running", "10.9.9.9"), "free again: 10."),
        (Lookup::Unknown, "pod default/web cannot be read"),
    ] {
        cluster.pods = [(ObjectKey::namespaced("default", "web"), pod)].into();
        let output = match &steps_for_report(&report, &cluster, false)[0].verdict {
            StepVerdict::Do(change) => change.reason(),
            StepVerdict::Refuse(reason) | StepVerdict::Leave(reason) => reason.clone(),
        };
        assert!(output.contains(expected), "{expected}: {output}");
    }
}

/// A tunnel has neither endpoint nor pod.
#[test]
fn repair_retains_tunnel_addresses_and_needs_force_for_services() {
    let shell = Shell::with_pool();
    let (tunnel, web) = (shell.allocate("vxlan-tunnel-addr-node1"), shell.allocate("net.c1"));
    damage(&shell, |block| (block.allocations[0], block.allocations[1]) = (None, None));
    let mut cluster = block_on(ClusterRead::read(&shell.store)).unwrap();
    let report = Report::new(&cluster);
    let spec = NodeSpec { ipv4_vxlan_tunnel_addr: tunnel.clone(), ..NodeSpec::default() };
    let node = Node::new("node1", spec);
    cluster.nodes = vec![Ok(Entry { key: node.key(), value: node, revision: Revision("1".into()) })];
    cluster.endpoints = vec![AuditedEndpoint {
        name: "default/web".into(),
        node: "node1".into(),
        pod: Some(ObjectKey::namespaced("default", "web")),
        addresses: vec![web.parse().unwrap()],
        container_id: Some("c1".into()),
    }];
    let [ReleaseStep { verdict: StepVerdict::Do(ReleaseChange::Block(repair)), .. }, ..] =
        &steps_for_report(&report, &cluster, false)[..]
    else {
        panic!("a repair")
    };
    let of_handle = |address: &str| repair.repaired().allocation(address.parse().unwrap()).unwrap().handle().unwrap();
    assert_eq!(of_handle(&tunnel).as_str(), "vxlan-tunnel-addr-node1");
    assert_eq!(of_handle(&web).as_str(), "net.c1");

    cluster.nodes = vec![Err(StoreError::Other("denied".into()))];
    let refused = |cluster: &ClusterRead, force: bool| match &steps_for_report(&report, cluster, force)[0].verdict {
        StepVerdict::Refuse(reason) => Some(reason.clone()),
        _ => None,
    };
    assert!(refused(&cluster, false).is_some_and(|reason| reason.starts_with("nodes cannot be read (denied)")));
    // Only the handles record addresses that the block has lost.
    let steps = steps_for_report(&report, &cluster, false);
    assert!(!steps.iter().any(|step| matches!(step.verdict, StepVerdict::Do(_))), "{steps:?}");
    cluster.nodes = Vec::new();
    assert_eq!(refused(&cluster, false), None);
    // A tenant annotates a pod with an ID that forms another handle, or with another pod's ID.
    let shown = |cluster: &ClusterRead| match &steps_for_report(&report, cluster, true)[0].verdict {
        StepVerdict::Do(ReleaseChange::Block(repair)) => {
            repair.repaired().allocation(web.parse().unwrap()).unwrap().handle()
        }
        other => panic!("{other:?}"),
    };
    let mut machine = cluster.handles[0].clone();
    machine.key = HandleId::new("net.vmi.ns.c1");
    cluster.handles.push(machine);
    cluster.endpoints[0].container_id = Some("ns.c1".into());
    assert_eq!(shown(&cluster), None);
    cluster.endpoints[0].container_id = Some("c1".into());
    assert_eq!(shown(&cluster), Some(HandleId::new("net.c1")));
    cluster.endpoints.push(AuditedEndpoint {
        name: "default/other".into(),
        addresses: vec![],
        ..cluster.endpoints[0].clone()
    });
    assert_eq!(shown(&cluster), None);
    assert!(
        refused(&cluster, false).is_some_and(|reason| reason.starts_with("handle net.vmi.ns.c1 of a virtual machine"))
    );
    cluster.handles.pop();
    assert_eq!(refused(&cluster, false), None);
    for pool in &mut cluster.pools {
        pool.value.spec.allowed_uses = serde_json::from_value(json!(["LoadBalancer"])).unwrap();
    }
    assert!(
        refused(&cluster, false)
            .is_some_and(|reason| reason.starts_with("a Service may have an address of this block"))
    );
    assert_eq!(refused(&cluster, true), None);
}

#[test]
fn repair_of_a_block_changed_meanwhile_is_rejected() {
    let shell = Shell::with_pool();
    shell.allocate("a");
    damage(&shell, |block| block.unallocated.push(0));
    let report = Report::new(&block_on(ClusterRead::read(&shell.store)).unwrap());
    let cluster = block_on(ClusterRead::read(&shell.store)).unwrap();
    let StepVerdict::Do(change) = steps_for_report(&report, &cluster, false).remove(0).verdict else {
        panic!("a repair")
    };
    damage(&shell, |block| block.sequence_number += 1);
    let refused = block_on(execute(&shell.store, change)).unwrap();
    assert_eq!(refused, ChangeOutcome::Refused("another process changed the block".into()));
}
