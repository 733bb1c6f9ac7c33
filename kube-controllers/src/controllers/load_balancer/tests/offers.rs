//! Each address that a Service loses returns one waiting Service to the queue at a time.

use std::time::Duration;

use super::*;
use crate::controllers::load_balancer::offers::Offers;

const BLOCK: &str = "10.0.0.0/29";

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("n", name)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn full() -> Wait {
    Wait {
        reason: WaitReason::PoolFull,
        text: "full".into(),
        cause: "full".into(),
    }
}

/// Returns a cache in which `holders` have the first addresses of the block, and `waiting` wait in
/// this order.
fn filled(holders: &[&str], waiting: &[&str]) -> ServiceCache {
    let mut cache = cache();
    for name in waiting {
        cache.apply_service(&Event::Upsert(&watched(name, "u")));
    }
    cache.apply_block(&Event::Upsert(&block(
        &AffinityOwner::of_services(),
        holders,
    )));
    cache.apply_block(&Event::ListEnd);
    for name in waiting {
        wait_for_release(&cache, name);
    }
    cache
}

fn wait_for_release(cache: &ServiceCache, name: &str) {
    cache
        .waiting
        .lock()
        .set(&key(name), "u", Some(&full()), Instant::now());
}

/// Applies the block in which only `holders` have addresses, and returns the names of the Services
/// to reconcile.
fn left(cache: &mut ServiceCache, holders: &[&str]) -> Vec<String> {
    let touched = cache.apply_block(&Event::Upsert(&block(
        &AffinityOwner::of_services(),
        holders,
    )));
    touched.into_iter().map(|key| key.name).collect()
}

