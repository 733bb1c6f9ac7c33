//! The record of waiting Services, their turns in the queue, and the texts of reasons.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use allocation::error::{Exhaustion, IpamError, Shortfall};
use libcalico::ipam::{AssignError, NoPool, PoolChoiceError, PoolRejection, RejectedPool};
use libcalico::net::IpVersion;
use tokio::time::{advance, sleep};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::controllers::load_balancer::reports::{MAX_TEXT, reset_on_standby};
use crate::controllers::testing::{embedded, posting_kubernetes, refusing_kubernetes, settings};
use crate::leader::LeadershipTerm;
use crate::logging::captured::Captured;
use crate::settings::{LogSeverity, Mode};
use crate::status::Watchdog;
use crate::telemetry::Metrics;

fn wait(text: &str) -> Wait {
    Wait {
        reason: WaitReason::PoolFull,
        text: text.into(),
        cause: text.into(),
    }
}

fn reports(kubernetes: kube::Client) -> WaitReports {
    WaitReports {
        kubernetes,
        leadership: Leadership::always(),
        events: EventPublisher::default(),
        waiting: SharedCache::default(),
        queue: Queue::default(),
    }
}

fn rejected(pool: &str, cidr: &str, refusal: PoolRejection) -> RejectedPool {
    RejectedPool {
        pool: pool.into(),
        cidr: Some(cidr.parse().unwrap()),
        refusal,
    }
}

#[test]
fn reason_within_a_minute_is_told_after_it() {
    let (mut waiting, key, begin) = (
        WaitingServices::default(),
        ObjectKey::namespaced("n", "s"),
        Instant::now(),
    );
    let after = |seconds| begin + Duration::from_secs(seconds);
    let (one, two) = (wait("one"), wait("two"));
    assert_eq!(waiting.set(&key, "u", Some(&one), begin), EventStep::Report);
    waiting.posting(&key, begin);
    waiting.reported(&key, &one, None);
    assert_eq!(
        waiting.set(&key, "u", Some(&one), after(1)),
        EventStep::None
    );
    assert_eq!(
        waiting.set(&key, "u", Some(&two), after(2)),
        EventStep::At(begin + EVENT_INTERVAL)
    );
    assert_eq!(
        waiting.set(&key, "u", Some(&one), after(3)),
        EventStep::None,
        "the Event has this text"
    );
    assert_eq!(
        waiting.set(&key, "u", Some(&two), begin + EVENT_INTERVAL),
        EventStep::Report
    );
    waiting.posting(&key, begin + EVENT_INTERVAL);
    waiting.reported(&key, &two, None);

    // A served Service that waits again, and a later Service of the same name, do not shorten the
    // pause.
    let soon = begin + EVENT_INTERVAL + Duration::from_secs(1);
    assert_eq!(waiting.set(&key, "u", None, soon), EventStep::None);
    assert_eq!(
        waiting.set(&key, "u", Some(&two), soon),
        EventStep::At(begin + EVENT_INTERVAL * 2)
    );
    waiting.reported(&key, &two, None);
    assert_eq!(
        waiting.set(&key, "v", Some(&two), soon),
        EventStep::At(begin + EVENT_INTERVAL * 2)
    );
}

#[test]
fn failed_event_is_posted_again_after_the_pause() {
    let (mut waiting, key, begin) = (
        WaitingServices::default(),
        ObjectKey::namespaced("n", "s"),
        Instant::now(),
    );
    waiting.set(&key, "u", Some(&wait("one")), begin);
    waiting.posting(&key, begin);
    assert_eq!(
        waiting.set(&key, "u", Some(&wait("one")), begin),
        EventStep::At(begin + EVENT_INTERVAL)
    );
    assert_eq!(
        waiting.set(&key, "u", Some(&wait("one")), begin + EVENT_INTERVAL),
        EventStep::Report
    );
}

#[tokio::test(start_paused = true)]
async fn failed_event_is_posted_once_a_minute_and_its_reason_is_logged_once() {
    let posts = Arc::new(AtomicUsize::new(0));
    let counted = posts.clone();
    let reports = reports(refusing_kubernetes(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Err(500)
    }));
    let (key, service) = (
        ObjectKey::namespaced("n", "s"),
        service(json!(["IPv4"]), json!({})),
    );
    let (log, _logging) = Captured::on_this_thread(LogSeverity::Warning);
    for attempts in 1..=3 {
        for _ in 0..2 {
            reports.report(&key, &service, Some(&wait("one"))).await;
            assert_eq!(posts.load(Ordering::Relaxed), attempts);
        }
        advance(EVENT_INTERVAL).await;
        assert_eq!(reports.queue.len(), 1);
    }
    assert_eq!(
        log.from("a LoadBalancer Service waits for an address")
            .len(),
        1,
        "{}",
        log.text()
    );
}

