//! Export and import between a SQLite file and a real etcd, both ways.

use crate::harness::etcd::EtcdServer;
use crate::harness::{Fixture, block_on, etcd_config, pool};
use datastore::export::{ImportSummary, OnExisting, TransferError, export, import};
use datastore::{ClusterStore as _, Datastore};
use libcalico::store::{Store, Write, WriteOp};

async fn exported(store: &Datastore) -> String {
    let mut text = Vec::new();
    let mut last = (0, 0);
    let count = export(store, &mut text, |done, total| last = (done, total))
        .await
        .unwrap();
    assert_eq!(last, (count, count));
    String::from_utf8(text).unwrap()
}

/// A pair that upstream or a person may have stored, and that this implementation would encode
/// differently.
fn odd(path: &str, value: &str) -> Write {
    Write {
        kind: "",
        path: path.into(),
        key: path.into(),
        op: WriteOp::Create(value.into()),
    }
}

#[test]
fn export_from_a_file_to_etcd_and_back_preserves_every_byte() {
    let (local, server) = (Fixture::local(), EtcdServer::start());
    block_on(async {
        let file = local.open();
        for n in 0..250 {
            let (key, value) = pool(&format!("pool-{n}"), &"y".repeat(n * 10));
            file.create(&key, &value).await.unwrap();
        }
        let odd = [
            odd(
                "/calico/ipam/v2/handle/spaced",
                "{\"block\":{ \"10.0.0.0/26\" : 1 },\"deleted\":false} ",
            ),
            odd("/calico/ipam/v2/host/node/ipv4/block/10.0.0.0-26", ""),
            odd("/calico/v1/Ready", "true\n"),
            odd("/calico/number", "12345678901234567890123"),
        ];
        file.write(&odd).await.unwrap();
        let text = exported(&file).await;

        let etcd = Datastore::open(&etcd_config(&[&server.url])).unwrap();
        let mut progress = Vec::new();
        let imported = import(&etcd, text.as_bytes(), OnExisting::Keep, |done, total| {
            progress.push((done, total))
        })
        .await
        .unwrap();
        assert_eq!(
            imported,
            ImportSummary {
                created: 258,
                ..ImportSummary::default()
            }
        );
        assert_eq!(
            (progress[0], *progress.last().unwrap()),
            ((0, 258), (258, 258))
        );
        assert_eq!(exported(&etcd).await, text);

        let other = Fixture::local();
        let back = other.open();
        let imported = import(
            &back,
            exported(&etcd).await.as_bytes(),
            OnExisting::Keep,
            |_, _| {},
        )
        .await
        .unwrap();
        assert_eq!((imported.created, imported.replaced), (254, 4));
        assert_eq!(exported(&back).await, text);

        let before = back.requests();
        let again = import(&back, text.as_bytes(), OnExisting::Keep, |_, _| {})
            .await
            .unwrap();
        assert_eq!(
            again,
            ImportSummary {
                unchanged: 258,
                ..ImportSummary::default()
            }
        );
        assert_eq!(back.requests() - before, 1);
    });
}

#[test]
fn import_overwrites_other_values_only_if_requested() {
    let (one, two) = (Fixture::local(), Fixture::local());
    block_on(async {
        let (source, target) = (one.open(), two.open());
        let (key, value) = pool("p", "new");
        source.create(&key, &value).await.unwrap();
        target.create(&key, &pool("p", "old").1).await.unwrap();
        let (text, before) = (exported(&source).await, exported(&target).await);

        let error = import(&target, text.as_bytes(), OnExisting::Keep, |_, _| {})
            .await
            .unwrap_err();
        // Each datastore has its own identifiers of the pool, the ClusterInformation and the three
        // tiers.
        assert!(
            matches!(
                &error,
                TransferError::ConflictingPairs { count: 5, named } if named.contains("/ippools/p"),
            ),
            "{error}"
        );
        assert_eq!(exported(&target).await, before);

        import(&target, text.as_bytes(), OnExisting::Overwrite, |_, _| {})
            .await
            .unwrap();
        assert_eq!(exported(&target).await, text);
    });
}
