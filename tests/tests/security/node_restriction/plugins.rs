//! Runs the shipped programs with tokens that are bound to Nodes.

use std::path::{Path, PathBuf};

use integration_tests::Place;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::journal::journal_entries;
use integration_tests::kubernetes::Identity;
use integration_tests::kubernetes::node_restriction::PLUGINS;
use integration_tests::manifests::NAMESPACE as SYSTEM;
use integration_tests::namespaces::NETNS_DIR;
use integration_tests::plugin::{Outcome, Plugins};
use serde_json::{Value, json};

use crate::node_restriction::restricted_cluster::{NAMESPACE, RestrictedCluster, on};

/// The plugins of a node. All nodes of a test share its private host.
struct NodePlugins<'s> {
    cluster: &'s RestrictedCluster<'s>,
    name: &'static str,
    plugins: Plugins,
    token: Identity,
    kubeconfig: PathBuf,
}

impl<'s> NodePlugins<'s> {
    fn new(cluster: &'s RestrictedCluster<'s>, name: &'static str) -> NodePlugins<'s> {
        NodePlugins::of(cluster, name, cluster.token_of(name))
    }

    fn of(
        cluster: &'s RestrictedCluster<'s>,
        name: &'static str,
        token: Identity,
    ) -> NodePlugins<'s> {
        let kubeconfig = cluster.api.kubeconfig(name, &token).unwrap();
        NodePlugins {
            cluster,
            name,
            plugins: Plugins::locate().unwrap(),
            token,
            kubeconfig,
        }
    }

    /// Replaces the token, as the agent does.
    fn renew(&mut self) {
        *self = NodePlugins::new(self.cluster, self.name);
    }

    #[track_caller]
    fn add(&self, pod: &str) {
        self.cluster.host.ensure_pod(pod).unwrap();
        self.cluster.pod(self.name, pod);
        self.succeed("ADD", pod);
    }

    #[track_caller]
    fn succeed(&self, verb: &str, pod: &str) {
        let outcome = self.verb(verb, pod);
        assert_eq!(
            outcome.exit,
            Some(0),
            "{verb} {pod}: {} {}",
            outcome.stdout,
            outcome.stderr
        );
    }

    fn verb(&self, verb: &str, pod: &str) -> Outcome {
        let conf = json!({
            "cniVersion": "1.1.0", "name": "k8s-pod-network", "type": "calico",
            "log_level": "error",
            "datastore_type": "kubernetes", "calico_api_group": self.cluster.group.api_version(),
            "kubernetes": { "kubeconfig": self.kubeconfig }, "nodename": self.name,
            "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
        });
        let args = format!("K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={pod}");
        let call = self
            .plugins
            .verb("calico", verb, pod, &Path::new(NETNS_DIR).join(pod), &conf);
        call.env("CNI_ARGS", args).run()
    }

    /// Returns for each block of the node the number of addresses in use.
    fn blocks(&self) -> Vec<usize> {
        let list = self
            .cluster
            .api
            .admin()
            .get(&self.cluster.path("ipamblocks"))
            .unwrap()
            .success();
        let owner = format!("host:{}", self.name);
        let own = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|block| block["spec"]["affinity"] == owner.as_str());
        let taken = |block: &Value| {
            block["spec"]["allocations"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|index| !index.is_null())
                .count()
        };
        own.map(taken).collect()
    }
}

/// Creates the objects that an ADD needs. The pool has room for two blocks of four addresses.
fn prepare(cluster: &RestrictedCluster<'_>, selector: &str) {
    for (kind, name, spec) in [
        (
            "ClusterInformation",
            "default",
            json!({ "datastoreReady": true }),
        ),
        (
            "IPPool",
            "pool4",
            json!({ "cidr": "10.65.0.0/29", "blockSize": 30, "nodeSelector": selector }),
        ),
    ] {
        cluster
            .api
            .admin()
            .apply_object(&cluster.calico(kind, name, spec))
            .unwrap();
    }
}

/// Makes each block old enough for another node to take it, if it is empty.
fn age_blocks(cluster: &RestrictedCluster<'_>) {
    let list = cluster
        .api
        .admin()
        .get(&cluster.path("ipamblocks"))
        .unwrap()
        .success();
    for block in list["items"].as_array().unwrap() {
        let path = cluster.object_path("ipamblocks", block["metadata"]["name"].as_str().unwrap());
        let long_ago = json!({ "spec": { "affinityClaimTime": "2020-01-02T03:04:05Z" } });
        cluster
            .api
            .admin()
            .patch(&path, &long_ago)
            .unwrap()
            .success();
    }
}

fn pods_start_and_end(cluster: &RestrictedCluster<'_>) {
    prepare(cluster, "all()");
    let (near, far) = (
        NodePlugins::new(cluster, "node1"),
        NodePlugins::new(cluster, "node2"),
    );
    let pods = ["near-1", "near-2", "near-3", "near-4", "near-5"];
    let audit = cluster.api.audit().unwrap();
    let user = format!("system:serviceaccount:{SYSTEM}:{PLUGINS}");
    let refused = || -> Vec<String> {
        let requests = audit.of(&user).unwrap();
        requests
            .iter()
            .filter(|request| request.code == Some(403))
            .map(ToString::to_string)
            .collect()
    };

    far.add("far-1");
    pods.iter().for_each(|pod| near.add(pod));
    assert_eq!(
        (near.blocks(), far.blocks()),
        (vec![4], vec![2]),
        "the fifth address is borrowed"
    );
    pods.iter().for_each(|pod| near.succeed("DEL", pod));
    assert_eq!((near.blocks(), far.blocks()), (vec![0], vec![1]));
    assert_eq!(refused(), Vec::<String>::new());

    // With this component a node cannot take an empty block from another node.
    far.succeed("DEL", "far-1");
    age_blocks(cluster);
    pods.iter().for_each(|pod| near.add(pod));
    assert_eq!((near.blocks(), far.blocks()), (vec![4], vec![1]));
    let refused = refused();
    let is_reclaim = |line: &String| line.starts_with("update blockaffinities node2-");
    assert!(
        !refused.is_empty() && refused.iter().all(is_reclaim),
        "{refused:?}"
    );

    // A block whose pool does not select the node is deleted with its last address.
    prepare(cluster, "!all()");
    pods.iter().for_each(|pod| near.succeed("DEL", pod));
    assert_eq!(near.blocks(), Vec::<usize>::new());
}

