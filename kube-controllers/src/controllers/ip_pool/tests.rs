//! The cases of upstream's TestPoolSortFunc, a sequence of changes to several pools, and the conditions and finalizers.

use libcalico::api::IpPoolSpec;
use libcalico::store::Revision;
use serde_json::json;

use super::*;

fn pool(name: &str, cidr: &str, change: impl FnOnce(&mut IpPool)) -> IpPool {
    let mut pool = IpPool::new(name, IpPoolSpec { cidr: cidr.into(), ..IpPoolSpec::default() });
    pool.metadata.creation_timestamp = Some("2026-01-02T00:00:00Z".into());
    change(&mut pool);
    pool
}

fn condition(pool: &mut IpPool, status: &str) {
    pool.status = Some(json!({"conditions": [{"type": "Allocatable", "status": status}]}));
}

fn verdicts(pools: &[IpPool]) -> Vec<(String, Verdict)> {
    allocatable(pools).into_iter().map(|(key, verdict)| (key.name, verdict)).collect()
}

fn created(time: &'static str) -> impl FnOnce(&mut IpPool) {
    move |pool| pool.metadata.creation_timestamp = Some(time.into())
}

#[test]
fn pool_in_use_wins_over_an_overlapping_pool() {
    let cidr = "10.0.0.0/16";
    let deleting = |pool: &mut IpPool| pool.metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".into());
    let wins = |first: IpPool, second: IpPool| {
        let found = verdicts(&[second, first]);
        assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(found[1].1, Verdict::Overlap);
    };
    wins(pool("first", cidr, |p| condition(p, "True")), pool("second", cidr, |p| condition(p, "False")));
    wins(pool("first", cidr, |p| condition(p, "True")), pool("second", cidr, created("2026-01-01T00:00:00Z")));
    wins(pool("first", cidr, |p| condition(p, "False")), pool("second", cidr, |_| ()));
    wins(pool("first", cidr, created("2026-01-01T00:00:00Z")), pool("second", cidr, |_| ()));
    wins(pool("first", "10.0.0.0/16", |_| ()), pool("second", "10.0.7.0/24", |_| ()));
    wins(pool("first", "10.0.7.0/24", |p| condition(p, "True")), pool("second", "10.0.0.0/8", |_| ()));
    wins(pool("first", cidr, deleting), pool("second", cidr, |p| condition(p, "False")));
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
    let of = |pools: &[IpPool], name: &str| verdicts(pools).into_iter().find(|(n, _)| n == name).map(|(_, v)| v);
    let all = |pools: &[IpPool]| ["a", "b", "c", "d", "e"].map(|name| of(pools, name));
    use Verdict::{Disabled, Ok, Overlap, Terminating};
    assert_eq!(all(&pools), [Some(Ok), Some(Overlap), Some(Ok), Some(Disabled), None]);
    pools[0].metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".into());
    assert_eq!(all(&pools)[..2], [Some(Terminating), Some(Overlap)], "its blocks are still there");
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
    for (verdict, reason) in
        [(Verdict::Disabled, "PoolDisabled"), (Verdict::Terminating, "Terminating"), (Verdict::Overlap, "CIDROverlap")]
    {
        let condition = verdict.condition();
        assert_eq!((condition.is_true, condition.reason), (false, reason));
    }
}

#[test]
fn pool_finalizers_follow_the_verdict() {
    let with = |finalizers: &[&str], deleting: bool| {
        let mut pool = pool("p", "10.0.0.0/16", |_| ());
        pool.metadata.unknown.insert("finalizers".into(), json!(finalizers));
        pool.metadata.deletion_timestamp = deleting.then(|| "2026-01-03T00:00:00Z".into());
        pool
    };
    assert_eq!(finalizer_change(&with(&[], false), Verdict::Ok), FinalizerChange::Write(vec![FINALIZER.into()]));
    assert_eq!(
        finalizer_change(&with(&["other"], false), Verdict::Ok),
        FinalizerChange::Write(vec!["other".into(), FINALIZER.into()])
    );
    assert_eq!(finalizer_change(&with(&[FINALIZER], false), Verdict::Ok), FinalizerChange::Keep);
    assert_eq!(
        finalizer_change(&with(&["other", FINALIZER], false), Verdict::Overlap),
        FinalizerChange::Write(vec!["other".into()])
    );
    assert_eq!(finalizer_change(&with(&[], false), Verdict::Disabled), FinalizerChange::Keep);
    assert_eq!(finalizer_change(&with(&[FINALIZER], true), Verdict::Terminating), FinalizerChange::ReleaseBlocks);
    assert_eq!(finalizer_change(&with(&[], true), Verdict::Terminating), FinalizerChange::Keep);
}

#[test]
fn block_deletions_matter_only_in_pools_that_are_being_deleted() {
    let mut pools = PoolCache::default();
    let hear = |pools: &mut PoolCache, pool: IpPool| {
        let entry = Entry { key: pool.key(), value: pool, revision: Revision("1".into()) };
        pools.apply(&Event::Upsert(&entry), |entry| Some(entry.clone()));
    };
    let deleting = |pool: &mut IpPool| pool.metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".into());
    hear(&mut pools, pool("stays", "10.1.0.0/16", |_| ()));
    hear(&mut pools, pool("no-range", "x", deleting));
    let gone = |pools: &PoolCache, block: &str| may_be_empty(pools, &Event::Delete(&block.parse().unwrap()));
    assert!(!gone(&pools, "10.1.2.0/26"));
    hear(&mut pools, pool("goes", "10.2.0.0/16", deleting));
    assert!(gone(&pools, "10.2.2.0/26"));
    assert!(!gone(&pools, "10.1.2.0/26"), "its pool stays");
    assert!(may_be_empty(&pools, &Event::ListEnd), "which were left out is not said");
    assert!(!may_be_empty(&pools, &Event::ListStart));
    assert!(!may_be_empty(&PoolCache::default(), &Event::ListEnd));
}
