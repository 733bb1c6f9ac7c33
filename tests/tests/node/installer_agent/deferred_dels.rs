//! On an idle node, the agent replays deferred DELs.

use std::fs;
use std::path::{Path, PathBuf};

use integration_tests::clock::KNOWN;
use integration_tests::content::Content;
use integration_tests::controllers::garbage_collector::{GRACE, GarbageCollector, settings};
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::node_restriction::PLUGINS as BOUND;
use integration_tests::kubernetes::{ApiServer, ENDPOINT, Objects, on_kubernetes};
use integration_tests::migration::{handles, migrate};
use integration_tests::node_pod::{NAMESPACE, NodePod, may_make_tokens};
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::installer_agent::pod::{ClockedAgent, PLUGINS, REASON, in_pod, install, user};

const GROUP: ApiGroup = ApiGroup::CrdV1;

const CONTAINER: &str = "0123456789abcdef";

/// The path of the Node.
const NODE: &str = "/api/v1/nodes/node1";

const REPLAYED: &str = "replayed 1 deferred DELs; 0 remain";

/// Creates the definitions and objects that an ADD needs.
fn fill(api: &ApiServer, pod: &NodePod) -> Store {
    api.define(GROUP.api_version()).unwrap();
    let store = Store::Kubernetes(Objects::new(api.admin(), GROUP, pod.kubeconfig()));
    store.load(&Content::dual_stack().objects(GROUP)).unwrap();
    api.admin().node("node1").unwrap();
    store
}

/// Grants the plugins every right.
fn grant_all(api: &ApiServer) {
    api.bind(
        &api.service_account(NAMESPACE, PLUGINS).unwrap(),
        "cluster-admin",
    )
    .unwrap();
}

/// Assigns an address to a container with the plugins' token, and writes a journal entry about its
/// DEL. Returns the path of the entry.
fn defer_a_del(pod: &NodePod) -> PathBuf {
    let conf = json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico",
        "datastore_type": "kubernetes",
        "nodename": "node1", "ipam": { "type": "calico-ipam" },
        "kubernetes": { "kubeconfig": pod.kubeconfig() },
    });
    let add =
        Plugins::locate()
            .unwrap()
            .verb("calico-ipam", "ADD", CONTAINER, Path::new("/none"), &conf);
    add.env(
        "CNI_ARGS",
        format!("K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME=gone"),
    )
    .run()
    .success();
    let handle = format!("k8s-pod-network.{CONTAINER}");
    let pending_del = json!({
        "network": "k8s-pod-network", "container_id": CONTAINER, "ifname": "eth0", "node": "node1",
        "datastore": "kubernetes /etc/cni/net.d/calico-kubeconfig",
        "endpoint": [NAMESPACE, "node1-k8s-gone-eth0"], "handles": [handle],
    });
    pod.container
        .file(
            "var/lib/calico/cni-journal/deferred.json",
            pending_del.to_string(),
        )
        .unwrap()
}

/// Returns true if the container still has an address.
fn has_address(store: &Store) -> bool {
    store
        .dump()
        .unwrap()
        .keys()
        .any(|key| key.contains(CONTAINER))
}

/// The agent's own account may not release addresses.
#[test]
fn agent_replays_deferred_dels_once_the_datastore_is_ready() {
    in_pod(|_, kubernetes, mut pod| {
        let store = fill(&kubernetes.api, &pod);
        grant_all(&kubernetes.api);
        install(&mut pod);
        let entry = defer_a_del(&pod);

        let set_ready = |ready: bool| {
            let mut cluster = store.dump().unwrap()["clusterinformations/default"].clone();
            cluster["spec"]["datastoreReady"] = json!(ready);
            store.put("clusterinformations/default", &cluster).unwrap();
        };
        set_ready(false);
        let before = store.dump().unwrap();
        let mut agent = pod.agent().unwrap();
        agent.await_log("the datastore is not ready").unwrap();
        agent.terminate().unwrap();
        assert_eq!(store.dump().unwrap(), before);
        assert!(entry.exists());

        set_ready(true);
        let mut agent = pod.agent().unwrap();
        agent.await_log(REPLAYED).unwrap();
        agent.terminate().unwrap();
        assert!(!entry.exists());
        assert!(!has_address(&store));
        let learned = fs::read_dir(entry.parent().unwrap()).unwrap().flatten();
        let learned: Vec<_> = learned
            .map(|file| file.path())
            .filter(|path| path.extension().is_some())
            .collect();
        assert!(
            learned.len() == 1 && learned[0].extension().unwrap() == "datastore",
            "{learned:?}"
        );
    });
}

