//! A pool that was deleted while its blocks were in use, and created again with another block size.
//! `calicoctl` and `calico-ipam apply` refuse that. `kubectl` and `etcdctl` do not.

use std::fs;

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::content::Content;
use integration_tests::plugin::Outcome;
use integration_tests::store::Store;
use libcalico::net::Cidr;
use serde_json::{Value, json};

const POOL: &str = "10.65.0.0/16";

fn load(cluster: &Cluster<'_>, pool: &str, block_size: u8) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .node("node2")
            .pool("pool4", pool, block_size),
    );
}

/// Deletes the pool and creates it again.
fn recreate(cluster: &Cluster<'_>, pool: &str, block_size: u8) {
    let content = Content::ready().pool("pool4", pool, block_size);
    let objects = match &cluster.store {
        Store::Kubernetes(objects) => content.objects(objects.group()),
        Store::Etcd(_) | Store::Local(_) => content.pairs().clone(),
    };
    let (key, object) = objects
        .iter()
        .find(|(key, _)| key.ends_with("ippools/pool4"))
        .unwrap();
    cluster.store.delete(key).unwrap();
    cluster.store.put(key, object).unwrap();
}

fn calico_ipam(cluster: &Cluster<'_>, args: &[&str]) -> Outcome {
    cluster.store.calico_ipam(&cluster.plugins, args).unwrap()
}

/// Runs `apply` for a pool.
fn apply(cluster: &Cluster<'_>, name: &str, cidr: &str, block_size: u8, disabled: bool) -> Outcome {
    let pool = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": { "name": name },
        "spec": { "cidr": cidr, "blockSize": block_size, "disabled": disabled },
    });
    let file = cluster.host.dir("manifests").join("pool.json");
    fs::write(&file, pool.to_string()).unwrap();
    calico_ipam(cluster, &["apply", "-f", &file.display().to_string()])
}

/// Runs ADD for the n-th pod on a node.
fn add(cluster: &Cluster<'_>, node: &str, number: usize) -> Pod {
    let pod = cluster.pod_on(node, number);
    cluster.add(&pod, &cluster.conf(node, json!({})));
    pod
}

fn delete(cluster: &Cluster<'_>, node: &str, pod: &Pod) {
    cluster.delete(pod, &cluster.conf(node, json!({})));
}

/// Returns the prefix lengths of a node's blocks, in ascending order.
fn sizes(cluster: &Cluster<'_>, node: &str) -> Vec<u8> {
    let blocks = cluster
        .accounts()
        .blocks
        .into_iter()
        .filter(|(_, owner)| owner.as_deref() == Some(node));
    let mut sizes: Vec<u8> = blocks
        .map(|(cidr, _)| cidr.parse::<Cidr>().unwrap().prefix())
        .collect();
    sizes.sort_unstable();
    sizes
}

