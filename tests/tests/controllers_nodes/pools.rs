//! Conditions and finalizers of pools (`projectcalico.org/v3`), with the cases of upstream's
//! pool_controller_test.

use std::collections::BTreeMap;

use integration_tests::plugin::Plugins;
use libcalico::api::{ClusterInformationSpec, IpPoolSpec};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinityState, Block, BlockAffinity, BlockRequest,
};
use libcalico::net::Cidr;
use libcalico::store::{Revision, Store};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::scene::{Scene, becomes, stays};

const FINALIZER: &str = "projectcalico.org/ippool-finalizer";

impl Scene {
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
        self.wait_on(async {
            self.store.create(&cidr, &block).await.unwrap();
            let claim = BlockAffinity {
                state: AffinityState::Confirmed,
                ..BlockAffinity::default()
            };
            self.store
                .create(&AffinityKey { owner, cidr }, &claim)
                .await
                .unwrap();
        });
        cidr
    }

    fn claims(&self) -> usize {
        self.wait_on(self.store.list::<BlockAffinity>(&Default::default()))
            .unwrap()
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
fn overlapping_pools_are_not_allocatable_until_the_first_is_deleted(scene: &Scene) {
    scene.new_pool("a", "10.0.0.0/24", false);
    let running = scene.start(|_| ());
    becomes(verdict("OK", true), || scene.verdict("a"));
    scene.new_pool("b", "10.0.0.0/28", false);
    scene.new_pool("c", "10.0.0.16/28", false);
    scene.new_pool("d", "10.1.0.0/24", true);
    becomes(verdict("CIDROverlap", false), || scene.verdict("b"));
    becomes(verdict("CIDROverlap", false), || scene.verdict("c"));
    becomes(verdict("PoolDisabled", false), || scene.verdict("d"));
    let revisions = || ["a", "b", "c", "d"].map(|name| scene.revision(name));
    stays(revisions(), revisions);

    drop(running);
    scene.delete::<IpPoolSpec>("a");
    assert!(
        scene.get::<IpPoolSpec>("a").is_some(),
        "its finalizer keeps it"
    );
    let _running = scene.start(|_| ());
    becomes(None, || scene.verdict("a"));
    becomes(verdict("OK", true), || scene.verdict("b"));
    becomes(verdict("OK", true), || scene.verdict("c"));
    let status: Value = scene.get::<IpPoolSpec>("b").unwrap().value.status.unwrap();
    assert_eq!(
        status["conditions"][0]["message"],
        "IPPool is available for IP allocation."
    );
}

#[on(kubernetes_v3)]
fn deleted_pool_stays_until_its_addresses_are_released(scene: &Scene) {
    scene.new_pool("a", "10.0.0.0/24", false);
    let _running = scene.start(|_| ());
    becomes(verdict("OK", true), || scene.verdict("a"));
    let cidr = scene.block_in_use();
    scene.delete::<IpPoolSpec>("a");
    becomes(verdict("Terminating", true), || scene.verdict("a"));
    becomes(0, || scene.claims());
    stays(verdict("Terminating", true), || scene.verdict("a"));
    scene
        .wait_on(scene.store.delete::<Block>(&cidr, None))
        .unwrap();
    becomes(None, || scene.verdict("a"));
}

/// The finalizer of a pool lets kube-controllers release the blocks of a deleted pool.
#[on(kubernetes_v3)]
fn split_pool_keeps_its_blocks_in_v3(scene: &Scene) {
    scene.new_pool("a", "10.0.0.0/24", false);
    let _running = scene.start(|_| ());
    becomes(verdict("OK", true), || scene.verdict("a"));
    let cidr = scene.block_in_use();
    scene.put::<ClusterInformationSpec>("default", json!({}), json!({"datastoreReady": false}));
    let call = Plugins::locate()
        .unwrap()
        .call("calico-ipam")
        .args(["split", "2", "--name", "a"]);
    let call = call
        .env("DATASTORE_TYPE", "kubernetes")
        .env("KUBECONFIG", &scene.admin_kubeconfig);
    let split = call
        .env("CALICO_API_GROUP", "projectcalico.org/v3")
        .run()
        .unwrap();
    assert_eq!(split.exit, Some(0), "{split:?}");
    assert_eq!(scene.verdict("a"), None);
    scene.put::<ClusterInformationSpec>("default", json!({}), json!({"datastoreReady": true}));
    for part in ["split-a-0", "split-a-1"] {
        becomes(verdict("OK", true), || scene.verdict(part));
    }
    let kept = || {
        (
            scene.claims(),
            scene.wait_on(scene.store.get::<Block>(&cidr)).is_ok(),
        )
    };
    stays((1, true), kept);
}