#[test]
fn plugins_add_borrow_and_release_with_bound_tokens_in_crd_v1() {
    on(Place::KubernetesV1, pods_start_and_end);
}

#[test]
fn plugins_add_borrow_and_release_with_bound_tokens_in_v3() {
    on(Place::KubernetesV3, pods_start_and_end);
}

/// Upstream's plugins have a token of `calico-cni-plugin` that is bound to no Node. Shows SEC-90.
#[on(kubernetes_v1)]
fn plugins_of_an_unbound_node_work_beside_bound_ones(cluster: &RestrictedCluster<'_>) {
    const UNBOUND: &str = "calico-cni-plugin";
    prepare(cluster, "all()");
    let bound = NodePlugins::new(cluster, "node1");
    let unbound = NodePlugins::of(
        cluster,
        "node2",
        Identity::Token(cluster.api.token(SYSTEM, UNBOUND).unwrap()),
    );
    let (own, others) = (
        ["b1", "b2", "b3", "b4", "b5"],
        ["u1", "u2", "u3", "u4", "u5"],
    );
    let blocks = || (bound.blocks(), unbound.blocks());
    let audit = cluster.api.audit().unwrap();

    // Each node borrows the fifth address from the other, and releases it.
    bound.add(own[0]);
    others.iter().for_each(|pod| unbound.add(pod));
    assert_eq!(blocks(), (vec![2], vec![4]));
    others[1..]
        .iter()
        .for_each(|pod| unbound.succeed("DEL", pod));
    assert_eq!(blocks(), (vec![1], vec![1]));
    own[1..].iter().for_each(|pod| bound.add(pod));
    assert_eq!(blocks(), (vec![4], vec![2]));
    own.iter().for_each(|pod| bound.succeed("DEL", pod));
    unbound.succeed("DEL", others[0]);
    assert_eq!(blocks(), (vec![0], vec![0]));

    // The bound node borrows after the unbound one has taken its empty block.
    age_blocks(cluster);
    others.iter().for_each(|pod| unbound.add(pod));
    assert_eq!(
        (bound.blocks().len(), unbound.blocks().iter().sum::<usize>()),
        (0, 5)
    );
    bound.add(own[0]);
    assert_eq!(
        (bound.blocks().len(), unbound.blocks().iter().sum::<usize>()),
        (0, 6)
    );
    bound.succeed("DEL", own[0]);
    others.iter().for_each(|pod| unbound.succeed("DEL", pod));
    assert_eq!(
        (
            unbound.blocks().iter().sum::<usize>(),
            journal_entries().len()
        ),
        (0, 0)
    );
    for account in [PLUGINS, UNBOUND] {
        audit.assert_nothing_refused(&format!("system:serviceaccount:{SYSTEM}:{account}"));
    }
}

/// The API server rejects the token once the Node is deleted. Shows SEC-91.
#[on(kubernetes_v1)]
fn del_after_its_node_was_deleted_is_deferred_until_the_node_has_a_new_token(
    cluster: &RestrictedCluster<'_>,
) {
    prepare(cluster, "all()");
    let mut node = NodePlugins::new(cluster, "node1");
    node.add("late");
    let plugins = cluster.api.client(&node.token).unwrap();
    cluster
        .api
        .admin()
        .delete("/api/v1/nodes/node1")
        .unwrap()
        .success();
    // The server remembers a valid token for some seconds.
    await_that(PATIENCE, || Ok(plugins.get("/version")?.code == 401)).unwrap();
    node.succeed("DEL", "late");
    assert_eq!((journal_entries().len(), node.blocks()), (1, vec![1]));

    cluster.api.admin().node("node1").unwrap();
    node.renew();
    node.add("next");
    node.succeed("DEL", "next");
    await_that(PATIENCE, || {
        node.verb("STATUS", "");
        Ok(journal_entries().is_empty())
    })
    .unwrap();
    assert_eq!(node.blocks(), [0]);
}

/// The DEL deletes the block without writing the release first.
#[on(kubernetes_v1)]
fn del_of_the_last_address_of_a_block_without_an_owner_deletes_the_block(
    cluster: &RestrictedCluster<'_>,
) {
    prepare(cluster, "all()");
    let node = NodePlugins::new(cluster, "node1");
    node.add("last");
    let blocks = || {
        cluster
            .api
            .admin()
            .get(&cluster.path("ipamblocks"))
            .unwrap()
            .success()["items"]
            .take()
    };
    let stored = blocks();
    let path = cluster.object_path(
        "ipamblocks",
        stored[0]["metadata"]["name"].as_str().unwrap(),
    );
    let without_owner = json!({ "spec": { "affinity": null, "affinityClaimTime": null } });
    cluster
        .api
        .admin()
        .patch(&path, &without_owner)
        .unwrap()
        .success();
    node.succeed("DEL", "last");
    assert_eq!((blocks(), journal_entries().len()), (json!([]), 0));
}
