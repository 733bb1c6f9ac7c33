//! The end of a cooldown returns a Service that waits for the address to the queue.

use std::time::Duration;

use libcalico::ipam::{IpamConfig, IpamConfigKey};
use libcalico::net::IpVersion;
use tokio::time::{advance, pause, resume};

use super::waiting::pool_of_one_address;
use super::*;
use crate::controllers::load_balancer::waiting::cooldown_ends;

const COOLDOWN_SECONDS: u32 = 600;

/// The first Service requests the address, and the pool of the second has no other one.
#[tokio::test]
async fn service_that_waits_for_a_cooling_address_returns_to_the_queue_once_after_the_cooldown() {
    let config = IpamConfig {
        ip_cooldown_seconds: COOLDOWN_SECONDS.into(),
        ..IpamConfig::absent()
    };
    for (annotations, pool) in [
        (wants("10.0.0.5"), stored_pool().value),
        (json!({}), pool_of_one_address()),
    ] {
        let serving = Serving::new(stored_service(annotations), &[pool]).await;
        let queue = &serving.reconciler.reports.queue;
        serving
            .calico
            .create(&IpamConfigKey, &config)
            .await
            .unwrap();
        serving.take("10.0.0.5", "n").await;
        serving.look().await;
        assert_eq!(
            (queue.len(), queue.first_deadline()),
            (0, None),
            "the address is in use"
        );

        serving.pass_the_pause();
        serving
            .reconciler
            .addresses
            .release_all(&HandleId::new("lb-other"))
            .await
            .unwrap();
        for _ in 0..3 {
            serving.look().await;
            assert!(
                queue.is_empty() && queue.first_deadline().is_some(),
                "the address is cooling down"
            );
        }
        pause();
        advance(Duration::from_secs((COOLDOWN_SECONDS + 1).into())).await;
        assert_eq!((queue.len(), queue.first_deadline()), (1, None));
        resume();

        // Without a cooldown, the address is free at once.
        serving
            .calico
            .delete::<IpamConfig>(&IpamConfigKey, None)
            .await
            .unwrap();
        serving.look().await;
        assert_eq!(
            (serving.shown(), queue.first_deadline()),
            (texts(&["10.0.0.5"]), None)
        );
    }
}

#[test]
fn cooldowns_that_last_are_sorted_by_their_ends() {
    let at = |seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap();
    let ip = |seconds: i64| IpAddr::from([10, 0, 0, u8::try_from(seconds / 100).unwrap()]);
    let cooling = [300, 100, 200].map(|released| (ip(released), at(released)));
    for (cooldown, begin, ends) in [
        (60, 0, &[161, 261, 361][..]),
        (60, 160, &[161, 261, 361]),
        (60, 161, &[261, 361]),
        (60, 361, &[]),
        (0, 100, &[101, 201, 301]),
        (-5, 100, &[101, 201, 301]),
        (i64::MAX, 0, &[]),
    ] {
        let expected: Vec<_> = ends.iter().map(|end| (ip(*end), at(*end))).collect();
        assert_eq!(
            cooldown_ends(&cooling, cooldown, at(begin)),
            expected,
            "{cooldown} {begin}"
        );
    }
}

#[test]
fn cooling_address_is_suitable_only_for_services_that_may_get_it() {
    let mut cache = cache();
    let mut released = block(&AffinityOwner::of_services(), &["a"]);
    let ip = released.value.allocated().next().unwrap().ip;
    released
        .value
        .release_by_handle(&HandleId::new("lb-a"), None, 60, OffsetDateTime::UNIX_EPOCH)
        .unwrap();
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
        let releases = cache.cooling_for(std::slice::from_ref(&missing), &pools());
        let expected = if is_suitable {
            vec![(ip, OffsetDateTime::UNIX_EPOCH)]
        } else {
            Vec::new()
        };
        assert_eq!(releases, expected, "{missing:?}");
    }
}
