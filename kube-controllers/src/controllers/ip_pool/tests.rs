//! The cases of upstream's TestPoolSortFunc, a sequence of changes to several pools, and the
//! conditions and finalizers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;

use kube::client::Body;
use libcalico::api::IpPoolSpec;
use libcalico::ipam::{AffinityKey, AffinityState, BlockRequest, HandleId, Reservations};
use libcalico::store::Revision;
use serde_json::json;

use super::*;
use crate::controllers::testing::embedded;

fn pool(name: &str, cidr: &str, change: impl FnOnce(&mut IpPool)) -> IpPool {
    let mut pool = IpPool::new(
        name,
        IpPoolSpec {
            cidr: cidr.into(),
            ..IpPoolSpec::default()
        },
    );
    pool.metadata.creation_timestamp = Some("2026-01-02T00:00:00Z".into());
    change(&mut pool);
    pool
}

fn condition(pool: &mut IpPool, status: &str) {
    pool.status = Some(json!({"conditions": [{"type": "Allocatable", "status": status}]}));
}

fn verdicts(pools: &[IpPool]) -> Vec<(String, Verdict)> {
    allocatable(pools)
        .into_iter()
        .map(|(key, verdict)| (key.name, verdict))
        .collect()
}

fn created(time: &'static str) -> impl FnOnce(&mut IpPool) {
    move |pool| pool.metadata.creation_timestamp = Some(time.into())
}

#[test]
fn pool_in_use_wins_over_an_overlapping_pool() {
    let cidr = "10.0.0.0/16";
    let deleting =
        |pool: &mut IpPool| pool.metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".into());
    let wins = |first: IpPool, second: IpPool| {
        let found = verdicts(&[second, first]);
        assert_eq!(
            found
                .iter()
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>(),
            ["first", "second"]
        );
        assert_eq!(found[1].1, Verdict::Overlap);
    };
    wins(
        pool("first", cidr, |p| condition(p, "True")),
        pool("second", cidr, |p| condition(p, "False")),
    );
    wins(
        pool("first", cidr, |p| condition(p, "True")),
        pool("second", cidr, created("2026-01-01T00:00:00Z")),
    );
    wins(
        pool("first", cidr, |p| condition(p, "False")),
        pool("second", cidr, |_| ()),
    );
    wins(
        pool("first", cidr, created("2026-01-01T00:00:00Z")),
        pool("second", cidr, |_| ()),
    );
    wins(
        pool("first", "10.0.0.0/16", |_| ()),
        pool("second", "10.0.7.0/24", |_| ()),
    );
    wins(
        pool("first", "10.0.7.0/24", |p| condition(p, "True")),
        pool("second", "10.0.0.0/8", |_| ()),
    );
    wins(
        pool("first", cidr, deleting),
        pool("second", cidr, |p| condition(p, "False")),
    );
}

#[test]
fn pool_verdicts_reflect_overlap_deletion_and_disabling() {
    let active = |pool: &mut IpPool| condition(pool, "True");
    let mut pools = vec![
        pool("a", "10.0.0.0/16", active),
        pool("b", "10.0.0.0/24", |_| ()),
        pool("c", "fd00::/64", |_| ()),
        pool("d", "10.1.0.0/16", |pool| pool.spec.disabled = true),
        pool("e", "no range", |_| ()),
    ];
    let of = |pools: &[IpPool], name: &str| {
        verdicts(pools)
            .into_iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v)
    };
    let all = |pools: &[IpPool]| ["a", "b", "c", "d", "e"].map(|name| of(pools, name));
    use Verdict::{Disabled, Ok, Overlap, Terminating};
    assert_eq!(
        all(&pools),
        [Some(Ok), Some(Overlap), Some(Ok), Some(Disabled), None]
    );
    pools[0].metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".into());
    assert_eq!(
        all(&pools)[..2],
        [Some(Terminating), Some(Overlap)],
        "its blocks are still there"
    );
    pools.remove(0);
    assert_eq!(of(&pools, "b"), Some(Ok));
    // A disabled pool does not overlap others.
    pools.push(pool("f", "10.1.0.0/24", |_| ()));
    assert_eq!(of(&pools, "f"), Some(Ok));
}

#[test]
fn pool_conditions_use_upstreams_reasons_and_messages() {
    let condition = Verdict::Ok.condition();
    assert_eq!((condition.is_true, condition.reason), (true, "OK"));
    assert_eq!(condition.message, "IPPool is available for IP allocation.");
    for (verdict, reason) in [
        (Verdict::Disabled, "PoolDisabled"),
        (Verdict::Terminating, "Terminating"),
        (Verdict::Overlap, "CIDROverlap"),
    ] {
        let condition = verdict.condition();
        assert_eq!((condition.is_true, condition.reason), (false, reason));
    }
}

