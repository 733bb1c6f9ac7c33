//! A Service has at most one address of each family, and keeps a published address until another
//! address is published.

use tokio::sync::Barrier;

use super::*;

fn pool(name: &str, cidr: &str, mode: &str) -> IpPool {
    let spec = json!({"cidr": cidr, "allowedUses": ["LoadBalancer"], "assignmentMode": mode});
    IpPool::new(name, serde_json::from_value(spec).unwrap())
}

pub(super) fn three_pools() -> [IpPool; 3] {
    [
        pool("v4", "10.0.0.0/24", "Automatic"),
        pool("manual", "10.9.0.0/24", "Manual"),
        pool("v6", "fd00::/112", "Automatic"),
    ]
}

impl Serving {
    /// Reconciles until nothing changes. Returns the number of status writes.
    pub(super) async fn settle(&self) -> usize {
        for _ in 0..10 {
            let before = self.state().await;
            self.on_event().await;
            _ = self.reconcile().await;
            if self.state().await == before {
                return self.written().len();
            }
        }
        panic!(
            "it never settles: {} writes of the status",
            self.written().len()
        );
    }

    async fn state(&self) -> (Value, Vec<Entry<Block>>) {
        let service = self.server.lock().unwrap().service.clone();
        (service, self.calico.list::<Block>(&None).await.unwrap())
    }

    pub(super) fn spec(&self, field: &str, value: Value) {
        let mut server = self.server.lock().unwrap();
        server.service["spec"]
            .as_object_mut()
            .unwrap()
            .insert(field.to_owned(), value);
    }

    pub(super) async fn assign(&self, ips: &[&str]) {
        let service = self.server.lock().unwrap().service.clone();
        let handle = LoadBalancerService::live(&serde_json::from_value(service).unwrap())
            .unwrap()
            .handle;
        for ip in ips {
            let missing = [MissingAddress::Address(ip.parse().unwrap())];
            let key = ObjectKey::namespaced("n", "s");
            self.reconciler
                .addresses
                .assign(&key, &handle, &missing, Labels::new())
                .await
                .unwrap();
        }
    }

    pub(super) fn publish(&self, ips: &[&str]) {
        let entries: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        self.server.lock().unwrap().service["status"] =
            json!({"loadBalancer": {"ingress": entries}});
    }
}

