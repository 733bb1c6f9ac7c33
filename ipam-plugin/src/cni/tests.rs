mod checked_result;
mod exhausted;
mod prefetch;
mod vmi;
mod vmi_owners;

use libcalico::variables::Variables;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use datastore::config::LocalConfig;
use datastore::{Datastore, Local};
use libcalico::api::{
    ClusterInformation, ClusterInformationSpec, IpPool, IpPoolSpec, Node, NodeSpec, ObjectKey,
};
use libcalico::ipam::{AnyOf, Block, Handle, HandleId};
use libcalico::net::IpVersion;
use libcalico::store::{Kind, Store};
use netconf::{CniError, Code, Command, Version};

use super::testing::call;
use super::{IpamRequest, Pod, add, check, del, differences, gc, status, status_of};
use allocation::alloc::inputs::{AllocationInputs, LONGEST_VALIDITY};
use allocation::alloc::request::{AssignRequest, Namespace};
use allocation::error::IpamError;
use allocation::release::ReleaseInputs;
use allocation::testing::{Cluster, Fault, TestClock, assert_consistent, cidr, held};
use os::clock::SystemClock;
use os::lock::HostLock;
use os::node_files::NodeFiles;

async fn add_to(cluster: &Cluster, call: &IpamRequest) -> Result<netconf::CniResult, CniError> {
    let inputs = AllocationInputs::read(&cluster.store, &call.inputs_query())
        .await
        .unwrap();
    Ok(add(&cluster.store, &cluster.clock, call, inputs, None)
        .await?
        .result)
}

async fn del_from(cluster: &Cluster, call: &IpamRequest) -> Result<(), CniError> {
    let inputs = ReleaseInputs::read(&cluster.store, &call.handles())
        .await
        .unwrap();
    del(&cluster.store, &cluster.clock, call, inputs).await
}

fn dual_stack() -> Cluster {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.pool("pool6", "fd00:65::/64", 122);
    cluster
}

fn pod(namespace: &str, name: &str) -> Pod {
    Pod {
        namespace: Namespace {
            name: namespace.into(),
            ..Namespace::default()
        },
        name: name.into(),
    }
}

#[tokio::test]
async fn add_result_has_the_block_prefix_and_a_route_per_address() {
    let cluster = dual_stack();
    let both = IpamRequest {
        assign_ipv6: true,
        ..call("a")
    };
    let text = add_to(&cluster, &both)
        .await
        .unwrap()
        .to_json(Version::V1_0_0)
        .unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "cniVersion": "1.0.0",
            "ips": [
                {"address": "10.65.166.128/26"}, {"address": "fd00:65::c11:b42f:f17e:a680/122"},
            ],
            "routes": [{"dst": "10.65.166.128/26"}, {"dst": "fd00:65::c11:b42f:f17e:a680/122"}],
        })
    );
    let asked = IpamRequest {
        ip: Some("10.65.9.9".parse().unwrap()),
        ..call("b")
    };
    let result = add_to(&cluster, &asked).await.unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.65.9.9/32");
    assert_eq!(result.routes[0].dst.to_string(), "10.65.9.9/32");
}

