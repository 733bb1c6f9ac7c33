//! A Service that waits for an address has one Event with the reason.

use super::*;
use crate::logging::captured::Captured;
use crate::settings::LogSeverity;

fn key() -> ObjectKey {
    ObjectKey::namespaced("n", "s")
}

pub(super) fn pool_of_one_address() -> IpPool {
    let spec = json!({"cidr": "10.0.0.5/32", "blockSize": 32, "allowedUses": ["LoadBalancer"]});
    IpPool::new("p", serde_json::from_value(spec).unwrap())
}

fn of_class(class: &str, annotations: Value) -> Value {
    let mut service = stored_service(annotations);
    service["spec"]["loadBalancerClass"] = json!(class);
    service
}

impl Serving {
    /// Assigns the address 10.0.0.5 to the Service `other` of the namespace.
    async fn take_address(&self, namespace: &str) {
        self.take("10.0.0.5", namespace).await;
    }

    /// Assigns an address to the Service `other` of the namespace.
    pub(super) async fn take(&self, ip: &str, namespace: &str) {
        let (other, handle) = (
            ObjectKey::namespaced(namespace, "other"),
            HandleId::new("lb-other"),
        );
        let missing = [MissingAddress::Address(ip.parse().unwrap())];
        self.reconciler
            .addresses
            .assign(&other, &handle, &missing, Labels::new())
            .await
            .unwrap();
    }

    /// Lets the time pass after which the Service may have another Event.
    pub(super) fn pass_the_pause(&self) {
        self.reconciler
            .reports
            .waiting
            .lock()
            .posting(&key(), Instant::now() - EVENT_INTERVAL);
    }

    /// Returns reasons and texts of the Events.
    fn events(&self) -> Vec<(String, String)> {
        let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
        let server = self.server.lock().unwrap();
        server
            .events
            .iter()
            .map(|event| (text(event, "reason"), text(event, "message")))
            .collect()
    }

    fn posts(&self) -> usize {
        self.server.lock().unwrap().posts
    }

    fn waiting_for(&self, reason: WaitReason) -> i64 {
        self.reconciler
            .reports
            .waiting
            .lock()
            .metric()
            .with_label_values(&[reason.label()])
            .get()
    }

    /// Returns true if the Service is to be reconciled when the next Event may be posted.
    fn is_due_later(&self) -> bool {
        let (now, due) = (
            Instant::now(),
            self.reconciler.reports.queue.first_deadline(),
        );
        due.is_some_and(|due| due > now && due <= now + EVENT_INTERVAL)
    }

    /// Reconciles after the watches have delivered everything.
    pub(super) async fn look(&self) -> NextReconcile {
        self.on_event().await;
        self.reconcile().await.unwrap()
    }
}

