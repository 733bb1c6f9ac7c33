//! The release of the blocks of deleted nodes.

use libcalico::ipam::{AffinityKey, AffinityState, BlockAffinity};
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};
use serde_json::json;

use super::*;
use crate::controllers::testing::refusing_kubernetes;

const CIDR: &str = "10.0.0.0/26";

fn empty_block(cidr: &str) -> Block {
    let owner = AffinityOwner::Host("gone".into());
    Block::new(cidr.parse().unwrap(), &owner, OffsetDateTime::now_utc()).unwrap()
}

/// Releases the blocks of a deleted node. The datastore has `stored` as its only block, which the
/// index has as empty. Returns true if the block is still stored, and the failures that the metrics
/// show.
async fn release(stored: &Block) -> (bool, String) {
    let (_dir, calico) = embedded();
    let cidr: Cidr = CIDR.parse().unwrap();
    calico.create::<Block>(&cidr, stored).await.unwrap();
    let affinity = AffinityKey {
        owner: AffinityOwner::Host("gone".into()),
        cidr,
    };
    let confirmed = BlockAffinity {
        state: AffinityState::Confirmed,
        ..BlockAffinity::default()
    };
    calico.create(&affinity, &confirmed).await.unwrap();
    let mut index = Index::new(libcalico::ipam::gc::GcSettings::default());
    index.put_calico_node("gone", Some("gone"));
    index.put_block(&empty_block(CIDR)).unwrap();
    index.examine(Duration::ZERO, Scope::Everything);
    let api_server =
        refusing_kubernetes(|_| Ok(json!({ "kind": "NodeList", "metadata": {}, "items": [] })));
    let gc_pass = new_pass(api_server, calico.clone(), index, Leadership::always());
    gc_pass.release_deleted_nodes().await;
    assert!(
        gc_pass
            .inputs
            .cache
            .index()
            .nodes_to_release(gc_pass.now())
            .is_empty(),
        "released or postponed"
    );
    let metrics = shown_metrics(&gc_pass);
    let failures = metrics
        .lines()
        .filter(|line| line.starts_with("kube_controllers_gc_failures_total{"));
    let is_stored = !matches!(
        calico.get::<Block>(&cidr).await,
        Err(StoreError::NotFound { .. })
    );
    (is_stored, failures.collect())
}

#[tokio::test]
async fn unreadable_block_of_a_deleted_node_stays_and_counts_as_a_failure() {
    assert_eq!(release(&empty_block(CIDR)).await, (false, String::new()));
    let mut in_use = empty_block(CIDR);
    let (id, owner) = (HandleId::new("net.new"), AffinityOwner::Host("gone".into()));
    let request = BlockRequest {
        handle: Some(&id),
        attributes: &BTreeMap::new(),
        requester: &owner,
        check_affinity: true,
    };
    in_use
        .assign_address("10.0.0.1".parse().unwrap(), &request)
        .unwrap();
    assert_eq!(
        release(&in_use).await,
        (true, String::new()),
        "a block in use is no failure"
    );
    // A block under the name of another one cannot be read.
    let failure = r#"kube_controllers_gc_failures_total{phase="nodes"} 1"#;
    assert_eq!(
        release(&empty_block("10.0.0.64/26")).await,
        (true, failure.to_owned())
    );
}