/// v1 stays locked after a migration. The agent replays where the addresses are. Shows SEC-72.
#[test]
fn deferred_dels_are_replayed_in_v3() {
    in_pod(|_, kubernetes, mut pod| {
        let api = &kubernetes.api;
        let store = fill(api, &pod);
        grant_all(api);
        pod.set("CALICO_API_GROUP", "");
        install(&mut pod);
        let entry = defer_a_del(&pod);
        migrate(api);
        let before = store.dump().unwrap();
        assert_eq!(handles(api, ApiGroup::V3), 1);

        let mut agent = pod.agent().unwrap();
        agent.await_log(REPLAYED).unwrap();
        agent.terminate().unwrap();
        assert!(!entry.exists());
        assert_eq!(handles(api, ApiGroup::V3), 0);
        assert_eq!(store.dump().unwrap(), before, "v1 is unchanged");
    });
}

/// The API server rejects a token that is bound to a deleted Node.
#[test]
fn agent_with_bound_tokens_replays_deferred_dels_after_its_node_is_recreated() {
    if !KNOWN {
        return skipped(REASON);
    }
    on_kubernetes(|host, kubernetes| {
        let api = &kubernetes.api;
        let mut pod = NodePod::new(host, api, ENDPOINT).unwrap();
        let store = fill(api, &pod);
        let (_, tokens) = api.restrict_nodes(&["node1"]).unwrap();
        api.await_node_restriction(GROUP, &tokens["node1"]).unwrap();
        may_make_tokens(api, &pod.account, BOUND).unwrap();
        pod.set("CALICO_CNI_SERVICE_ACCOUNT", BOUND);
        pod.set("CNI_TOKEN_BOUND_TO_NODE", "true");
        install(&mut pod);
        let entry = defer_a_del(&pod);
        api.admin().delete(NODE).unwrap().success();
        // The server remembers a valid token for some seconds.
        await_that(PATIENCE, || Ok(user(&kubernetes, &pod).is_none())).unwrap();
        let mut agent = ClockedAgent::start(&pod);
        agent.await_log("Node node1 does not exist").unwrap();
        agent
            .await_log("this pass replayed no deferred DELs")
            .unwrap();
        assert!(entry.exists() && has_address(&store));

        api.admin().node("node1").unwrap();
        await_that(PATIENCE, || Ok(user(&kubernetes, &pod).is_some())).unwrap();
        agent.check_files();
        agent.await_log(REPLAYED).unwrap();
        assert!(!entry.exists() && !has_address(&store));
    });
}

/// kube-controllers release the addresses of a Node that stays deleted. They do not see the
/// journal.
#[test]
fn entry_whose_address_kube_controllers_released_ends_when_the_node_is_back() {
    in_pod(|_, kubernetes, mut pod| {
        let api = &kubernetes.api;
        let store = fill(api, &pod);
        grant_all(api);
        install(&mut pod);
        let entry = defer_a_del(&pod);
        api.admin().delete(NODE).unwrap().success();
        let collecting =
            GarbageCollector::start(Some(GROUP), api.admin_kubeconfig(), settings(Some(GROUP)));
        collecting.advance_until(GRACE, "the release of the address", || !has_address(&store));
        drop(collecting);
        assert!(entry.exists());

        api.admin().node("node1").unwrap();
        let before = store.dump().unwrap();
        let agent = pod.agent().unwrap();
        agent.await_log(REPLAYED).unwrap();
        assert!(!entry.exists());
        assert_eq!(store.dump().unwrap(), before);
    });
}