/// `node1` keeps its former block while a pod has an address in it. The former block of `node2` is
/// empty. Shows SEC-58.
#[on(etcd, local, kubernetes_v1, kubernetes_v3)]
fn nodes_move_to_the_new_size_without_an_overlap(cluster: &Cluster<'_>) {
    load(cluster, POOL, 26);
    let old = add(cluster, "node1", 1);
    delete(cluster, "node2", &add(cluster, "node2", 2));
    assert_eq!(
        (sizes(cluster, "node1"), sizes(cluster, "node2")),
        (vec![26], vec![26])
    );

    recreate(cluster, POOL, 28);
    let (one, two) = (add(cluster, "node1", 3), add(cluster, "node2", 4));
    assert_eq!(
        (sizes(cluster, "node1"), sizes(cluster, "node2")),
        (vec![26, 28], vec![28])
    );
    cluster.assert_only(&[&old, &one, &two]);

    delete(cluster, "node1", &old);
    let next = add(cluster, "node1", 5);
    assert_eq!(
        (sizes(cluster, "node1"), sizes(cluster, "node2")),
        (vec![28], vec![28])
    );
    assert_eq!(
        cluster.accounts().affinities.len(),
        2,
        "the affinities went with the blocks"
    );
    cluster.assert_only(&[&one, &two, &next]);
    for (node, pod) in [("node1", &one), ("node2", &two), ("node1", &next)] {
        delete(cluster, node, pod);
    }
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn former_block_that_covers_its_pool_serves_pods_until_it_is_empty(cluster: &Cluster<'_>) {
    const SMALL: &str = "10.65.0.0/26";
    load(cluster, SMALL, 26);
    let old = add(cluster, "node1", 1);
    recreate(cluster, SMALL, 28);
    let next = add(cluster, "node1", 2);
    assert_eq!(sizes(cluster, "node1"), [26]);
    let refused = cluster.pod_on("node2", 3);
    let outcome = cluster
        .verb("ADD", &refused, &cluster.conf("node2", json!({})))
        .run();
    assert!(outcome.error().msg.contains(SMALL), "{outcome:?}");
    for pod in [&old, &next] {
        delete(cluster, "node1", pod);
    }
    let last = add(cluster, "node1", 4);
    assert_eq!(sizes(cluster, "node1"), [28]);
    cluster.assert_only(&[&last]);
}

#[on(etcd, local, kubernetes_v1, kubernetes_v3)]
fn show_counts_former_blocks(cluster: &Cluster<'_>) {
    let show = |args: &[&str]| calico_ipam(cluster, args).stdout;
    let counted = || -> Value {
        let shown: Value = serde_json::from_str(&show(&["show", "-o", "json"])).unwrap();
        shown["pools"][0]["formerSizeBlocks"].clone()
    };
    load(cluster, POOL, 26);
    add(cluster, "node1", 1);
    assert_eq!(counted(), Value::Null);
    recreate(cluster, POOL, 28);
    add(cluster, "node1", 2);
    assert_eq!(counted(), 1);
    let text = show(&["show"]);
    assert!(
        text.contains("\npool pool4: 1 of 2 blocks have another size than /28\n"),
        "{text}"
    );
}

/// Upstream's plugin, which finds a free range by the name of its block, claims a part of a former
/// block and assigns an address in it. Only a person can decide which pod keeps an address, so an
/// ADD leaves both blocks unchanged. Shows SEC-59.
#[on(etcd, local, kubernetes_v1, kubernetes_v3)]
fn check_names_overlapping_blocks(cluster: &Cluster<'_>) {
    load(cluster, POOL, 26);
    add(cluster, "node1", 1);
    recreate(cluster, POOL, 28);
    let content = cluster.store.dump().unwrap();
    let is_block =
        |key: &str| key.starts_with("ipamblocks/") || key.contains("/ipam/v2/assignment/");
    let (key, block) = content.iter().find(|(key, _)| is_block(key)).unwrap();
    let (mut inner_key, mut inner) = (key.clone(), block.clone());
    inner_key.truncate(key.len() - 2);
    inner_key.push_str("28");
    let spec = if key.starts_with("ipamblocks/") {
        inner["metadata"]["name"] = json!(inner_key.split_once('/').unwrap().1);
        &mut inner["spec"]
    } else {
        &mut inner
    };
    let outer = spec["cidr"].as_str().unwrap().to_owned();
    let cidr = outer.replace("/26", "/28");
    spec["cidr"] = json!(cidr);
    spec["affinity"] = json!("host:node2");
    spec["allocations"] = json!(vec![Value::Null; 16]);
    spec["allocations"][0] = json!(0);
    spec["unallocated"] = json!((1..16).collect::<Vec<u8>>());
    let owner = json!({ "node": "node2", "namespace": "suite", "pod": "of-upstream" });
    spec["attributes"] = json!([{ "handle_id": "k8s-pod-network.upstream", "secondary": owner }]);
    spec["sequenceNumberForAllocation"] = json!({});
    cluster.store.put(&inner_key, &inner).unwrap();

    let overlapping = || {
        let mut content = cluster.store.dump().unwrap();
        [key, &inner_key].map(|key| content.remove(key).unwrap())
    };
    let before = overlapping();
    add(cluster, "node1", 2);
    assert_eq!(sizes(cluster, "node1"), [26, 28]);
    assert_eq!(overlapping(), before);

    let check = calico_ipam(cluster, &["check", "--settle", "0"]);
    assert_eq!(check.exit, Some(1), "{check:?}");
    assert!(
        check
            .stdout
            .contains(&format!("overlapping blocks: {outer} and {cidr}; ")),
        "{check:?}"
    );
    assert_eq!(
        check.stdout.matches("overlapping blocks: ").count(),
        1,
        "{check:?}"
    );
}

/// The course of upstream's guide, in which the pool is first deleted while a pod has an address in
/// it.
#[on(etcd, local, kubernetes_v1, kubernetes_v3)]
fn second_pool_changes_the_block_size_without_former_blocks(cluster: &Cluster<'_>) {
    const SECOND: &str = "10.66.0.0/16";
    load(cluster, POOL, 26);
    let (one, two) = (add(cluster, "node1", 1), add(cluster, "node2", 2));
    apply(cluster, "second", SECOND, 26, false).success();
    apply(cluster, "pool4", POOL, 26, true).success();
    let shown = calico_ipam(cluster, &["show"]);
    assert!(shown.stdout.contains("pool4 (disabled)"), "{shown:?}");
    delete(cluster, "node1", &one);
    let one = add(cluster, "node1", 3);

    let deleted = calico_ipam(cluster, &["delete", "ippool", "pool4"]);
    deleted.success();
    assert!(
        deleted
            .stderr
            .contains("note: 1 addresses of IPPool pool4 stay in use"),
        "{deleted:?}"
    );
    let refused = apply(cluster, "pool4", POOL, 28, false);
    assert_eq!(refused.exit, Some(1), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("IPPool blocksSize conflicts with existing"),
        "{refused:?}"
    );
    assert!(
        !cluster
            .store
            .dump()
            .unwrap()
            .keys()
            .any(|key| key.ends_with("ippools/pool4"))
    );
    let blocks = cluster.accounts().blocks;
    let former: Vec<&String> = blocks
        .keys()
        .filter(|cidr| cidr.starts_with("10.65."))
        .collect();
    assert_eq!(former.len(), 1, "{blocks:?}");
    let check = calico_ipam(cluster, &["check", "--settle", "0"]);
    let left = format!(
        "block outside pools: {} of no owner, 1 addresses in use",
        former[0]
    );
    assert!(
        check.exit == Some(1) && check.stdout.contains(&left),
        "{check:?}"
    );

    delete(cluster, "node2", &two);
    let two = add(cluster, "node2", 4);
    let blocks = cluster.accounts().blocks;
    assert!(
        blocks.keys().all(|cidr| cidr.starts_with("10.66.")),
        "{blocks:?}"
    );
    apply(cluster, "pool4", POOL, 28, false).success();
    apply(cluster, "second", SECOND, 26, true).success();
    for (node, pod) in [("node1", &one), ("node2", &two)] {
        delete(cluster, node, pod);
    }
    let last = add(cluster, "node1", 5);
    calico_ipam(cluster, &["delete", "ippool", "second"]).success();
    assert_eq!(
        (sizes(cluster, "node1"), cluster.accounts().blocks.len()),
        (vec![28], 1)
    );
    assert!(
        !calico_ipam(cluster, &["show"])
            .stdout
            .contains("another size")
    );
    cluster.assert_only(&[&last]);
}
