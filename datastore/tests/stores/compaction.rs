//! Several processes compact one etcd: one of them per period, and recent revisions stay readable.

use crate::harness::etcd::EtcdServer;
use crate::harness::{block_on, etcd_config};
use datastore::etcd::{Compaction, Etcd, Round};
use datastore::{Datastore, DatastoreConfig};
use etcd_client::{Client, GetOptions};

fn open(config: &DatastoreConfig) -> Box<Etcd> {
    match Datastore::open(config).unwrap() {
        Datastore::Etcd(etcd) => etcd,
        other => panic!("{other:?}"),
    }
}

async fn write(client: &mut Client, value: &str) -> i64 {
    client
        .put("k", value, None)
        .await
        .unwrap()
        .header()
        .unwrap()
        .revision()
}

async fn is_readable(client: &mut Client, revision: i64) -> bool {
    match client
        .get("k", Some(GetOptions::new().with_revision(revision)))
        .await
    {
        Ok(_) => true,
        Err(error) if error.to_string().contains("has been compacted") => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn single_process_compacts_to_the_revision_of_the_previous_round() {
    let server = EtcdServer::start();
    block_on(async {
        let config = etcd_config(&[&server.url]);
        let (first, second) = (open(&config), open(&config));
        let mut client = Client::connect([&server.url], None).await.unwrap();
        let (mut one, mut other) = (Compaction::default(), Compaction::default());

        let old = write(&mut client, "a").await;
        assert_eq!(one.round(&first).await, Ok(Round::First));
        assert_eq!(other.round(&second).await, Ok(Round::ByAnotherProcess));
        let recent = write(&mut client, "b").await;
        assert!(is_readable(&mut client, old).await);

        let Round::Compacted(revision) = one.round(&first).await.unwrap() else {
            panic!()
        };
        assert!(old < revision && revision < recent);
        assert!(!is_readable(&mut client, old).await);
        assert!(is_readable(&mut client, recent).await);
        assert_eq!(other.round(&second).await, Ok(Round::ByAnotherProcess));

        write(&mut client, "c").await;
        let Round::Compacted(revision) = other.round(&second).await.unwrap() else {
            panic!()
        };
        assert!(revision > recent);
        assert!(!is_readable(&mut client, recent).await);
        assert_eq!(one.round(&first).await, Ok(Round::ByAnotherProcess));

        // A process without state, for example after a restart, compacts nothing in its first
        // round.
        other = Compaction::default();
        assert_eq!(other.round(&second).await, Ok(Round::ByAnotherProcess));
        let mut stale = Compaction::default();
        assert_eq!(stale.round(&first).await, Ok(Round::ByAnotherProcess));
        assert!(matches!(one.round(&first).await, Ok(Round::Compacted(_))));
    });
}

#[test]
fn store_compacted_further_by_another_process_is_no_failure() {
    let server = EtcdServer::start();
    block_on(async {
        let etcd = open(&etcd_config(&[&server.url]));
        let mut client = Client::connect([&server.url], None).await.unwrap();
        let mut compaction = Compaction::default();
        assert_eq!(compaction.round(&etcd).await, Ok(Round::First));
        let latest = write(&mut client, "a").await;
        client.compact(latest, None).await.unwrap();
        assert!(matches!(
            compaction.round(&etcd).await, Ok(Round::Compacted(revision)) if revision < latest,
        ));
    });
}
