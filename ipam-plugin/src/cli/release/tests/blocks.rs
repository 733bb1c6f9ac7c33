use libcalico::api::{Node, NodeSpec};
use libcalico::ipam::{AllocatedAddress, AuditedEndpoint, Block, PackedEndpoint, PackedHandle};
use libcalico::store::{Entry, Revision, Store, StoreError};

use super::*;
use crate::cli::release::plan::steps_for_report;
use crate::cli::release::step::{ChangeOutcome, ReleaseChange, release_together, store_block};

#[test]
fn release_from_an_inconsistent_block_is_rejected() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let (key, mut block) = shell.blocks().remove(0);
    block.unallocated.push(100);
    shell.remove(&<Block as libcalico::store::Kind>::path(&key));
    shell.put(
        &<Block as libcalico::store::Kind>::path(&key),
        &serde_json::to_string(&block).unwrap(),
    );
    let output = shell.wrong(&["release", &leaked]);
    assert!(
        output.contains("refused: block ") && output.contains("is corrupt"),
        "{output}"
    );
}

fn damage(shell: &Shell, change: impl FnOnce(&mut Block)) -> Block {
    let [entry] = &mut block_on(shell.store.list::<Block>(&None)).unwrap()[..] else {
        panic!("one block")
    };
    change(&mut entry.value);
    block_on(
        shell
            .store
            .update(&entry.key, &entry.value, &entry.revision),
    )
    .unwrap();
    entry.value.clone()
}

fn only_block(shell: &Shell) -> Block {
    shell.blocks().remove(0).1
}

#[test]
fn release_from_a_report_repairs_an_inconsistent_block() {
    let shell = Shell::with_pool();
    let addresses = [
        shell.allocate("a"),
        shell.allocate("b"),
        shell.allocate("c"),
    ];
    let endpoint_of = |name: &str, n: usize| shell.endpoint(name, &addresses[n]);
    endpoint_of("a", 0);
    endpoint_of("b", 1);
    // The first address is both allocated and free. The second, which a pod has, is neither. The
    // third, which no pod has, names attributes that do not exist. The fourth is in the free list
    // twice.
    let damaged = damage(&shell, |block| {
        block.unallocated.extend([0, 3]);
        (block.allocations[1], block.allocations[2]) = (None, Some(77));
    });
    let file = report(&shell);
    let dry = shell.ok(&["release", "--from-report", &file, "--dry-run"]);
    assert!(dry.contains("would be: repaired"), "{dry}");
    assert_eq!(only_block(&shell), damaged);

    let expected = format!(
        "repaired: free again: {}; kept for the recorded owners: {}",
        addresses[2], addresses[1]
    );
    let output = shell.ok(&["release", "--from-report", &file]);
    assert!(output.contains(&expected), "{output}");
    let block = only_block(&shell);
    assert_eq!((block.verify(), block.lost_ordinal()), (Ok(()), None));
    assert!(block.sequence_number > damaged.sequence_number);
    assert!(
        is_held(&shell, &addresses[0])
            && is_held(&shell, &addresses[1])
            && !is_held(&shell, &addresses[2])
    );
    let kept = block.allocation(addresses[1].parse().unwrap()).unwrap();
    let noted: Vec<_> = kept
        .attributes()
        .unwrap()
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    assert_eq!(noted, ["namespace=default", "node=node1", "pod=b"]);
    assert_eq!(
        shell.ok(&["check", "--settle", "0"]).lines().last(),
        Some("nothing is wrong")
    );
}

