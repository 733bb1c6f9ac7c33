//! The end of a cooldown returns a Service that waits for the address to the queue.

use std::time::Duration;

use libcalico::ipam::{IpamConfig, IpamConfigKey};
use libcalico::net::IpVersion;
use tokio::time::{advance, pause, resume};

use super::waiting::pool_of_one_address;
use super::*;
use crate::controllers::load_balancer::waiting::first_cooldown_end;

const COOLDOWN_SECONDS: u32 = 600;

/// The first Service requests the address, and the pool of the second has no other one.
#[tokio::test]
async fn service_that_waits_for_a_cooling_address_returns_to_the_queue_once_after_the_cooldown() {
    let config = IpamConfig { ip_cooldown_seconds: COOLDOWN_SECONDS.into(), ..IpamConfig::absent() };
    for (annotations, pool) in [(wants("10.0.0.5"), stored_pool().value), (json!({}), pool_of_one_address())] {
        let scene = Scene::new(stored_service(annotations), &[pool]).await;
        let queue = &scene.reconciler.reports.queue;
        scene.calico.create(&IpamConfigKey, &config).await.unwrap();
        scene.take("10.0.0.5", "n").await;
        scene.look().await;
        assert_eq!((queue.len(), queue.first_deadline()), (0, None), "the address is in use");

        scene.pass_the_pause();
        scene.reconciler.addresses.release_all(&HandleId::new("lb-other")).await.unwrap();
        for _ in 0..3 {
            scene.look().await;
            assert!(queue.is_empty() && queue.first_deadline().is_some(), "the address is cooling down");
        }
        pause();
        advance(Duration::from_secs((COOLDOWN_SECONDS + 1).into())).await;
        assert_eq!((queue.len(), queue.first_deadline()), (1, None));
        resume();

        // Without a cooldown, the address is free at once.
        scene.calico.delete::<IpamConfig>(&IpamConfigKey, None).await.unwrap();
        scene.look().await;
        assert_eq!((scene.shown(), queue.first_deadline()), (texts(&["10.0.0.5"]), None));
    }
}

#[test]
fn first_cooldown_end_is_that_of_the_earliest_release_whose_cooldown_lasts() {
    let at = |seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap();
    let released = [at(300), at(100), at(200)];
    for (cooldown, begin, end) in [
        (60, 0, Some(161)),
        (60, 160, Some(161)),
        (60, 161, Some(261)),
        (60, 361, None),
        (0, 100, Some(101)),
        (-5, 100, Some(101)),
        (i64::MAX, 0, None),
    ] {
        assert_eq!(first_cooldown_end(&released, cooldown, at(begin)), end.map(at), "{cooldown} {begin}");
    }
}

#[test]
fn cooling_address_is_suitable_only_for_services_that_may_get_it() {
    let mut cache = cache();
    let mut released = block(&AffinityOwner::of_services(), &["a"]);
    let ip = released.value.allocated().next().unwrap().ip;
    released.value.release_by_handle(&HandleId::new("lb-a"), None, 60, OffsetDateTime::UNIX_EPOCH).unwrap();
    cache.apply_block(&Event::Upsert(&released));
    cache.apply_block(&Event::ListEnd);
    let any = |version, named: &[&str]| {
        let pools = named.iter().map(|range| range.parse().unwrap()).collect();
        MissingAddress::Any { version, pools }
    };
    for (missing, is_suitable) in [
        (MissingAddress::Address(ip), true),
        (MissingAddress::Address("10.0.0.7".parse().unwrap()), false),
        (any(IpVersion::V4, &[]), true),
        (any(IpVersion::V6, &[]), false),
        (any(IpVersion::V4, &["10.0.0.0/24"]), true),
        (any(IpVersion::V4, &["10.9.0.0/24"]), false),
    ] {
        let releases = cache.releases_for(std::slice::from_ref(&missing), &pools());
        let expected = if is_suitable { vec![OffsetDateTime::UNIX_EPOCH] } else { Vec::new() };
        assert_eq!(releases, expected, "{missing:?}");
    }
}