#[tokio::test]
async fn add_with_a_list_has_a_route_per_address() {
    let cluster = dual_stack();
    let texts = ["10.65.9.9", "fd00:65::8/125"].map(str::to_owned);
    let any_of = Some(AnyOf::parse(&texts).unwrap());
    let listed = IpamRequest {
        assign_ipv6: true,
        any_of: any_of.clone(),
        ..call("a")
    };
    let result = add_to(&cluster, &listed).await.unwrap();
    let addresses: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    assert_eq!(addresses, ["10.65.9.9/26", "fd00:65::8/122"]);
    let routes: Vec<String> = result
        .routes
        .iter()
        .map(|route| route.dst.to_string())
        .collect();
    assert_eq!(routes, addresses);
    // A replacement of a busy address is for one family.
    let only_six = IpamRequest {
        assign_ipv4: false,
        assign_ipv6: true,
        any_of,
        ..call("b")
    };
    let result = add_to(&cluster, &only_six).await.unwrap();
    assert_eq!(
        result
            .ips
            .iter()
            .map(|ip| ip.address.to_string())
            .collect::<Vec<_>>(),
        ["fd00:65::9/122"]
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn add_assigns_only_the_requested_families() {
    let cluster = dual_stack();
    let six = IpamRequest {
        assign_ipv4: false,
        assign_ipv6: true,
        ..call("a")
    };
    assert_eq!(
        add_to(&cluster, &six).await.unwrap().ips[0]
            .address
            .prefix_len(),
        122
    );
    let none = IpamRequest {
        assign_ipv4: false,
        ..call("b")
    };
    assert_eq!(
        add_to(&cluster, &none).await.unwrap(),
        netconf::CniResult::default()
    );
    assert_eq!(cluster.handle("net.b"), None);
}

#[tokio::test]
async fn del_releases_the_old_handle_too_and_succeeds_without_addresses() {
    let cluster = dual_stack();
    del_from(&cluster, &call("a")).await.unwrap();
    let of_before_v3 = AssignRequest {
        attributes: BTreeMap::new(),
        ..cluster.request("node1", "a")
    };
    cluster.assign(&of_before_v3).await.unwrap();
    add_to(&cluster, &call("a")).await.unwrap();
    del_from(&cluster, &call("a")).await.unwrap();
    assert_eq!(held(&cluster.store.pairs()).len(), 0);
    del_from(&cluster, &call("a")).await.unwrap();
}

#[test]
fn handle_names_match_upstreams() {
    let plain = call("c0ffee");
    let names = |call: &IpamRequest| {
        call.handles()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&plain), ["net.c0ffee", "c0ffee"]);
    let of_pod = IpamRequest {
        pod: Some(pod("default", "web")),
        ..plain
    };
    assert_eq!(names(&of_pod), ["net.c0ffee", "default.web"]);
    let attributes = of_pod.attributes(time::OffsetDateTime::UNIX_EPOCH);
    assert_eq!(
        attributes.keys().collect::<Vec<_>>(),
        ["namespace", "node", "pod", "timestamp"]
    );
}

#[test]
fn ipam_request_is_built_from_the_runtimes_call() {
    let conf = r#"{"cniVersion":"1.0.0","name":"net","type":"calico","ipam_lock_file":"/l",
        "windows_use_single_network":true,
        "ipam":{"type":"calico-ipam","assign_ipv4":"false","assign_ipv6":"true","ipv6_pools":["six","fd00::/64"]}}"#;
    let env = |name: &str| {
        let value = match name {
            "CNI_COMMAND" => "ADD",
            "CNI_CONTAINERID" => "c0ffee",
            "CNI_NETNS" | "CNI_PATH" => "/x",
            "CNI_IFNAME" => "eth0",
            "CNI_ARGS" => "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;IP=10.0.0.9",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let decoded =
        netconf::read_call(Variables::new(&env), || Ok(conf.as_bytes().to_vec())).unwrap();
    assert_eq!(decoded.command, Command::Add);
    let call = IpamRequest::from_call(&decoded, "node1", &NodeFiles::of_this_node());
    assert_eq!(
        (call.network.as_str(), call.container_id.as_str()),
        ("net", "c0ffee")
    );
    assert_eq!((call.assign_ipv4, call.assign_ipv6), (false, true));
    assert_eq!(call.ipv6_pools, ["six", "fd00::/64"]);
    assert_eq!(call.ip, Some("10.0.0.9".parse().unwrap()));
    assert_eq!(call.lock_file, Some(PathBuf::from("/l")));
    assert_eq!(
        call.assign_request(time::OffsetDateTime::UNIX_EPOCH)
            .max_blocks,
        1
    );
    assert_eq!(call.handles()[1].as_str(), "ns.p");
}

// Errors.

#[tokio::test]
async fn ipam_errors_have_upstreams_text_with_a_code_and_reasons() {
    let cluster = Cluster::new();
    cluster.pool("tiny", "10.66.0.0/32", 32);
    cluster.pool_with("off", "10.67.0.0/24", 26, |spec| spec.disabled = true);
    add_to(&cluster, &call("a")).await.unwrap();
    let full = add_to(&cluster, &call("b")).await.unwrap_err();
    assert_eq!(full.code, Code::INTERNAL);
    assert_eq!(
        full.details,
        "pool tiny (10.66.0.0/32): full: 1 of 1 in use; pool off (10.67.0.0/24): it is disabled"
    );
    let unknown = IpamRequest {
        ipv4_pools: vec!["no-such-pool".into()],
        ..call("b")
    };
    let unknown = add_to(&cluster, &unknown).await.unwrap_err();
    assert_eq!(unknown.code, Code::INVALID_CONFIG);
    assert_eq!(
        unknown.msg,
        "error parsing pool \"no-such-pool\": invalid CIDR address: no-such-pool"
    );
    let taken = IpamRequest {
        ip: Some("10.66.0.0".parse().unwrap()),
        ..call("b")
    };
    let taken = add_to(&cluster, &taken).await.unwrap_err();
    assert!(
        taken
            .details
            .starts_with("it is held by handle net.a, node node1, since "),
        "{}",
        taken.details
    );
    let inputs = AllocationInputs::read(&cluster.store, &call("b").inputs_query())
        .await
        .unwrap();
    cluster.store.before_each(|_, _, _| Fault::Refused);
    let gone = add(&cluster.store, &cluster.clock, &call("b"), inputs, None)
        .await
        .unwrap_err();
    assert_eq!(gone.code, Code::TRY_AGAIN);
}

/// A malformed selector fails the request before any pool is rejected.
#[tokio::test]
async fn error_for_a_malformed_pool_names_the_pool_and_reports_no_missing_pools() {
    let cluster = Cluster::new();
    let missing = add_to(&cluster, &call("a")).await.unwrap_err();
    assert!(
        missing.details.starts_with("there is no IPPool; "),
        "{}",
        missing.details
    );
    cluster.pool_with("bad", "10.66.0.0/24", 26, |spec| {
        spec.node_selector = "rack ===".into()
    });
    let malformed = add_to(&cluster, &call("a")).await.unwrap_err();
    assert!(
        malformed
            .msg
            .starts_with("IPPool bad: nodeSelector `rack ===` is invalid: "),
        "{}",
        malformed.msg
    );
    assert_eq!(malformed.details, "");
}

#[tokio::test]
async fn contention_is_returned_as_try_again() {
    let cluster = dual_stack();
    add_to(&cluster, &call("a")).await.unwrap();
    cluster.store.before_each(|_, writes, pairs| {
        if let Some(write) = writes.and_then(|writes| writes.get(1)) {
            pairs.touch(&write.path);
        }
        Fault::None
    });
    assert_eq!(
        add_to(&cluster, &call("b")).await.unwrap_err().code,
        Code::TRY_AGAIN
    );
}

// A pool is deleted 500 ms after it was disabled (IPAM-100).
#[tokio::test]
async fn pools_are_read_again_after_a_long_wait_for_the_lock() {
    let cluster = dual_stack();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ipam.lock");
    let waiting = IpamRequest {
        lock_file: Some(path.clone()),
        ..call("a")
    };
    let inputs = AllocationInputs::read(&cluster.store, &waiting.inputs_query())
        .await
        .unwrap();
    cluster.pool_with("pool4", "10.65.0.0/16", 26, |spec| spec.disabled = true);
    let (holder, clock) = (
        HostLock::acquire_within(&path, Duration::ZERO).unwrap(),
        Arc::new(TestClock::default()),
    );
    let passing = clock.clone();
    let holding = std::thread::spawn(move || {
        // Ends also if no call waits, and then the pools are not read again.
        (0..20_000)
            .take_while(|_| !HostLock::is_waited_for(&path))
            .for_each(|_| sleep(Duration::from_millis(1)));
        passing.advance(LONGEST_VALIDITY + Duration::from_millis(1));
        drop(holder);
    });
    let error = add(&cluster.store, &*clock, &waiting, inputs, None)
        .await
        .unwrap_err();
    holding.join().unwrap();
    assert_eq!(error.msg, "cannot find a qualified ippool");
}

// CHECK reports each difference.

// STATUS.

#[tokio::test]
async fn status_fails_if_an_add_would_fail() {
    let cluster = Cluster::new();
    let wanted = IpamRequest {
        assign_ipv6: true,
        ..call("")
    };
    let msg = async |call: &IpamRequest| {
        let inputs = AllocationInputs::read(&cluster.store, &call.inputs_query())
            .await
            .unwrap();
        status_of(call, &inputs).map_err(|error| (error.code, error.msg))
    };
    let no_pool = || {
        Err((
            Code::NOT_AVAILABLE,
            "cannot find a qualified ippool".to_owned(),
        ))
    };
    assert_eq!(msg(&wanted).await, no_pool());
    cluster.pool("pool4", "10.65.0.0/16", 26);
    assert_eq!(msg(&wanted).await, no_pool());
    cluster.pool("pool6", "fd00:65::/64", 122);
    assert_eq!(msg(&wanted).await, Ok(()));
    let stranger = IpamRequest {
        node: "node9".into(),
        ..wanted.clone()
    };
    let unknown = "resource does not exist: Node(node9)".to_owned();
    assert_eq!(msg(&stranger).await, Err((Code::NOT_AVAILABLE, unknown)));
}

#[tokio::test]
async fn status_of_a_datastore_that_is_not_ready_or_unreadable_has_code_50() {
    let dir = tempfile::tempdir().unwrap();
    let store = local(dir.path()).await;
    let spec = ClusterInformationSpec {
        datastore_ready: Some(false),
        ..ClusterInformationSpec::default()
    };
    let key = ObjectKey::global("default");
    let stored = store.get::<ClusterInformation>(&key).await.unwrap();
    store
        .update(
            &key,
            &ClusterInformation::new("default", spec),
            &stored.revision,
        )
        .await
        .unwrap();
    let asked = IpamRequest {
        assign_ipv6: true,
        ..call("")
    };
    let error = status(&Datastore::Local(store), &asked).await.unwrap_err();
    let not_ready = "Calico is currently not ready to process requests";
    assert_eq!(
        (error.code, error.msg.as_str()),
        (Code::NOT_AVAILABLE, not_ready)
    );

    std::fs::write(dir.path().join("file"), "").unwrap();
    let path = dir.path().join("file/calico.db");
    let unreadable = Local::new(&LocalConfig {
        path,
        deadline: Duration::from_secs(1),
    });
    let error = status(&Datastore::Local(unreadable), &asked)
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::NOT_AVAILABLE, "{error:?}");
}

// GC.

#[tokio::test]
async fn gc_releases_only_containers_unknown_to_the_runtime() {
    let cluster = dual_stack();
    for (node, handle) in [
        ("node1", "net.gone"),
        ("node1", "net.alive"),
        ("node1", "other.gone"),
        ("node1", "network.gone"),
        ("node1", "net.vmi.default.vm"),
        ("node2", "net.elsewhere"),
    ] {
        cluster.one(node, handle).await.unwrap();
    }
    let valid = BTreeSet::from(["alive".to_owned()]);
    let collected = gc(&cluster.store, &cluster.clock, "net", "node1", &valid)
        .await
        .unwrap();
    assert_eq!(collected.released, [HandleId::new("net.gone")]);
    assert!(collected.failed.is_empty());
    assert_eq!(held(&cluster.store.pairs()).len(), 5);
    assert_consistent(&cluster.store.pairs(), true);
}

// Upstream deletes the handle if the response to the block's write is lost, even if the write was
// applied (IPAM-184).
#[tokio::test]
async fn gc_releases_addresses_whose_handle_is_missing() {
    let cluster = dual_stack();
    cluster.one("node1", "net.gone").await.unwrap();
    cluster
        .store
        .edit(|pairs| pairs.remove(&Handle::path(&HandleId::new("net.gone"))));
    let collected = gc(
        &cluster.store,
        &cluster.clock,
        "net",
        "node1",
        &BTreeSet::new(),
    )
    .await
    .unwrap();
    assert_eq!(collected.released, [HandleId::new("net.gone")]);
    assert!(held(&cluster.store.pairs()).is_empty());
}

/// Addresses in the unreadable block stay, as after such a DEL.
#[tokio::test]
async fn gc_with_an_unreadable_block_fails_and_releases_the_addresses_of_other_blocks() {
    let cluster = dual_stack();
    let mut request = cluster.request("node1", "net.gone");
    request.num6 = 1;
    cluster.assign(&request).await.unwrap();
    cluster.one("node1", "net.other").await.unwrap();
    let blocks = cluster.handle("net.gone").unwrap().block;
    let unreadable = blocks
        .into_keys()
        .find(|block| block.version() == IpVersion::V6)
        .unwrap();
    cluster
        .store
        .edit(|pairs| pairs.put(Block::path(&unreadable), b"{".to_vec()));
    let collected = gc(
        &cluster.store,
        &cluster.clock,
        "net",
        "node1",
        &BTreeSet::new(),
    )
    .await
    .unwrap();
    assert_eq!(collected.released, [HandleId::new("net.other")]);
    let [(failed, IpamError::UnreadableBlock(kept))] = &collected.failed[..] else {
        panic!("{collected:?}")
    };
    assert_eq!((failed.as_str(), *kept), ("net.gone", unreadable));
    let handle = cluster.handle("net.gone").unwrap();
    assert_eq!(handle.block.into_keys().collect::<Vec<_>>(), [unreadable]);
}

// The embedded datastore.

async fn local(dir: &std::path::Path) -> Local {
    let store = Local::new(&LocalConfig {
        path: dir.join("calico.db"),
        deadline: std::time::Duration::from_secs(10),
    });
    let node = Node::new("node1", NodeSpec::default());
    store.create(&node.key(), &node).await.unwrap();
    for (name, range) in [("pool4", "10.65.0.0/16"), ("pool6", "fd00:65::/64")] {
        let pool = IpPool::new(
            name,
            IpPoolSpec {
                cidr: range.into(),
                ..IpPoolSpec::default()
            },
        );
        store.create(&pool.key(), &pool).await.unwrap();
    }
    store
}

#[tokio::test]
async fn add_and_del_on_a_local_datastore_take_three_requests_each() {
    let dir = tempfile::tempdir().unwrap();
    let store = local(dir.path()).await;
    let clock = SystemClock::start();
    let mut expected = 6;
    for container in ["a", "b", "c"] {
        let call = IpamRequest {
            assign_ipv6: true,
            lock_file: Some(dir.path().join("ipam.lock")),
            ..call(container)
        };
        let before = store.requests();
        let inputs = AllocationInputs::read(&store, &call.inputs_query())
            .await
            .unwrap();
        let result = add(&store, &clock, &call, inputs, None)
            .await
            .unwrap()
            .result;
        assert_eq!(result.ips.len(), 2);
        assert_eq!(store.requests() - before, expected, "{container}");
        // The first ADD of a node also reads the ranges of all blocks again, and confirms an
        // affinity per family.
        expected = 3;
    }
    let call = IpamRequest {
        lock_file: Some(dir.path().join("ipam.lock")),
        ..call("b")
    };
    let before = store.requests();
    let inputs = ReleaseInputs::read(&store, &call.handles()).await.unwrap();
    del(&store, &clock, &call, inputs).await.unwrap();
    assert_eq!(store.requests() - before, 3);
    assert!(dir.path().join("ipam.lock").exists());
    let blocks = store.list::<Block>(&None).await.unwrap();
    assert_eq!(
        blocks
            .iter()
            .map(|block| block.value.allocated().count())
            .collect::<Vec<_>>(),
        [2, 2]
    );
}

/// Threads stand in for processes here. Without a lock, compare-and-swap alone must suffice.
#[test]
fn concurrent_adds_on_a_local_datastore_get_distinct_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let store = runtime().block_on(local(dir.path()));
    let path = store.path().to_owned();
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let path = path.clone();
            std::thread::spawn(move || {
                let store = Local::new(&LocalConfig {
                    path,
                    deadline: std::time::Duration::from_secs(30),
                });
                runtime().block_on(async {
                    let clock = SystemClock::start();
                    let mut got = Vec::new();
                    for n in 0..6 {
                        let call = call(&format!("{thread}-{n}"));
                        let inputs = AllocationInputs::read(&store, &call.inputs_query())
                            .await
                            .unwrap();
                        let result = add(&store, &clock, &call, inputs, None)
                            .await
                            .unwrap()
                            .result;
                        got.push(result.ips[0].address.addr());
                        if n % 2 == 1 {
                            let inputs =
                                ReleaseInputs::read(&store, &call.handles()).await.unwrap();
                            del(&store, &clock, &call, inputs).await.unwrap();
                            got.pop();
                        }
                    }
                    got
                })
            })
        })
        .collect();
    let mut all: Vec<_> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(all.len(), 24);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 24, "an address was given twice");
    let blocks = runtime().block_on(store.list::<Block>(&None)).unwrap();
    assert_eq!(blocks.len(), 1, "one node shares one block");
    assert_eq!(blocks[0].value.allocated().count(), 24);
    assert_eq!(
        runtime().block_on(store.list::<Handle>(&())).unwrap().len(),
        24
    );
}