#[test]
fn repair_retains_an_address_reported_by_a_running_pod() {
    let shell = Shell::with_pool();
    let address = shell.allocate("web");
    damage(&shell, |block| block.allocations[0] = None);
    let report = problems(&read(&shell));
    let mut cluster = read(&shell);
    let pod = |phase: &str, ip: &str| -> Lookup<Pod> {
        let status = json!({"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]});
        let metadata = json!({"name": "web", "namespace": "default"});
        let pod = json!({"metadata": metadata, "spec": {"nodeName": "node1"}, "status": status});
        Lookup::Present(serde_json::from_value(pod).unwrap())
    };
    for (pod, expected) in [
        (
            pod("Running", &address),
            "kept for the recorded owners: 10.",
        ),
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
    let (tunnel, web) = (
        shell.allocate("vxlan-tunnel-addr-node1"),
        shell.allocate("net.c1"),
    );
    damage(&shell, |block| {
        (block.allocations[0], block.allocations[1]) = (None, None)
    });
    let mut cluster = read(&shell);
    let report = problems(&cluster);
    let spec = NodeSpec {
        ipv4_vxlan_tunnel_addr: tunnel.clone(),
        ..NodeSpec::default()
    };
    let node = Node::new("node1", spec);
    cluster.nodes = vec![Ok(Entry {
        key: node.key(),
        value: node,
        revision: Revision("1".into()),
    })];
    let mut endpoint = AuditedEndpoint {
        name: "default/web".into(),
        object: "default/node1-k8s-web-eth0".into(),
        node: "node1".into(),
        pod: Some(ObjectKey::namespaced("default", "web")),
        addresses: vec![web.parse().unwrap()],
        container_id: Some("c1".into()),
    };
    cluster.endpoints = vec![PackedEndpoint::of(&endpoint)];
    let [
        ReleaseStep {
            verdict: StepVerdict::Do(ReleaseChange::Block(repair)),
            ..
        },
        ..,
    ] = &steps_for_report(&report, &cluster, false)[..]
    else {
        panic!("a repair")
    };
    let of_handle = |address: &str| {
        repair
            .repaired()
            .allocation(address.parse().unwrap())
            .unwrap()
            .handle()
            .unwrap()
    };
    assert_eq!(of_handle(&tunnel).as_str(), "vxlan-tunnel-addr-node1");
    assert_eq!(of_handle(&web).as_str(), "net.c1");

    cluster.nodes = vec![Err(StoreError::Other("denied".into()))];
    let refused =
        |cluster: &ClusterRead, force: bool| match &steps_for_report(&report, cluster, force)[0]
            .verdict
        {
            StepVerdict::Refuse(reason) => Some(reason.clone()),
            _ => None,
        };
    assert!(
        refused(&cluster, false)
            .is_some_and(|reason| reason.starts_with("nodes cannot be read (denied)"))
    );
    // Only the handles record addresses that the block has lost.
    let steps = steps_for_report(&report, &cluster, false);
    assert!(
        !steps
            .iter()
            .any(|step| matches!(step.verdict, StepVerdict::Do(_))),
        "{steps:?}"
    );
    cluster.nodes = Vec::new();
    assert_eq!(refused(&cluster, false), None);
    // A tenant annotates a pod with an ID that forms another handle, or with another pod's ID.
    let shown = |cluster: &ClusterRead| match &steps_for_report(&report, cluster, true)[0].verdict {
        StepVerdict::Do(ReleaseChange::Block(repair)) => repair
            .repaired()
            .allocation(web.parse().unwrap())
            .unwrap()
            .handle(),
        other => panic!("{other:?}"),
    };
    let value = Handle {
        block: cluster.handles[0].counts(),
        ..Handle::default()
    };
    let machine = Entry {
        key: HandleId::new("net.vmi.ns.c1"),
        value,
        revision: cluster.handles[0].revision(),
    };
    cluster.handles.push(PackedHandle::of(&machine));
    endpoint.container_id = Some("ns.c1".into());
    cluster.endpoints = vec![PackedEndpoint::of(&endpoint)];
    assert_eq!(shown(&cluster), None);
    endpoint.container_id = Some("c1".into());
    cluster.endpoints = vec![PackedEndpoint::of(&endpoint)];
    assert_eq!(shown(&cluster), Some(HandleId::new("net.c1")));
    let other = AuditedEndpoint {
        name: "default/other".into(),
        addresses: vec![],
        ..endpoint
    };
    cluster.endpoints.push(PackedEndpoint::of(&other));
    assert_eq!(shown(&cluster), None);
    assert!(
        refused(&cluster, false)
            .is_some_and(|reason| reason.starts_with("handle net.vmi.ns.c1 of a virtual machine"))
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
    let report = problems(&read(&shell));
    let cluster = read(&shell);
    let StepVerdict::Do(ReleaseChange::Block(repair)) =
        steps_for_report(&report, &cluster, false).remove(0).verdict
    else {
        panic!("a repair")
    };
    damage(&shell, |block| block.sequence_number += 1);
    let refused = block_on(store_block(&shell.store, *repair)).unwrap();
    assert_eq!(
        refused,
        ChangeOutcome::Refused("another process changed the block".into())
    );
}

/// A restarted virtual machine keeps handle and sequence number (KC-422).
#[test]
fn release_of_an_address_that_a_restarted_machine_has_is_rejected() {
    let shell = Shell::with_pool();
    let address = shell.allocate("net.vmi.default.vm");
    let planned = planned(&shell, &[&address]);
    damage(&shell, |block| {
        _ = block.attributes[0]
            .active_owner
            .insert("pod".into(), "virt-launcher-vm-2".into())
    });
    let refused = released(&shell, &planned);
    let reason = "another process released the address or changed its owner";
    assert_eq!(refused, [ChangeOutcome::Refused(reason.into())]);
    assert!(is_held(&shell, &address));
    assert_eq!(
        released(&shell, &self::planned(&shell, &[&address])),
        [ChangeOutcome::Applied]
    );
    assert!(!is_held(&shell, &address));
}

type Planned = Vec<(AllocatedAddress, Option<u32>)>;

fn planned(shell: &Shell, addresses: &[&str]) -> Planned {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|address| address.parse().unwrap())
        .collect();
    let change = |step: ReleaseStep| match step.verdict {
        StepVerdict::Do(ReleaseChange::Release { held, fingerprint }) => (held, fingerprint),
        other => panic!("{other:?}"),
    };
    steps_for_addresses(&addresses, &read(shell), true)
        .into_iter()
        .map(change)
        .collect()
}

fn released(shell: &Shell, planned: &Planned) -> Vec<ChangeOutcome> {
    block_on(release_together(&shell.store, planned))
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

#[test]
fn addresses_of_a_block_are_released_with_one_write_except_those_that_changed_meanwhile() {
    let shell = Shell::with_pool();
    let addresses: Vec<String> = ["a", "b", "c"]
        .into_iter()
        .map(|handle| shell.allocate(handle))
        .collect();
    let of: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let planned = planned(&shell, &of);
    damage(&shell, |block| {
        block.attributes[1].handle_id = Some("other".into())
    });
    let sequence_number = |shell: &Shell| shell.blocks().remove(0).1.sequence_number;
    let before = sequence_number(&shell);
    let outcomes = released(&shell, &planned);
    let [
        ChangeOutcome::Applied,
        ChangeOutcome::Refused(reason),
        ChangeOutcome::Applied,
    ] = &outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert!(
        reason.contains("the given handle (b) does not match (other)"),
        "{reason}"
    );
    assert_eq!(sequence_number(&shell), before + 1);
    assert_eq!(
        (
            handle(&shell, "a"),
            handle(&shell, "b").is_some(),
            handle(&shell, "c")
        ),
        (None, true, None)
    );
    let again = released(&shell, &planned);
    assert_eq!(
        again[0],
        ChangeOutcome::Refused("another process released the address".into())
    );
}

/// Very old allocations have neither handle nor sequence number to compare.
#[test]
fn release_of_a_reassigned_address_without_handle_and_sequence_number_is_rejected() {
    let shell = Shell::with_pool();
    let address = shell.allocate("old");
    damage(&shell, |block| {
        block.attributes[0].handle_id = None;
        block.sequence_number_for_allocation.clear();
    });
    let planned = planned(&shell, &[&address]);
    damage(&shell, |block| {
        block.attributes[0].handle_id = Some("net.new".into())
    });
    assert!(matches!(
        &released(&shell, &planned)[..],
        [ChangeOutcome::Refused(_)]
    ));
    assert!(is_held(&shell, &address));
    damage(&shell, |block| block.attributes[0].handle_id = None);
    assert_eq!(released(&shell, &planned), [ChangeOutcome::Applied]);
}

/// The address cools down in the block that is listed first.
#[test]
fn pod_that_may_have_the_address_of_an_overlapping_block_keeps_it() {
    let shell = Shell::with_pool();
    let address = shell.allocate("web");
    let [a, b, c, last] = address.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let (network, ordinal) = (
        format!("{a}.{b}.{c}.{}", last / 128 * 128),
        usize::from(last % 128),
    );
    let mut allocations = vec![json!(null); 128];
    allocations[ordinal] = json!(0);
    let free: Vec<usize> = (0..128).filter(|&free| free != ordinal).collect();
    let block = json!({
        "cidr": format!("{network}/25"), "affinity": "host:node1", "allocations": allocations,
        "unallocated": free,
        "attributes": [{"releasedAt": "2026-11-21T21:00:00Z"}],
    });
    shell.put(
        &format!("/calico/ipam/v2/assignment/ipv4/block/{network}-25"),
        &block.to_string(),
    );
    let mut cluster = read(&shell);
    let metadata = json!({ "name": "web", "namespace": "default" });
    let pod = json!({
        "metadata": metadata, "spec": { "nodeName": "node1" }, "status": { "phase": "Pending" },
    });
    let pod = Lookup::Present(serde_json::from_value::<Pod>(pod).unwrap());
    cluster.pods = [(ObjectKey::namespaced("default", "web"), pod)].into();
    let steps = steps_for_addresses(&[address.parse().unwrap()], &cluster, false);
    let [
        ReleaseStep {
            verdict: StepVerdict::Refuse(why),
            ..
        },
    ] = &steps[..]
    else {
        panic!("{steps:?}")
    };
    assert!(
        why.starts_with("its pod has reported no address yet"),
        "{why}"
    );
}
