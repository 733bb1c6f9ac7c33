//! Empty blocks whose deletion was interrupted.

use libcalico::store::{Store, StoreError};

use super::*;
use crate::controllers::testing::posting_kubernetes;

#[tokio::test]
async fn collection_deletes_an_empty_block_whose_deletion_was_interrupted() {
    let (_dir, calico) = embedded();
    let owner = AffinityOwner::Host("node-a".into());
    let mut block = Block::new(
        "10.0.0.0/26".parse().unwrap(),
        &owner,
        OffsetDateTime::now_utc(),
    )
    .unwrap();
    block.deleted = true;
    calico.create(&block.cidr, &block).await.unwrap();
    let mut index = Index::new(libcalico::ipam::gc::GcSettings::default());
    index.put_block(&block).unwrap();
    let mut gc_pass = new_pass(
        posting_kubernetes().0,
        calico.clone(),
        index,
        Leadership::always(),
    );

    gc_pass.delete_marked_blocks().await;
    calico.get::<Block>(&block.cidr).await.unwrap();

    gc_pass.inputs.clock.advance(Duration::from_secs(60));
    gc_pass.delete_marked_blocks().await;
    assert!(matches!(
        calico.get::<Block>(&block.cidr).await,
        Err(StoreError::NotFound { .. })
    ));
    assert_eq!(gc_pass.inputs.cache.index().marked_blocks().count(), 0);
}