#[tokio::test]
async fn each_reason_is_told_once() {
    let unknown = json!({"controllers": {"loadBalancer": {"assignIPs": "Allservices"}}});
    for (service, pools, taken_in, reason, text) in [
        (
            stored_service(wants("10.0.0.5")),
            vec![],
            None,
            WaitReason::NoPool,
            "no IPPool for LoadBalancer serves",
        ),
        (
            stored_service(wants("10.1.0.5")),
            vec![stored_pool().value],
            None,
            WaitReason::NoPool,
            "no IPPool for LoadBalancer serves 10.1.0.5",
        ),
        (
            stored_service(json!({})),
            vec![pool_of_one_address()],
            Some("n"),
            WaitReason::PoolFull,
            "no IPv4 address: 1 IPPool serves this Service, and it is full",
        ),
        (
            stored_service(wants("10.0.0.5")),
            vec![stored_pool().value],
            Some("n"),
            WaitReason::AddressTaken,
            "service n/other",
        ),
        (
            stored_service(wants("10.0.0.5")),
            vec![stored_pool().value],
            Some("bank"),
            WaitReason::AddressTaken,
            "10.0.0.5 is held by another namespace",
        ),
        (
            stored_service(json!({ADDRESSES: "10.0.0.5"})),
            vec![stored_pool().value],
            None,
            WaitReason::InvalidRequest,
            "with brackets and quotes: ",
        ),
        (
            of_class("other", wants("10.0.0.5")),
            vec![stored_pool().value],
            None,
            WaitReason::Class,
            "loadBalancerClass \"other\" is not calico",
        ),
        (
            stored_service(json!({})),
            vec![stored_pool().value],
            None,
            WaitReason::NotEnabled,
            "loadBalancer.assignIPs has an unknown value",
        ),
    ] {
        let mut serving = Serving::new(service, &pools).await;
        if reason == WaitReason::NotEnabled {
            serving.reconciler.context.settings =
                watch::channel(Arc::new(configured(unknown.clone()))).1;
        }
        if let Some(namespace) = taken_in {
            serving.take_address(namespace).await;
        }
        let (log, _logging) = Captured::on_this_thread(LogSeverity::Warning);
        for looks in 1..=3 {
            assert_eq!(
                serving.look().await,
                NextReconcile::AwaitChange,
                "{reason:?}"
            );
            let counts = (
                serving.events().len(),
                serving.posts(),
                serving.waiting_for(reason),
            );
            assert_eq!(counts, (1, 1, 1), "{reason:?} after look {looks}");
        }
        let events = serving.events();
        assert!(
            events[0].0 == reason.event() && events[0].1.contains(text),
            "{events:?}"
        );
        let counted = WaitReason::ALL.map(|other| serving.waiting_for(other));
        assert_eq!(
            counted,
            WaitReason::ALL.map(|other| i64::from(other == reason))
        );
        let event = serving.server.lock().unwrap().events[0].clone();
        assert_eq!(
            (&event["involvedObject"]["uid"], &event["type"]),
            (&json!("u"), &json!("Warning")),
            "{event}"
        );
        let [line] = &log.from("a LoadBalancer Service waits for an address")[..] else {
            panic!("{}", log.text())
        };
        assert!(
            line.ends_with(&format!(" reason={:?} service=n/s", reason.label())),
            "{line}"
        );
        // The log names also the pool, and the owner in another namespace.
        let whole = match (reason, taken_in) {
            (WaitReason::PoolFull, _) => "pool p (10.0.0.5/32): ".to_owned(),
            (_, Some(namespace)) => format!("service {namespace}/other"),
            (_, None) => " cause=\"".to_owned(),
        };
        assert!(line.contains(&whole), "{whole} is not in {line}");
    }
}

#[tokio::test]
async fn changed_reason_is_told_again() {
    let serving = Serving::new(stored_service(wants("10.0.0.5")), &[stored_pool().value]).await;
    serving.take_address("n").await;
    serving.look().await;
    serving.annotate(json!({ADDRESSES: "x"}));
    assert!(!serving.is_due_later());
    serving.look().await;
    assert_eq!(
        (serving.events().len(), serving.is_due_later()),
        (1, true),
        "the Event is too young"
    );
    serving.pass_the_pause();
    assert_eq!(serving.look().await, NextReconcile::AwaitChange);
    let reasons: Vec<String> = serving
        .events()
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert_eq!(reasons, texts(&["AddressTaken", "InvalidAddressRequest"]));
    assert_eq!(
        (
            serving.waiting_for(WaitReason::AddressTaken),
            serving.waiting_for(WaitReason::InvalidRequest)
        ),
        (0, 1)
    );

    serving.annotate(wants("10.0.0.6"));
    serving.look().await;
    assert_eq!(
        (serving.shown(), serving.events().len()),
        (texts(&["10.0.0.6"]), 2),
        "a served Service has no new Event"
    );
    assert_eq!(
        WaitReason::ALL.map(|reason| serving.waiting_for(reason)),
        [0; 6]
    );
}

/// Each change of the request has another text. Shows SEC-24.
#[tokio::test]
async fn flapping_request_posts_one_event_a_minute() {
    let serving = Serving::new(stored_service(json!({})), &[stored_pool().value]).await;
    for minute in 1..=3 {
        for round in 0..5 {
            serving.annotate(json!({ADDRESSES: format!("{minute} {round}")}));
            serving.look().await;
            serving.annotate(wants("10.0.0.5"));
            serving.look().await;
        }
        assert_eq!(serving.posts(), minute);
        serving.pass_the_pause();
    }
}

#[tokio::test]
async fn foreign_class_without_our_annotations_is_silent() {
    let mut with_address = of_class("other", json!({}));
    with_address["spec"]["loadBalancerIP"] = json!("10.0.0.5");
    for service in [of_class("other", json!({})), with_address] {
        let serving = Serving::new(service, &[stored_pool().value]).await;
        assert_eq!(serving.look().await, NextReconcile::AwaitChange);
        assert_eq!(serving.posts(), 0);
    }
}

#[tokio::test]
async fn service_without_a_request_is_silent_in_a_cluster_without_pools() {
    let serving = Serving::new(stored_service(json!({})), &[]).await;
    assert_eq!(serving.look().await, NextReconcile::AwaitChange);
    assert_eq!(
        (serving.posts(), serving.waiting_for(WaitReason::NoPool)),
        (0, 0)
    );
}

