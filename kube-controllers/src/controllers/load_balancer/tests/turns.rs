//! The Services of one namespace do not delay those of another.

use super::*;

/// Takes keys until the key of a Service comes. Returns the number of other keys. The other Services change again as
/// soon as they have been reconciled.
async fn taken_before(queue: &Queue<ObjectKey>, key: &ObjectKey) -> usize {
    let mut others = 0;
    loop {
        let taken = queue.next().await;
        queue.done(&taken);
        if taken == *key {
            return others;
        }
        queue.add(taken);
        others += 1;
    }
}

#[tokio::test]
async fn service_beside_a_thousand_waiting_ones_of_another_namespace_waits_for_one_reconcile_of_each_namespace() {
    let queue = CachedController::<ServiceReconciler>::unsubscribed().queue;
    let mut cache = cache();
    let ours = AffinityOwner::Virtual(LOAD_BALANCER_HOST.into());
    cache.apply_block(&Event::Upsert(&block(&ours, &["a"])));
    cache.apply_block(&Event::ListEnd);
    let full = Wait { reason: WaitReason::PoolFull, text: "full".into(), cause: "full".into() };
    for number in 0..1000 {
        let waiting = ObjectKey::namespaced("greedy", format!("s{number}"));
        cache.waiting.lock().set(&waiting, "u", Some(&full), Instant::now());
    }
    let released = cache.apply_block(&Event::Delete(&"10.0.0.0/29".parse().unwrap()));
    assert_eq!(released.len(), 1001, "the Services that wait, and the Service that has lost its address");
    released.into_iter().for_each(|key| queue.add(key));
    for name in ["first", "second"] {
        let new = ObjectKey::namespaced("modest", name);
        queue.add(new.clone());
        let others = taken_before(&queue, &new).await;
        assert!(others <= 2, "{others} other Services, although there are two other namespaces");
    }
    assert_eq!(queue.len(), 1001);
}