#[test]
fn refused_event_is_posted_again_when_the_namespace_may_accept_it() {
    let (mut waiting, key, begin) = (
        WaitingServices::default(),
        ObjectKey::namespaced("n", "s"),
        Instant::now(),
    );
    let after = |seconds| begin + Duration::from_secs(seconds);
    let (one, two) = (wait("one"), wait("two"));
    assert_eq!(waiting.set(&key, "u", Some(&one), begin), EventStep::Report);
    waiting.posting(&key, begin);
    waiting.reported(&key, &one, Some(after(600)));
    for seconds in [1, 61, 599] {
        assert_eq!(
            waiting.set(&key, "u", Some(&one), after(seconds)),
            EventStep::None
        );
    }
    assert_eq!(
        waiting.set(&key, "u", Some(&one), after(600)),
        EventStep::PostAgain
    );
    assert_eq!(
        waiting.set(&key, "u", Some(&two), after(600)),
        EventStep::Report,
        "the reason is new in the log"
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_metric_is_zero_after_leadership_is_lost() {
    let (sender, term) = watch::channel(LeadershipTerm::Always);
    let (leadership, waiting) = (
        Leadership::new(term),
        SharedCache::<WaitingServices>::default(),
    );
    let (kubernetes, posted) = posting_kubernetes();
    let reports = WaitReports {
        leadership: leadership.clone(),
        waiting: waiting.clone(),
        ..reports(kubernetes)
    };
    let (key, service) = (
        ObjectKey::namespaced("n", "s"),
        service(json!(["IPv4"]), json!({})),
    );
    let count = || {
        waiting
            .lock()
            .metric()
            .with_label_values(&["pool_full"])
            .get()
    };
    let work = async {
        sleep(Duration::from_secs(1)).await;
        reports.report(&key, &service, Some(&wait("one"))).await;
        assert_eq!((count(), posted.lock().unwrap().len()), (1, 1));
        sender.send_replace(LeadershipTerm::No);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(count(), 0);
        reports.report(&key, &service, Some(&wait("two"))).await;
        assert_eq!(
            (count(), posted.lock().unwrap().len()),
            (0, 1),
            "a late worker"
        );
        sender.send_replace(LeadershipTerm::Always);
        sleep(Duration::from_secs(1)).await;
        reports.report(&key, &service, Some(&wait("one"))).await;
        assert_eq!(count(), 1);
    };
    tokio::select! {
        () = work => {}
        () = reset_on_standby(leadership, waiting.clone(), Queue::default()) => {}
    }
}

/// On a standby, the controller of Services waits for the leadership before its first work.
#[tokio::test]
async fn standby_publishes_the_metric_of_waiting_services() {
    let (_dir, calico) = embedded();
    let context = || Context {
        kubernetes: posting_kubernetes().0,
        calico: calico.clone(),
        mode: Mode::Etcd,
        settings: watch::channel(Arc::new(settings())).1,
        leadership: Leadership::new(watch::channel(LeadershipTerm::No).1),
        metrics: Metrics::new(),
        same_cluster: Default::default(),
        watchdog: Watchdog::default(),
        stop: CancellationToken::new(),
    };
    let (serving, reporting) = (context(), context());
    let _serving = LoadBalancer::new(&serving, &mut Watches::default());
    let _reporting = LoadBalancerReport::new(&reporting, &mut Watches::default());
    for metrics in [serving.metrics, reporting.metrics] {
        let text = metrics.text().unwrap();
        for reason in WaitReason::ALL.map(WaitReason::label) {
            let line = format!(
                "kube_controllers_load_balancer_waiting_services{{reason=\"{reason}\"}} 0\n"
            );
            assert!(text.contains(&line), "{text}");
        }
    }
}

/// Shows SEC-24.
#[test]
fn event_text_of_a_large_annotation_is_cut() {
    let large = "\u{1}x".repeat(128 * 1024);
    let listed = |text: &str| serde_json::to_string(&[text]).unwrap();
    for annotations in [
        json!({ADDRESSES: large}),
        json!({ADDRESSES: serde_json::to_string(&large).unwrap()}),
        json!({ADDRESSES: listed(&large)}),
        json!({ADDRESSES: format!(r#"["10.0.0.1",{}"10.0.0.2"]"#, " ".repeat(256 * 1024))}),
        json!({IPV4_POOLS: listed(&large)}),
        json!({IPV6_POOLS: format!("[{}", listed(&large))}),
    ] {
        let error =
            AddressRequest::parse(&service(json!(["IPv4"]), annotations), &pools()).unwrap_err();
        let wait = Wait::invalid_request(&error);
        assert!(
            wait.text.len() < 1024 && wait.cause.len() < 1024,
            "{}",
            wait.text
        );
    }
    let mut other = service(json!(["IPv4"]), json!({ADDRESSES: "[]"}));
    other.request.class = Some(large);
    assert!(Wait::class(&other).unwrap().text.len() < 1024);
}

/// Another program may write a long message into the status of a pool.
#[tokio::test]
async fn text_of_an_event_is_cut_and_told_once() {
    let (kubernetes, posted) = posting_kubernetes();
    let reports = reports(kubernetes);
    let (key, service) = (
        ObjectKey::namespaced("n", "s"),
        service(json!(["IPv4"]), json!({})),
    );
    for _ in 0..2 {
        reports
            .report(&key, &service, Some(&wait(&"x".repeat(5000))))
            .await;
    }
    let lengths: Vec<_> = posted
        .lock()
        .unwrap()
        .iter()
        .map(|event| event["message"].as_str().unwrap().chars().count())
        .collect();
    assert_eq!(lengths, [MAX_TEXT + 1], "with the sign of the cut");
}

#[test]
fn text_of_a_full_pool_contains_the_number_of_serving_pools() {
    let full = PoolRejection::Full {
        in_use: 1,
        capacity: 1,
    };
    for (serving, text) in [
        (
            1,
            "no IPv4 address: 1 IPPool serves this Service, and it is full",
        ),
        (
            3,
            "no IPv4 address: 3 IPPools serve this Service, and all are full",
        ),
    ] {
        let mut refused = vec![rejected("other", "10.9.0.0/24", PoolRejection::Manual)];
        refused
            .extend((0..serving).map(|n| rejected(&format!("p{n}"), "10.0.0.0/24", full.clone())));
        let cause = Exhaustion::PoolsFull { pools: Vec::new() };
        let found = Wait::full(&Shortfall {
            version: IpVersion::V4,
            wanted: 1,
            assigned: 0,
            cause,
            refused,
        });
        assert_eq!(found.text, text);
        assert!(
            found.cause.contains("pool p0 (10.0.0.0/24): full"),
            "{}",
            found.cause
        );
    }
}

/// Shows SEC-23.
#[test]
fn pool_that_the_service_does_not_name_is_in_the_log_only() {
    let refused = vec![
        rejected("named", "10.0.0.0/24", PoolRejection::Disabled),
        rejected("secret", "10.1.0.0/24", PoolRejection::NotRequested),
    ];
    let error = IpamError::Pools(PoolChoiceError {
        cause: NoPool::NoneEnabled,
        refused,
    });
    let text = |pools: Vec<Cidr>| {
        let found = Wait::of_error(
            &error,
            &MissingAddress::Any {
                version: IpVersion::V4,
                pools,
            },
        )
        .unwrap();
        assert!(found.cause.contains("pool secret"), "{}", found.cause);
        found.text
    };
    let unnamed = "no IPv4 address: no IPPool for LoadBalancer serves this Service";
    assert_eq!(text(Vec::new()), unnamed);
    let named = text(vec!["10.0.0.0/24".parse().unwrap()]);
    assert_eq!(
        named,
        format!("{unnamed}: pool named (10.0.0.0/24): it is disabled")
    );
}

/// The range of a request is often mistyped.
#[test]
fn requested_range_without_a_pool_is_named() {
    let cidr = |text: &str| text.parse::<Cidr>().unwrap();
    let refused = || {
        vec![
            rejected("off", "10.0.0.0/24", PoolRejection::Disabled),
            rejected("secret", "10.1.0.0/24", PoolRejection::NotRequested),
        ]
    };
    let unnamed = "no IPv4 address: no IPPool for LoadBalancer serves this Service";
    for (missing, why) in [
        (
            "10.9.0.0/24",
            ": no IPPool has the range 10.9.0.0/24; pool off (10.0.0.0/24): it is disabled",
        ),
        ("10.0.0.0/24", ": pool off (10.0.0.0/24): it is disabled"),
    ] {
        let cause = NoPool::NotEnabled(cidr(missing));
        let error = IpamError::Pools(PoolChoiceError {
            cause,
            refused: refused(),
        });
        let pools = ["10.9.0.0/24", "10.0.0.0/24"].map(cidr).to_vec();
        let found = Wait::of_error(
            &error,
            &MissingAddress::Any {
                version: IpVersion::V4,
                pools,
            },
        )
        .unwrap();
        assert_eq!(found.text, format!("{unnamed}{why}"));
    }
}

/// The block may be a node's, and names of nodes are not for tenants.
#[test]
fn requested_address_in_a_block_of_others_is_told_without_names() {
    let ip: IpAddr = "10.0.0.5".parse().unwrap();
    let requester = AffinityOwner::of_services();
    let (block, other) = (
        "10.0.0.0/26".parse().unwrap(),
        "10.0.0.0/24".parse().unwrap(),
    );
    let strict = "10.0.0.5 is in a block that is not for Services, and affinity is strict";
    let overlap = "10.0.0.5 is in no block, and a new one would overlap with one of another size";
    for (error, text) in [
        (
            IpamError::Block(AssignError::AffinityMismatch {
                affinity: "host:node1".into(),
                requester,
            }),
            strict,
        ),
        (
            IpamError::Block(AssignError::NoAffinity("10.0.0.0/26".into())),
            strict,
        ),
        (IpamError::OverlappingBlock { cidr: block, other }, overlap),
    ] {
        let found = Wait::of_error(&error, &MissingAddress::Address(ip)).unwrap();
        assert_eq!(
            (found.reason, found.text.as_str()),
            (WaitReason::AddressTaken, text)
        );
        assert!(found.cause.contains(&error.to_string()), "{}", found.cause);
    }
    assert_eq!(
        Wait::of_error(
            &IpamError::UnreadableBlock(block),
            &MissingAddress::Address(ip)
        ),
        None
    );
}

/// IPv4 has no pool, and the pools of IPv6 are full.
#[test]
fn dual_stack_service_is_looked_at_when_an_address_of_its_full_family_is_released() {
    let key = ObjectKey::namespaced("n", "s");
    for both in [
        Wait::no_pool().and(wait("full")),
        wait("full").and(Wait::no_pool()),
    ] {
        assert_eq!(both.reason, WaitReason::PoolFull);
        let mut waiting = WaitingServices::default();
        waiting.set(&key, "u", Some(&both), Instant::now());
        assert_eq!(
            waiting.for_a_released_address().collect::<Vec<_>>(),
            [(&key, 0)]
        );
    }
    assert_eq!(
        Wait::no_pool().and(Wait::no_pool()),
        Wait::no_pool(),
        "one text for the same reason of both"
    );
}

/// Takes keys until the key of a Service comes. Returns the number of other keys. The other
/// Services change again as soon as they have been reconciled.
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

/// The Services of one namespace do not delay those of another. Shows SEC-29.
#[tokio::test]
async fn service_beside_a_thousand_waiting_ones_of_another_namespace_waits_for_one_reconcile_of_each_namespace()
 {
    let queue = CachedController::<ServiceReconciler>::unsubscribed().queue;
    let mut cache = cache();
    let ours = AffinityOwner::of_services();
    cache.apply_block(&Event::Upsert(&block(&ours, &["a"])));
    cache.apply_block(&Event::ListEnd);
    let full = wait("full");
    for number in 0..1000 {
        let waiting = ObjectKey::namespaced("greedy", format!("s{number}"));
        cache
            .waiting
            .lock()
            .set(&waiting, "u", Some(&full), Instant::now());
    }
    let released = cache.apply_block(&Event::Delete(&"10.0.0.0/29".parse().unwrap()));
    assert_eq!(
        released.len(),
        2,
        "the Service that has lost its address, and the Service that may take it"
    );
    // All of them return after a loss of the leadership.
    let all = cache.waiting.lock().take_all();
    all.into_iter()
        .chain(released)
        .for_each(|key| queue.add(key));
    for name in ["first", "second"] {
        let new = ObjectKey::namespaced("modest", name);
        queue.add(new.clone());
        let others = taken_before(&queue, &new).await;
        assert!(
            others <= 2,
            "{others} other Services, although there are two other namespaces"
        );
    }
    assert_eq!(queue.len(), 1001);
}