#[test]
fn pool_finalizers_follow_the_verdict() {
    let with = |finalizers: &[&str], deleting: bool| {
        let mut pool = pool("p", "10.0.0.0/16", |_| ());
        pool.metadata
            .unknown
            .insert("finalizers".into(), json!(finalizers));
        pool.metadata.deletion_timestamp = deleting.then(|| "2026-01-03T00:00:00Z".into());
        pool
    };
    assert_eq!(
        finalizer_change(&with(&[], false), Verdict::Ok),
        FinalizerChange::Write(vec![FINALIZER.into()])
    );
    assert_eq!(
        finalizer_change(&with(&["other"], false), Verdict::Ok),
        FinalizerChange::Write(vec!["other".into(), FINALIZER.into()])
    );
    assert_eq!(
        finalizer_change(&with(&[FINALIZER], false), Verdict::Ok),
        FinalizerChange::Keep
    );
    assert_eq!(
        finalizer_change(&with(&["other", FINALIZER], false), Verdict::Overlap),
        FinalizerChange::Write(vec!["other".into()])
    );
    assert_eq!(
        finalizer_change(&with(&[], false), Verdict::Disabled),
        FinalizerChange::Keep
    );
    assert_eq!(
        finalizer_change(&with(&[FINALIZER], true), Verdict::Terminating),
        FinalizerChange::ReleaseBlocks
    );
    assert_eq!(
        finalizer_change(&with(&[], true), Verdict::Terminating),
        FinalizerChange::Keep
    );
}

#[test]
fn deleted_and_emptied_blocks_matter_only_in_pools_that_are_being_deleted() {
    let mut pools = PoolCache::default();
    let hear = |pools: &mut PoolCache, pool: IpPool| {
        let entry = Entry {
            key: pool.key(),
            value: pool,
            revision: Revision("1".into()),
        };
        pools.apply(&Event::Upsert(&entry), |entry| Some(entry.clone()));
    };
    let deleting =
        |pool: &mut IpPool| pool.metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".into());
    hear(&mut pools, pool("stays", "10.1.0.0/16", |_| ()));
    hear(&mut pools, pool("no-range", "x", deleting));
    let gone = |pools: &PoolCache, block: &str| {
        may_be_empty(pools, &Event::Delete(&block.parse().unwrap()))
    };
    let changes = |pools: &PoolCache, block: &str, addresses: usize| {
        let (key, owner): (Cidr, AffinityOwner) =
            (block.parse().unwrap(), AffinityOwner::of_services());
        let mut value = Block::new(key, &owner, OffsetDateTime::UNIX_EPOCH).unwrap();
        let attributes = BTreeMap::new();
        let request = BlockRequest {
            handle: None,
            attributes: &attributes,
            requester: &owner,
            check_affinity: false,
        };
        value
            .assign(addresses, &request, &Reservations::none())
            .unwrap();
        may_be_empty(
            pools,
            &Event::Upsert(&Entry {
                key,
                value,
                revision: Revision("1".into()),
            }),
        )
    };
    assert!(!gone(&pools, "10.1.2.0/26"));
    hear(&mut pools, pool("goes", "10.2.0.0/16", deleting));
    assert!(gone(&pools, "10.2.2.0/26"));
    assert!(!gone(&pools, "10.1.2.0/26"), "its pool stays");
    assert!(
        changes(&pools, "10.2.2.0/26", 0),
        "its last address is released"
    );
    assert!(!changes(&pools, "10.2.2.0/26", 1));
    assert!(!changes(&pools, "10.1.2.0/26", 0), "its pool stays");
    assert!(
        may_be_empty(&pools, &Event::ListEnd),
        "which were left out is not said"
    );
    assert!(!may_be_empty(&pools, &Event::ListStart));
    assert!(!may_be_empty(&PoolCache::default(), &Event::ListEnd));
}

/// Returns a client of an API server that accepts every write of a pool, and the bodies that the
/// client has sent.
fn patched_pools() -> (kube::Client, Arc<Mutex<Vec<Value>>>) {
    let taken = Arc::<Mutex<Vec<Value>>>::default();
    let sent = taken.clone();
    let service = tower::service_fn(move |request: hyper::Request<Body>| {
        let taken = taken.clone();
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            taken
                .lock()
                .unwrap()
                .push(serde_json::from_slice(&body).unwrap());
            let answer = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool",
                "metadata": {"name": "old", "resourceVersion": "2"}});
            Ok::<_, Infallible>(hyper::Response::new(Body::from(
                answer.to_string().into_bytes(),
            )))
        }
    });
    (kube::Client::new(service, "default"), sent)
}