#[tokio::test]
async fn served_service_posts_no_event() {
    let serving = Serving::served(wants("10.0.0.5")).await;
    serving.look().await;
    assert_eq!(serving.posts(), 0);
}

/// The name of the Event is the same on each replica, so the API server has one.
#[tokio::test]
async fn next_leader_finds_the_event_of_the_former_leader() {
    let serving = Serving::new(stored_service(wants("10.0.0.5")), &[]).await;
    serving.look().await;
    let next = reconciler(&serving.server, &serving.calico);
    serving.tell(&next).await;
    for _ in 0..2 {
        assert_eq!(
            next.reconcile(&key()).await.unwrap(),
            NextReconcile::AwaitChange
        );
    }
    assert_eq!((serving.events().len(), serving.posts()), (1, 2));
}

#[tokio::test]
async fn waiting_family_of_a_dual_stack_service_is_told_beside_the_served_one() {
    let mut service = stored_service(json!({}));
    service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    let serving = Serving::new(service, &[stored_pool().value]).await;
    serving.look().await;
    serving.look().await;
    assert_eq!(serving.shown().len(), 1);
    let events = serving.events();
    assert!(
        events.len() == 1 && events[0].1.starts_with("no IPv6 address: "),
        "{events:?}"
    );
    assert_eq!(serving.waiting_for(WaitReason::NoPool), 1);
}

/// The requested IPv4 address has another owner, and the block of the requested IPv6 address is
/// damaged.
#[tokio::test]
async fn wait_beside_a_permanent_failure_is_reported_at_once_and_a_change_after_the_interval() {
    let requests = |ip: &str| json!({ADDRESSES: format!("[{ip:?},\"fd00::5\"]")});
    let v6 = json!({"cidr": "fd00::/112", "allowedUses": ["LoadBalancer"]});
    let pools = [
        stored_pool().value,
        IpPool::new("v6", serde_json::from_value(v6).unwrap()),
    ];
    let serving = Serving::new(stored_service(requests("10.0.0.5")), &pools).await;
    serving.take("10.0.0.5", "n").await;
    serving.take("10.0.0.7", "n").await;
    let damaged: Cidr = "fd00::/122".parse().unwrap();
    let (kind, path, op) = (
        Block::KIND,
        Block::path(&damaged),
        WriteOp::Create(b"\"no block\"".to_vec()),
    );
    serving
        .calico
        .write_one(Write {
            kind,
            path,
            key: damaged.to_string(),
            op,
        })
        .await
        .unwrap();
    let fails = async || {
        serving.on_event().await;
        let failure = serving.reconcile().await.unwrap_err();
        assert!(matches!(failure, ReconcileError::Permanent(_)), "{failure}");
    };
    for _ in 0..2 {
        fails().await;
        let events = serving.events();
        assert!(
            events.len() == 1 && events[0].1.starts_with("10.0.0.5 is held by "),
            "{events:?}"
        );
    }
    assert!(!serving.is_due_later());

    serving.annotate(requests("10.0.0.7"));
    fails().await;
    assert_eq!((serving.posts(), serving.is_due_later()), (1, true));
    serving.pass_the_pause();
    for _ in 0..2 {
        fails().await;
        assert_eq!(serving.posts(), 2);
    }
    assert!(
        serving.events()[1].1.starts_with("10.0.0.7 is held by "),
        "{:?}",
        serving.events()
    );
}

#[tokio::test]
async fn wait_is_reported_also_if_the_write_of_the_status_conflicts() {
    let mut service = stored_service(json!({}));
    service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    let serving = Serving::new(service, &[stored_pool().value]).await;
    serving.server.lock().unwrap().after_read =
        Some(|service| service["metadata"]["labels"] = json!({"a": "b"}));
    let failure = serving.reconcile().await.unwrap_err();
    assert!(matches!(failure, ReconcileError::Retry(_)), "{failure}");
    assert_eq!((serving.shown().len(), serving.events().len()), (0, 1));
}

/// The watch has not delivered the change yet.
#[tokio::test]
async fn invalid_request_in_the_live_service_is_reported_at_once() {
    let serving = Serving::new(stored_service(wants("10.0.0.5")), &[stored_pool().value]).await;
    serving.annotate(json!({ADDRESSES: "10.0.0.5"}));
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert_eq!(
        (
            serving.events().len(),
            serving.waiting_for(WaitReason::InvalidRequest)
        ),
        (1, 1)
    );
    serving.look().await;
    assert_eq!(serving.posts(), 1);
}