#[test]
fn freed_address_returns_one_waiting_service_and_then_the_next() {
    let names: Vec<String> = (0..296).map(|number| format!("w{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut cache = filled(&["a", "b", "c"], &names);
    assert_eq!(
        left(&mut cache, &["a", "b"]),
        ["c", "w000"],
        "the Service that lost it, and the first one"
    );
    assert_eq!(
        cache.pass_on(&key("w005")),
        [],
        "a Service without an offer"
    );
    assert_eq!(cache.pass_on(&key("w000")), [key("w001")]);
    assert_eq!(
        left(&mut cache, &["a"]),
        ["b", "w000"],
        "an offer of another address"
    );
    let mut looks = 0;
    let mut next = vec![key("w001")];
    while let Some(key) = next.pop() {
        looks += 1;
        next.extend(cache.pass_on(&key));
    }
    assert_eq!(
        looks, 295,
        "each Service at most once, and the first one before"
    );
}

#[test]
fn taken_address_ends_its_offer() {
    let mut cache = filled(&["a", "b", "c"], &["v", "w", "x"]);
    assert_eq!(
        left(&mut cache, &["a"]),
        ["b", "c", "v", "w"],
        "two addresses for two Services"
    );
    // The second of the two Services takes the address that was offered to the first.
    cache.took(&key("w"), &[ip("10.0.0.1")]);
    assert_eq!(cache.pass_on(&key("w")), []);
    assert_eq!(left(&mut cache, &["a", "w"]), ["w"]);
    cache.took(&key("v"), &[ip("10.0.0.2")]);
    assert_eq!(cache.pass_on(&key("v")), []);
}

#[test]
fn deleted_service_leaves_its_offer_to_the_next() {
    let mut cache = filled(&["a", "b"], &["v", "w"]);
    assert_eq!(left(&mut cache, &["a"]), ["b", "v"]);
    assert_eq!(
        cache.apply_service(&Event::Delete(&key("v"))),
        [key("v"), key("w")]
    );
}

#[test]
fn freed_address_returns_only_services_that_may_take_it() {
    let mut cache = filled(&["a", "b"], &["w"]);
    let mut of_ipv6 = watched("w", "u");
    of_ipv6.spec.ip_families = Some(vec!["IPv6".into()]);
    let with_address = |address: &str| Service {
        annotations: [(ADDRESSES.to_owned(), format!("[{address:?}]"))].into(),
        ..watched("w", "u")
    };
    for (service, is_woken) in [
        (of_ipv6, false),
        (with_address("10.0.0.7"), false),
        (with_address("10.0.0.1"), true),
        (watched("w", "u"), true),
    ] {
        left(&mut cache, &["a", "b"]);
        cache.apply_service(&Event::Upsert(&service));
        wait_for_release(&cache, "w");
        let expected: &[&str] = if is_woken { &["b", "w"] } else { &["b"] };
        assert_eq!(
            left(&mut cache, &["a"]),
            expected,
            "{:?}",
            service.annotations
        );
    }
}

/// The first waiting Service has an IPv4 address, and waits for one of IPv6.
#[test]
fn freed_address_does_not_return_a_service_that_has_one_of_its_family() {
    let mut cache = filled(&["v", "a"], &["v", "w"]);
    assert_eq!(left(&mut cache, &["v"]), ["a", "w"]);
}

/// The first waiting Service keeps an address of a pool that it no longer names.
#[test]
fn freed_address_returns_a_service_whose_own_address_may_not_stay() {
    let mut cache = filled(&["v", "a"], &["v", "w"]);
    let annotations = [(IPV4_POOLS.to_owned(), r#"["small"]"#.to_owned())].into();
    let spec = json!({"cidr": "10.0.0.1/32", "blockSize": 32, "allowedUses": ["LoadBalancer"]});
    let value = IpPool::new("small", serde_json::from_value(spec).unwrap());
    cache.apply_pool(&Event::Upsert(&Entry {
        key: value.key(),
        value,
        revision: Revision("1".into()),
    }));
    cache.apply_service(&Event::Upsert(&Service {
        annotations,
        ..watched("v", "u")
    }));
    wait_for_release(&cache, "v");
    assert_eq!(left(&mut cache, &["v"]), ["a", "v"]);
}

#[test]
fn offer_goes_to_each_namespace_before_a_second_service_of_one() {
    let keys = ["a/x", "a/y", "b/z"].map(|name| name.split_once('/').unwrap());
    let keys = keys.map(|(namespace, name)| ObjectKey::namespaced(namespace, name));
    let waiting = || keys.iter().zip(0..);
    let mut offers = Offers::default();
    assert_eq!(
        offers.offer(ip("10.0.0.1"), None, waiting()),
        Some(keys[0].clone())
    );
    assert_eq!(
        offers.offer_to_next(ip("10.0.0.1"), waiting()),
        Some(keys[2].clone())
    );
    assert_eq!(
        offers.offer_to_next(ip("10.0.0.1"), waiting()),
        Some(keys[1].clone())
    );
    assert_eq!(offers.offer_to_next(ip("10.0.0.1"), waiting()), None);
}

#[test]
fn deleted_block_returns_services_that_request_an_address_in_its_range() {
    let mut cache = filled(&["a"], &["w"]);
    let annotations = [(ADDRESSES.to_owned(), r#"["10.0.0.5"]"#.to_owned())].into();
    cache.apply_service(&Event::Upsert(&Service {
        annotations,
        ..watched("w", "u")
    }));
    let touched = cache.apply_block(&Event::Delete(&BLOCK.parse().unwrap()));
    assert_eq!(touched, [key("a"), key("w")]);
}

#[test]
fn release_by_a_waiting_service_does_not_return_that_service() {
    for (released, touched) in [(Some("10.0.0.2"), &["w"][..]), (None, &["v", "w"])] {
        let mut cache = filled(&["a", "v", "v"], &["v", "w"]);
        cache.set_releasing(&key("v"), released.map(ip).into_iter().collect());
        assert_eq!(left(&mut cache, &["a", "v"]), touched);
    }
    // A Service that does not wait is reconciled.
    let mut cache = filled(&["a", "v", "v"], &[]);
    cache.set_releasing(&key("v"), vec![ip("10.0.0.2")]);
    assert_eq!(left(&mut cache, &["a", "v"]), ["v"]);
}

#[test]
fn end_of_a_cooldown_returns_one_waiting_service() {
    let names: Vec<String> = (0..296).map(|number| format!("w{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut cache = filled(&["a", "b"], &names);
    let now = Instant::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    let first = [(ip("10.0.0.1"), after(60))];
    assert_eq!(left(&mut cache, &["a"]), ["b", "w000"]);
    let reserved: Vec<_> = names
        .iter()
        .filter(|name| cache.reserve(&key(name), &first).is_some())
        .collect();
    assert_eq!(reserved, [&"w000"]);
    assert_eq!(
        cache.reserve(&key("w000"), &first),
        Some(after(60)),
        "after another look"
    );
    assert_eq!(
        cache.pass_on(&key("w000")),
        [],
        "the address is cooling down"
    );

    // A second address is for another Service, and a third for the Service that has the first one
    // too.
    let both = [first[0], (ip("10.0.0.2"), after(90))];
    assert_eq!(cache.reserve(&key("w000"), &both), Some(after(60)));
    assert_eq!(cache.reserve(&key("w001"), &both), Some(after(90)));
    assert_eq!(cache.reserve(&key("w002"), &both), None);

    // The next Service without an offer has the address of a Service that is deleted or served.
    assert_eq!(
        cache.apply_service(&Event::Delete(&key("w000"))),
        [key("w000"), key("w002")]
    );
    assert_eq!(cache.reserve(&key("w002"), &both), Some(after(60)));
    cache
        .waiting
        .lock()
        .set(&key("w001"), "u", None, Instant::now());
    cache.took(&key("w001"), &[ip("10.0.0.9")]);
    assert_eq!(cache.pass_on(&key("w001")), [key("w003")]);
    assert_eq!(cache.reserve(&key("w003"), &both), Some(after(90)));
}

#[test]
fn ended_cooldown_passes_the_address_on() {
    let mut cache = filled(&["a"], &["v", "w"]);
    let ended = [(ip("10.0.0.1"), Instant::now())];
    assert!(cache.reserve(&key("v"), &ended).is_some());
    assert_eq!(cache.reserve(&key("w"), &ended), None);
    assert_eq!(
        cache.pass_on(&key("v")),
        [key("w")],
        "it did not take the free address"
    );
    // A Service that no longer waits keeps no address from the others.
    let later = [(ip("10.0.0.3"), Instant::now() + Duration::from_secs(60))];
    assert!(cache.reserve(&key("v"), &later).is_some());
    cache.waiting.lock().take_all();
    wait_for_release(&cache, "w");
    assert!(cache.reserve(&key("w"), &later).is_some());
}