/// Stores a block of the range of the pool, with an address of each of the Services.
async fn store_block(store: &impl Store, services: &[&str]) -> Cidr {
    let (owner, cidr): (AffinityOwner, Cidr) =
        (AffinityOwner::of_services(), "10.0.0.0/28".parse().unwrap());
    let mut block = Block::new(cidr, &owner, OffsetDateTime::UNIX_EPOCH).unwrap();
    for name in services {
        let attributes = [("service", *name), ("namespace", "n")]
            .map(|(key, text)| (key.to_owned(), text.to_owned()));
        let (handle, attributes) = (HandleId::new(format!("lb-{name}")), attributes.into());
        let request = BlockRequest {
            handle: Some(&handle),
            attributes: &attributes,
            requester: &owner,
            check_affinity: false,
        };
        block.assign(1, &request, &Reservations::none()).unwrap();
    }
    store.create(&cidr, &block).await.unwrap();
    let affinity = BlockAffinity {
        state: AffinityState::Confirmed,
        ..BlockAffinity::default()
    };
    store
        .create(&AffinityKey { owner, cidr }, &affinity)
        .await
        .unwrap();
    cidr
}

#[tokio::test]
async fn deleted_pool_names_the_services_that_have_its_addresses_and_ends_after_them() {
    let (_dir, store) = embedded();
    let (kubernetes, sent) = patched_pools();
    let objects = CustomResources::new::<IpPoolSpec>(kubernetes);
    let reconciler = IpPoolReconciler {
        store: store.clone(),
        objects,
        pools: SharedCache::default(),
    };
    let show = |status: Option<Value>| {
        let mut value = pool("old", "10.0.0.0/24", |pool| {
            pool.metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".into());
            pool.metadata
                .unknown
                .insert("finalizers".into(), json!([FINALIZER]));
        });
        value.status = status;
        let entry = Entry {
            key: value.key(),
            value,
            revision: Revision("1".into()),
        };
        let mut pools = reconciler.pools.lock();
        pools.apply(&Event::Upsert(&entry), |entry| Some(entry.clone()));
        pools.apply(&Event::ListEnd, |entry: &Entry<IpPool>| Some(entry.clone()));
    };
    let names: Vec<String> = (0..10).map(|number| format!("s{number}")).collect();
    let cidr = store_block(
        &*store,
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
    let reconcile = async || {
        let next = reconciler.reconcile(&ALL_POOLS).await.unwrap();
        (next, std::mem::take(&mut *sent.lock().unwrap()))
    };
    let message = |body: &Value| {
        body["status"]["conditions"][0]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    // Before the deletion, the pool overlapped with another one.
    let overlap = Verdict::Overlap
        .condition()
        .merged_into(None, OffsetDateTime::UNIX_EPOCH)
        .unwrap();
    let mut written = Vec::new();
    for status in [Some(json!({ "conditions": overlap })), None] {
        show(status);
        let next;
        (next, written) = reconcile().await;
        assert_eq!(next, NextReconcile::After(RECHECK_INTERVAL));
        assert_eq!(written.len(), 2, "{written:?}");
        assert_eq!(message(&written[0]), "IPPool is being deleted");
    }
    let named = message(&written[1]);
    let expected = "IPPool is being deleted; Services have addresses of it: n/s0, n/s1, n/s2, \
                    n/s3, n/s4, n/s5, n/s6, n/s7 and 2 more; name another pool in their \
                    annotations";
    assert!(named.starts_with(expected), "{named}");

    show(Some(written[1]["status"].clone()));
    for _ in 0..2 {
        assert_eq!(
            reconcile().await,
            (NextReconcile::After(RECHECK_INTERVAL), vec![]),
            "the condition is the same"
        );
    }
    let mut block = store.get::<Block>(&cidr).await.unwrap();
    for name in &names[..9] {
        let handle = HandleId::new(format!("lb-{name}"));
        block
            .value
            .release_by_handle(&handle, None, 0, OffsetDateTime::UNIX_EPOCH)
            .unwrap();
    }
    store
        .update(&cidr, &block.value, &block.revision)
        .await
        .unwrap();
    let (_, written) = reconcile().await;
    assert!(
        written.len() == 1 && message(&written[0]).contains(" of it: n/s9; name"),
        "{written:?}"
    );

    show(Some(written[0]["status"].clone()));
    let mut block = store.get::<Block>(&cidr).await.unwrap();
    block
        .value
        .release_by_handle(&HandleId::new("lb-s9"), None, 0, OffsetDateTime::UNIX_EPOCH)
        .unwrap();
    store
        .update(&cidr, &block.value, &block.revision)
        .await
        .unwrap();
    let (next, written) = reconcile().await;
    assert_eq!(next, NextReconcile::AwaitChange);
    assert!(
        written.len() == 1 && written[0]["metadata"]["finalizers"] == json!([]),
        "{written:?}"
    );
    assert!(store.get::<Block>(&cidr).await.is_err());
}
