//! The first objects of a datastore, on stores without other pools.

use crate::harness::{Fixture, block_on};
use datastore::Datastore;
use datastore::bootstrap::ensure_first_pool;
use libcalico::api::{ClusterInformation, IpPool, IpPoolSpec, ObjectKey, ObjectSelect};
use libcalico::store::Store;

#[test]
fn bootstrap_on_etcd_adds_only_missing_objects() {
    block_on(adds_only_missing_objects(Fixture::own_etcd().open()));
}

#[test]
fn bootstrap_on_local_adds_only_missing_objects() {
    block_on(adds_only_missing_objects(Fixture::local().open()));
}

/// The role of the installer allows no updates, so an existing object stays as it is.
async fn adds_only_missing_objects(store: Datastore) {
    let key = ObjectKey::global("default");
    // A new file contains the ClusterInformation.
    let _ = store.delete::<ClusterInformation>(&key, None).await;
    assert!(store.ensure_cluster_information().await.unwrap());
    let cluster = store.get::<ClusterInformation>(&key).await.unwrap();
    assert_eq!(
        (
            cluster.value.spec.datastore_ready,
            cluster.value.spec.cluster_type.as_str()
        ),
        (Some(true), "k8s")
    );
    let mut unready = cluster.value.clone();
    unready.spec.datastore_ready = None;
    unready.spec.cluster_type = "typha".into();
    let revision = store
        .update(&key, &unready, &cluster.revision)
        .await
        .unwrap();
    assert!(!store.ensure_cluster_information().await.unwrap());
    assert_eq!(
        store
            .get::<ClusterInformation>(&key)
            .await
            .unwrap()
            .revision,
        revision
    );

    let pool = |name: &str, cidr: &str| {
        IpPool::new(
            name,
            IpPoolSpec {
                cidr: cidr.into(),
                ..IpPoolSpec::default()
            },
        )
    };
    assert!(
        ensure_first_pool(&store, pool("first", "10.0.0.0/16"))
            .await
            .unwrap()
    );
    assert!(
        !ensure_first_pool(&store, pool("second", "10.1.0.0/16"))
            .await
            .unwrap()
    );
    assert!(
        ensure_first_pool(&store, pool("sixth", "fd00::/64"))
            .await
            .unwrap()
    );
    let pools = store
        .list::<IpPool>(&ObjectSelect::default())
        .await
        .unwrap();
    let pools: Vec<_> = pools
        .iter()
        .map(|pool| (pool.key.name.as_str(), pool.value.spec.block_size))
        .collect();
    assert_eq!(pools, [("first", Some(26)), ("sixth", Some(122))]);
    let error = ensure_first_pool(&store, pool("wrong", "10.0.0.1/16"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("IPPool wrong: ") && error.contains("not strictly masked"),
        "{error}"
    );
}