#[tokio::test]
async fn dual_stack_service_with_pools_of_a_single_family_gets_both_families() {
    for (pools, v4, v6) in [
        (json!({IPV4_POOLS: r#"["manual"]"#}), "10.9.0.", "fd00::"),
        (json!({IPV6_POOLS: r#"["v6"]"#}), "10.0.0.", "fd00::"),
        (json!({}), "10.0.0.", "fd00::"),
    ] {
        let serving = Serving::new(stored_service(pools.clone()), &three_pools()).await;
        serving.spec("ipFamilies", json!(["IPv4", "IPv6"]));
        assert_eq!(serving.settle().await, 1, "{pools}");
        let shown = serving.shown();
        assert!(
            shown.len() == 2 && shown[0].starts_with(v4) && shown[1].starts_with(v6),
            "{pools}: {shown:?}"
        );
        assert_eq!(serving.held().await, shown);
    }
}

#[tokio::test]
async fn pool_list_of_the_other_family_releases_no_address() {
    let serving = Serving::new(
        stored_service(json!({IPV6_POOLS: r#"["v6"]"#})),
        &three_pools(),
    )
    .await;
    assert_eq!(serving.settle().await, 1);
    assert!(
        serving.shown()[0].starts_with("10.0.0."),
        "{:?}",
        serving.shown()
    );
}

#[tokio::test]
async fn changed_load_balancer_ip_replaces_the_address() {
    let serving = Serving::new(stored_service(json!({})), &three_pools()).await;
    for ip in ["10.0.0.5", "10.0.0.6", "10.9.0.7"] {
        serving.spec("loadBalancerIP", json!(ip));
        assert_eq!(
            serving.settle().await,
            1,
            "one write takes the old address away and shows the new one"
        );
        assert_eq!(
            (serving.shown(), serving.held().await),
            (texts(&[ip]), texts(&[ip]))
        );
    }
    // The address is from a manual pool, which the Service no longer requests.
    serving.spec("loadBalancerIP", Value::Null);
    assert_eq!(serving.settle().await, 1);
    assert!(
        serving.shown()[0].starts_with("10.0.0."),
        "{:?}",
        serving.shown()
    );
    assert_eq!(serving.held().await, serving.shown());
}

#[tokio::test]
async fn removed_load_balancer_ip_retains_the_address() {
    let serving = Serving::new(stored_service(json!({})), &three_pools()).await;
    serving.spec("loadBalancerIP", json!("10.0.0.5"));
    serving.settle().await;
    serving.spec("loadBalancerIP", Value::Null);
    assert_eq!(serving.settle().await, 0);
    assert_eq!(
        (serving.shown(), serving.held().await),
        (texts(&["10.0.0.5"]), texts(&["10.0.0.5"]))
    );
}

#[tokio::test]
async fn published_address_stays_while_the_requested_address_is_unavailable() {
    for asked in [json!({}), wants("10.0.0.5")] {
        let serving = Serving::new(stored_service(asked), &three_pools()).await;
        serving.spec("loadBalancerIP", json!("10.0.0.5"));
        serving.settle().await;
        // The address is in no pool, so it can never be assigned.
        serving.spec("loadBalancerIP", json!("172.16.0.1"));
        if serving.server.lock().unwrap().service["metadata"]["annotations"] != json!({}) {
            serving.annotate(wants("172.16.0.1"));
        }
        assert_eq!(serving.settle().await, 0);
        assert_eq!(
            (serving.shown(), serving.held().await),
            (texts(&["10.0.0.5"]), texts(&["10.0.0.5"]))
        );
    }
}

/// Shows SEC-65.
#[tokio::test]
async fn new_address_is_published_before_the_old_address_is_released() {
    let serving = Serving::served(wants("10.0.0.5")).await;
    serving.annotate(wants("10.0.0.7"));
    serving.settle().await;
    assert_eq!(serving.held().await, texts(&["10.0.0.7"]));
    serving.annotate(wants("10.0.0.8"));
    serving.on_event().await;
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert_eq!(
        serving.written(),
        [(texts(&["10.0.0.8"]), texts(&["10.0.0.7", "10.0.0.8"]))]
    );
    assert_eq!(serving.held().await, texts(&["10.0.0.8"]));
}

#[tokio::test]
async fn surplus_release_retains_the_requested_published_or_oldest_address() {
    for (asked, published, kept) in [
        (Value::Null, &[][..], "10.0.0.9"),
        (Value::Null, &["10.0.0.3"], "10.0.0.3"),
        (Value::Null, &["10.0.0.3", "10.0.0.5"], "10.0.0.5"),
        (json!("10.0.0.3"), &["10.0.0.5"], "10.0.0.3"),
    ] {
        let serving = Serving::new(stored_service(json!({})), &three_pools()).await;
        serving
            .assign(&["10.0.0.9", "10.0.0.5", "10.0.0.3", "fd00::9", "fd00::3"])
            .await;
        serving.spec("ipFamilies", json!(["IPv4", "IPv6"]));
        serving.spec("loadBalancerIP", asked.clone());
        serving.publish(published);
        assert_eq!(serving.settle().await, 1);
        let both = texts(&[kept, "fd00::9"]);
        assert_eq!(
            (serving.shown(), serving.held().await),
            (both.clone(), both),
            "{asked} {published:?}"
        );
    }
}

/// The pool of the published address is being deleted, and waits for that address.
#[tokio::test]
async fn surplus_release_retains_the_address_of_an_existing_pool() {
    let [v4, _, _] = three_pools();
    let serving = Serving::new(
        stored_service(json!({})),
        &[v4, pool("old", "172.16.0.0/24", "Automatic")],
    )
    .await;
    serving.assign(&["172.16.0.1"]).await;
    serving.publish(&["172.16.0.1"]);
    serving
        .calico
        .delete::<IpPool>(&ObjectKey::global("old"), None)
        .await
        .unwrap();
    assert_eq!(
        serving.settle().await,
        0,
        "a Service keeps its only address"
    );
    serving.assign(&["10.0.0.9"]).await;
    assert_eq!(serving.settle().await, 1);
    assert_eq!(
        (serving.shown(), serving.held().await),
        (texts(&["10.0.0.9"]), texts(&["10.0.0.9"]))
    );
}

/// Both replicas find that the Service has no address, and both assign one.
#[tokio::test]
async fn racing_writers_end_with_a_single_service_address() {
    let serving = Serving::new(stored_service(json!({})), &three_pools()).await;
    let second = reconciler(&serving.server, &serving.calico);
    serving.tell(&second).await;
    serving.server.lock().unwrap().meeting = Some(Arc::new(Barrier::new(2)));
    let key = ObjectKey::namespaced("n", "s");
    _ = tokio::join!(serving.reconcile(), second.reconcile(&key));
    serving.server.lock().unwrap().meeting = None;
    for _ in 0..3 {
        serving.on_event().await;
        serving.tell(&second).await;
        _ = tokio::join!(serving.reconcile(), second.reconcile(&key));
    }
    assert_eq!(serving.settle().await, 1, "who lost wrote nothing");
    assert_eq!(
        (serving.held().await.len(), serving.held().await),
        (1, serving.shown())
    );
}

/// Another writer has assigned the address that the Service requests now, and the status needs no
/// write.
#[tokio::test]
async fn foreign_address_is_retained_when_the_service_changed_after_the_read() {
    let serving = Serving::new(stored_service(json!({})), &three_pools()).await;
    serving.assign(&["10.0.0.5", "10.0.0.9"]).await;
    serving.publish(&["10.0.0.5"]);
    serving.on_event().await;
    serving.server.lock().unwrap().after_read =
        Some(|service| service["spec"]["loadBalancerIP"] = json!("10.0.0.9"));
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::After(CACHE_LAG)
    );
    assert_eq!(serving.held().await, texts(&["10.0.0.5", "10.0.0.9"]));
    assert_eq!(serving.settle().await, 1);
    assert_eq!(
        (serving.shown(), serving.held().await),
        (texts(&["10.0.0.9"]), texts(&["10.0.0.9"]))
    );
}

#[tokio::test]
async fn address_is_retained_when_the_service_is_managed_again_after_the_read() {
    let serving = Serving::new(stored_service(json!({})), &three_pools()).await;
    serving.assign(&["10.0.0.5"]).await;
    serving.spec("loadBalancerClass", json!("other"));
    serving.server.lock().unwrap().service["status"] = json!({"loadBalancer": {}});
    serving.on_event().await;
    serving.server.lock().unwrap().after_read = Some(|service| {
        service["spec"]["loadBalancerClass"] = Value::Null;
        service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.5"}]}});
    });
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::After(CACHE_LAG)
    );
    assert_eq!(serving.settle().await, 0);
    assert_eq!(
        (serving.shown(), serving.held().await),
        (texts(&["10.0.0.5"]), texts(&["10.0.0.5"]))
    );
}
