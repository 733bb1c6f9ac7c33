//! Conditions and finalizers of pools (`projectcalico.org/v3`), with the cases of upstream's
//! pool_controller_test.

use std::collections::BTreeMap;

use integration_tests::plugin::Plugins;
use libcalico::api::{ClusterInformationSpec, IpPoolSpec};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinityState, Block, BlockAffinity, BlockRequest,
};
use libcalico::net::Cidr;
use libcalico::store::Revision;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::controllers_nodes::controlled_cluster::{ControlledCluster, becomes, on, stays};

const FINALIZER: &str = "projectcalico.org/ippool-finalizer";

impl ControlledCluster<'_> {
    fn new_pool(&self, name: &str, cidr: &str, disabled: bool) {
        self.put::<IpPoolSpec>(
            name,
            json!({}),
            json!({"cidr": cidr, "blockSize": 30, "disabled": disabled}),
        );
    }

    /// Returns the reason of the pool's first condition, and true if the pool has our finalizer.
    fn verdict(&self, name: &str) -> Option<(String, bool)> {
        let pool = self.get::<IpPoolSpec>(name)?.value;
        let status = pool.status.unwrap_or_default();
        let reason = status["conditions"][0]["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let finalizers = pool
            .metadata
            .unknown
            .get("finalizers")
            .cloned()
            .unwrap_or_default();
        Some((
            reason,
            finalizers
                .as_array()
                .is_some_and(|all| all.contains(&json!(FINALIZER))),
        ))
    }

    /// Creates the block 10.0.0.0/30 of node-1, in which one address is in use.
    fn block_in_use(&self) -> Cidr {
        let (owner, cidr): (AffinityOwner, Cidr) = (
            AffinityOwner::Host("node-1".into()),
            "10.0.0.0/30".parse().unwrap(),
        );
        let mut block = Block::new(cidr, &owner, OffsetDateTime::now_utc()).unwrap();
        let request = BlockRequest {
            handle: None,
            attributes: &BTreeMap::new(),
            requester: &owner,
            check_affinity: false,
        };
        block
            .assign_address("10.0.0.1".parse().unwrap(), &request)
            .unwrap();
        self.objects.create(&cidr, &block);
        let claim = BlockAffinity {
            state: AffinityState::Confirmed,
            ..BlockAffinity::default()
        };
        self.objects.create(&AffinityKey { owner, cidr }, &claim);
        cidr
    }

    fn claims(&self) -> usize {
        self.objects
            .list::<BlockAffinity>(&Default::default())
            .len()
    }

    fn revision(&self, name: &str) -> Option<Revision> {
        self.get::<IpPoolSpec>(name).map(|entry| entry.revision)
    }
}

fn verdict(reason: &str, finalizer: bool) -> Option<(String, bool)> {
    Some((reason.into(), finalizer))
}

#[on(kubernetes_v3)]
fn overlapping_pools_are_not_allocatable_until_the_first_is_deleted(
    cluster: &ControlledCluster<'_>,
) {
    cluster.new_pool("a", "10.0.0.0/24", false);
    let running = cluster.start(|_| ());
    becomes(verdict("OK", true), || cluster.verdict("a"));
    cluster.new_pool("b", "10.0.0.0/28", false);
    cluster.new_pool("c", "10.0.0.16/28", false);
    cluster.new_pool("d", "10.1.0.0/24", true);
    becomes(verdict("CIDROverlap", false), || cluster.verdict("b"));
    becomes(verdict("CIDROverlap", false), || cluster.verdict("c"));
    becomes(verdict("PoolDisabled", false), || cluster.verdict("d"));
    let revisions = || ["a", "b", "c", "d"].map(|name| cluster.revision(name));
    stays(revisions(), revisions);

    drop(running);
    cluster.delete::<IpPoolSpec>("a");
    assert!(
        cluster.get::<IpPoolSpec>("a").is_some(),
        "its finalizer keeps it"
    );
    let _running = cluster.start(|_| ());
    becomes(None, || cluster.verdict("a"));
    becomes(verdict("OK", true), || cluster.verdict("b"));
    becomes(verdict("OK", true), || cluster.verdict("c"));
    let status: Value = cluster
        .get::<IpPoolSpec>("b")
        .unwrap()
        .value
        .status
        .unwrap();
    assert_eq!(
        status["conditions"][0]["message"],
        "IPPool is available for IP allocation."
    );
}

#[on(kubernetes_v3)]
fn deleted_pool_stays_until_its_addresses_are_released(cluster: &ControlledCluster<'_>) {
    cluster.new_pool("a", "10.0.0.0/24", false);
    let _running = cluster.start(|_| ());
    becomes(verdict("OK", true), || cluster.verdict("a"));
    let cidr = cluster.block_in_use();
    cluster.delete::<IpPoolSpec>("a");
    becomes(verdict("Terminating", true), || cluster.verdict("a"));
    becomes(0, || cluster.claims());
    stays(verdict("Terminating", true), || cluster.verdict("a"));
    cluster.objects.delete::<Block>(&cidr);
    becomes(None, || cluster.verdict("a"));
}

/// The finalizer of a pool lets kube-controllers release the blocks of a deleted pool.
#[on(kubernetes_v3)]
fn split_pool_keeps_its_blocks_in_v3(cluster: &ControlledCluster<'_>) {
    cluster.new_pool("a", "10.0.0.0/24", false);
    let _running = cluster.start(|_| ());
    becomes(verdict("OK", true), || cluster.verdict("a"));
    let cidr = cluster.block_in_use();
    cluster.put::<ClusterInformationSpec>("default", json!({}), json!({"datastoreReady": false}));
    let call = Plugins::locate()
        .unwrap()
        .call("calico-ipam")
        .args(["split", "2", "--name", "a"]);
    let call = call
        .env("DATASTORE_TYPE", "kubernetes")
        .env("KUBECONFIG", cluster.servers.api.admin_kubeconfig());
    let split = call.env("CALICO_API_GROUP", "projectcalico.org/v3").run();
    assert_eq!(split.exit, Some(0), "{split:?}");
    assert_eq!(cluster.verdict("a"), None);
    cluster.put::<ClusterInformationSpec>("default", json!({}), json!({"datastoreReady": true}));
    for part in ["split-a-0", "split-a-1"] {
        becomes(verdict("OK", true), || cluster.verdict(part));
    }
    let kept = || {
        (
            cluster.claims(),
            cluster.objects.get::<Block>(&cidr).is_some(),
        )
    };
    stays((1, true), kept);
}
