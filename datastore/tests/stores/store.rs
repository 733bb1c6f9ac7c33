//! The contract of a store: the same tests on a real etcd and on a SQLite file.

use crate::harness::{Fixture, block_on, marker, pool};
use datastore::{ClusterStore as _, Datastore};
use libcalico::api::{ClusterInformation, IpPool, ObjectKey, ObjectSelect, Tier};
use libcalico::store::{ReadBatch, Revision, Store, StoreError, Write, WriteOp};

macro_rules! on_both_stores {
    ($($body:ident),* $(,)?) => {
        mod etcd {
            $(#[test] fn $body() { super::run(super::Fixture::etcd(), super::$body); })*
        }
        mod local {
            $(#[test] fn $body() { super::run(super::Fixture::local(), super::$body); })*
        }
    };
}

on_both_stores! {
    object_is_created_read_updated_and_deleted,
    missing_existing_and_stale_objects_are_distinguished,
    read_batch_is_a_single_request_and_snapshot,
    prefix_read_is_exact_and_in_byte_order,
    key_list_in_a_batch_returns_the_keys_of_the_objects,
    writes_of_a_transaction_apply_completely_or_not_at_all,
    failed_write_of_a_transaction_is_reported_by_index,
    duplicate_keys_and_invalid_revisions_are_rejected,
    recreated_object_has_a_new_revision,
    large_values_and_long_batches_are_read,
    initialization_is_idempotent,
}

fn run<F: Future<Output = ()>>(fixture: Fixture, body: impl FnOnce(Datastore) -> F) {
    block_on(body(fixture.open()));
}

async fn object_is_created_read_updated_and_deleted(store: Datastore) {
    let (key, value) = pool("crud", "one");
    assert_eq!(
        store.get::<IpPool>(&key).await,
        Err(StoreError::NotFound {
            key: "IPPool(crud)".into()
        })
    );
    let created = store.create(&key, &value).await.unwrap();
    let read = store.get::<IpPool>(&key).await.unwrap();
    assert_eq!(
        (marker(&read.value), &read.revision, &read.key),
        ("one", &created, &key)
    );
    assert_eq!(read.value.metadata.resource_version, created.0);

    let updated = store
        .update(&key, &pool("crud", "two").1, &created)
        .await
        .unwrap();
    assert_ne!(updated, created);
    let read = store.get::<IpPool>(&key).await.unwrap();
    assert_eq!((marker(&read.value), &read.revision), ("two", &updated));

    let mut value = read.value;
    value.status = Some(serde_json::json!({"conditions": []}));
    let updated = store.update_status(&key, &value, &updated).await.unwrap();
    let read = store.get::<IpPool>(&key).await.unwrap();
    assert_eq!(
        (read.value.status, &read.revision),
        (value.status, &updated)
    );

    store.delete::<IpPool>(&key, Some(&updated)).await.unwrap();
    assert!(matches!(
        store.get::<IpPool>(&key).await,
        Err(StoreError::NotFound { .. })
    ));
}

async fn missing_existing_and_stale_objects_are_distinguished(store: Datastore) {
    let (key, value) = pool("conditions", "one");
    let id = || "IPPool(conditions)".to_owned();
    let none = Revision("1".into());
    assert_eq!(
        store.update(&key, &value, &none).await,
        Err(StoreError::NotFound { key: id() })
    );
    assert_eq!(
        store.delete::<IpPool>(&key, Some(&none)).await,
        Err(StoreError::NotFound { key: id() })
    );
    assert_eq!(
        store.delete::<IpPool>(&key, None).await,
        Err(StoreError::NotFound { key: id() })
    );
    let stale = store.create(&key, &value).await.unwrap();
    assert_eq!(
        store.create(&key, &value).await,
        Err(StoreError::AlreadyExists { key: id() })
    );
    store.update(&key, &value, &stale).await.unwrap();
    assert_eq!(
        store.update(&key, &value, &stale).await,
        Err(StoreError::Conflict { key: id() })
    );
    assert_eq!(
        store.delete::<IpPool>(&key, Some(&stale)).await,
        Err(StoreError::Conflict { key: id() })
    );
    store.delete::<IpPool>(&key, None).await.unwrap();
}

async fn read_batch_is_a_single_request_and_snapshot(store: Datastore) {
    let (key, value) = pool("batch-a", "a");
    let first = store.create(&key, &value).await.unwrap();
    let (other, value) = pool("batch-b", "b");
    store.create(&other, &value).await.unwrap();

    let mut batch = ReadBatch::new();
    let present = batch.get::<IpPool>(&key);
    let absent = batch.get::<IpPool>(&ObjectKey::global("batch-absent"));
    let select = ObjectSelect {
        name_prefix: "batch-".into(),
        ..ObjectSelect::default()
    };
    let listed = batch.list::<IpPool>(&select);
    let cluster = batch.get::<ClusterInformation>(&ObjectKey::global("batch-absent"));
    let before = store.requests();
    let answers = store.read(&batch).await.unwrap();
    assert_eq!(store.requests() - before, 1);

    assert_eq!(answers.get(&present).unwrap().unwrap().revision, first);
    assert_eq!(answers.get(&absent).unwrap(), None);
    assert_eq!(answers.get(&cluster).unwrap(), None);
    let names: Vec<String> = answers
        .list(&listed)
        .into_iter()
        .map(|entry| entry.key.name)
        .collect();
    assert_eq!(names, ["batch-a", "batch-b"]);

    let before = store.requests();
    assert!(store.read(&ReadBatch::new()).await.is_ok());
    assert_eq!(store.write(&[]).await, Ok(vec![]));
    assert_eq!(store.requests(), before, "an empty batch sends no request");
}

async fn prefix_read_is_exact_and_in_byte_order(store: Datastore) {
    let names = [
        "order-10",
        "order-9",
        "order-Z",
        "order-a.b",
        "order-a-b",
        "order.x",
        "order-\u{fc}",
    ];
    for name in names {
        let (key, value) = pool(name, name);
        store.create(&key, &value).await.unwrap();
    }
    let select = ObjectSelect {
        name_prefix: "order-".into(),
        ..ObjectSelect::default()
    };
    let listed: Vec<String> = store
        .list::<IpPool>(&select)
        .await
        .unwrap()
        .into_iter()
        .map(|entry| entry.key.name)
        .collect();
    // The order is that of bytes.
    assert_eq!(
        listed,
        [
            "order-10",
            "order-9",
            "order-Z",
            "order-a-b",
            "order-a.b",
            "order-\u{fc}"
        ]
    );
}

async fn key_list_in_a_batch_returns_the_keys_of_the_objects(store: Datastore) {
    for name in ["keys-b", "keys-a"] {
        let (key, value) = pool(name, "");
        store.create(&key, &value).await.unwrap();
    }
    let mut batch = ReadBatch::new();
    let ticket = batch.list_keys::<IpPool>(&ObjectSelect::default());
    let present = batch.get::<IpPool>(&ObjectKey::global("keys-a"));
    let before = store.requests();
    let answers = store.read(&batch).await.unwrap();
    assert_eq!(store.requests() - before, 1);
    let names: Vec<String> = answers.listed_keys(&ticket).map(|key| key.name).collect();
    assert_eq!(
        names
            .into_iter()
            .filter(|name| name.starts_with("keys-"))
            .collect::<Vec<_>>(),
        ["keys-a", "keys-b"]
    );
    assert!(
        answers.get(&present).unwrap().is_some(),
        "the rest of the batch has its values"
    );
}

async fn writes_of_a_transaction_apply_completely_or_not_at_all(store: Datastore) {
    let (a, value) = pool("atomic-a", "a");
    let (b, _) = pool("atomic-b", "b");
    let (c, _) = pool("atomic-c", "c");
    let revision = store.create(&a, &value).await.unwrap();
    let writes = [
        Write::update(&a, &pool("atomic-a", "changed").1, &revision).unwrap(),
        Write::create(&b, &value).unwrap(),
        Write::update(&c, &value, &revision).unwrap(),
    ];
    let error = store.write(&writes).await.unwrap_err();
    assert_eq!((error.index, error.applied), (2, 0));
    assert_eq!(
        error.cause,
        StoreError::NotFound {
            key: "IPPool(atomic-c)".into()
        }
    );
    assert_eq!(marker(&store.get::<IpPool>(&a).await.unwrap().value), "a");
    assert!(store.get::<IpPool>(&b).await.is_err());

    let before = store.requests();
    let revisions = store.write(&writes[..2]).await.unwrap();
    assert_eq!(store.requests() - before, 1);
    assert_eq!(
        store.get::<IpPool>(&a).await.unwrap().revision,
        revisions[0]
    );
    assert_eq!(
        store.get::<IpPool>(&b).await.unwrap().revision,
        revisions[1]
    );
    assert_eq!(revisions[0], revisions[1], "one transaction, one revision");

    let deletes = [
        Write::delete::<IpPool>(&a, Some(&revisions[0])),
        Write::delete::<IpPool>(&b, None),
    ];
    assert_eq!(store.write(&deletes).await.unwrap().len(), 2);
    assert!(store.get::<IpPool>(&a).await.is_err());
}

async fn failed_write_of_a_transaction_is_reported_by_index(store: Datastore) {
    let (a, value) = pool("index-a", "a");
    let (b, _) = pool("index-b", "b");
    store.create(&b, &value).await.unwrap();
    let stale = Revision("1".into());
    let writes = [
        Write::create(&a, &value).unwrap(),
        Write::create(&b, &value).unwrap(),
        Write::delete::<IpPool>(&b, Some(&stale)),
    ];
    let error = store.write(&writes[..2]).await.unwrap_err();
    assert_eq!((error.index, error.cause.is_race()), (1, true));
    let error = store
        .write(&[writes[0].clone(), writes[2].clone()])
        .await
        .unwrap_err();
    assert_eq!(
        (error.index, &error.cause),
        (
            1,
            &StoreError::Conflict {
                key: "IPPool(index-b)".into()
            }
        )
    );
}

async fn duplicate_keys_and_invalid_revisions_are_rejected(store: Datastore) {
    let (key, value) = pool("odd", "one");
    let twice = [
        Write::create(&key, &value).unwrap(),
        Write::delete::<IpPool>(&key, None),
    ];
    let error = store.write(&twice).await.unwrap_err();
    assert_eq!((error.index, error.applied), (1, 0));
    assert!(
        error.to_string().contains("two writes to IPPool(odd)"),
        "{error}"
    );
    let foreign = store
        .update(&key, &value, &Revision("abc".into()))
        .await
        .unwrap_err();
    assert!(
        foreign.to_string().contains("`abc` is not a revision"),
        "{foreign}"
    );
    assert!(store.get::<IpPool>(&key).await.is_err());
}

async fn recreated_object_has_a_new_revision(store: Datastore) {
    let (key, value) = pool("recreated", "one");
    let old = store.create(&key, &value).await.unwrap();
    store.delete::<IpPool>(&key, None).await.unwrap();
    let new = store.create(&key, &value).await.unwrap();
    assert_ne!(old, new);
    assert!(matches!(
        store.update(&key, &value, &old).await,
        Err(StoreError::Conflict { .. })
    ));
}

async fn large_values_and_long_batches_are_read(store: Datastore) {
    // The response exceeds tonic's 4 MiB, and the batch has more ranges than an etcd transaction
    // allows.
    let filling = "x".repeat(500_000);
    for n in 0..10 {
        let (key, value) = pool(&format!("large-{n}"), &filling);
        store.create(&key, &value).await.unwrap();
    }
    let select = ObjectSelect {
        name_prefix: "large-".into(),
        ..ObjectSelect::default()
    };
    assert_eq!(store.list::<IpPool>(&select).await.unwrap().len(), 10);

    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = (0..300)
        .map(|n| {
            batch.get::<IpPool>(&ObjectKey::global(format!(
                "large-{}",
                if n == 299 { 3 } else { 77 }
            )))
        })
        .collect();
    let answers = store.read(&batch).await.unwrap();
    assert!(answers.get(&tickets[298]).unwrap().is_none());
    assert_eq!(
        answers.get(&tickets[299]).unwrap().unwrap().key.name,
        "large-3"
    );
}

async fn initialization_is_idempotent(store: Datastore) {
    store.ensure_initialized().await.unwrap();
    let key = ObjectKey::global("default");
    let cluster = store.get::<ClusterInformation>(&key).await.unwrap();
    assert_eq!(cluster.value.spec.datastore_ready, Some(true));
    let guid = cluster.value.spec.cluster_guid.clone();
    assert!(
        guid.len() == 32 && guid.bytes().all(|b| b.is_ascii_hexdigit()),
        "{guid}"
    );
    let tiers = store.list::<Tier>(&ObjectSelect::default()).await.unwrap();
    let tiers: Vec<_> = tiers
        .iter()
        .map(|t| {
            (
                t.key.name.as_str(),
                t.value.spec.order.as_ref().map(ToString::to_string),
            )
        })
        .collect();
    // Go writes whole numbers without a fraction.
    let orders = [
        ("default", "1000000"),
        ("kube-admin", "1000"),
        ("kube-baseline", "10000000"),
    ];
    assert_eq!(
        tiers,
        orders.map(|(name, order)| (name, Some(order.to_owned())))
    );

    let before = store.requests();
    store.ensure_initialized().await.unwrap();
    assert_eq!(store.requests() - before, 1, "one read and no write");
    assert_eq!(
        store.get::<ClusterInformation>(&key).await.unwrap(),
        cluster
    );

    // Only missing fields of a locked ClusterInformation are added, but no tiers.
    let mut locked = cluster.value.clone();
    locked.spec.datastore_ready = Some(false);
    locked.spec.cluster_guid.clear();
    let revision = store
        .update(&key, &locked, &cluster.revision)
        .await
        .unwrap();
    store
        .delete::<Tier>(&ObjectKey::global("kube-admin"), None)
        .await
        .unwrap();
    store.ensure_initialized().await.unwrap();
    let completed = store.get::<ClusterInformation>(&key).await.unwrap();
    assert_ne!(completed.revision, revision);
    assert_eq!(completed.value.spec.datastore_ready, Some(false));
    assert_eq!(completed.value.spec.cluster_guid.len(), 32);
    assert!(
        store
            .get::<Tier>(&ObjectKey::global("kube-admin"))
            .await
            .is_err(),
        "the datastore is locked"
    );

    store
        .update(&key, &cluster.value, &completed.revision)
        .await
        .unwrap();
    store.ensure_initialized().await.unwrap();
    assert!(
        store
            .get::<Tier>(&ObjectKey::global("kube-admin"))
            .await
            .is_ok()
    );
}

#[test]
fn long_write_lists_are_rejected_by_etcd_and_large_writes_by_sqlite() {
    let write = |n: usize, value: &[u8]| Write {
        kind: "IPPool",
        path: format!("/calico/long/{n}"),
        key: format!("long({n})"),
        op: WriteOp::Create(value.to_vec()),
    };
    block_on(async {
        let etcd = Fixture::etcd().open();
        let many: Vec<Write> = (0..129).map(|n| write(n, b"{}")).collect();
        let error = etcd.write(&many).await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("129 writes in one transaction, but etcd allows only 128"),
            "{error}"
        );
        assert_eq!(etcd.requests(), 0);
        assert_eq!(etcd.write(&many[..128]).await.unwrap().len(), 128);
        let fixture = Fixture::local();
        let error = fixture
            .open()
            .write(&[write(0, b"\xff")])
            .await
            .unwrap_err();
        assert!(error.to_string().contains("stores text"), "{error}");
    });
}
