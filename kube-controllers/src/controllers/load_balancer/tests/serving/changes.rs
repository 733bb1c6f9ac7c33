//! A Service whose type, class or families change has exactly the addresses that it may have
//! afterwards.

use super::families::service_of;
use super::trimming::three_pools;
use super::*;

impl Serving {
    /// Returns all addresses that are allocated, and that no cooldown holds.
    async fn allocated(&self) -> Vec<String> {
        let blocks = self.calico.list::<Block>(&None).await.unwrap();
        let held = blocks
            .iter()
            .flat_map(|block| block.value.allocated().filter(|held| !held.is_cooling()));
        held.map(|held| held.ip.to_string()).collect()
    }

    /// Asserts that the Service has one address of each of these prefixes, and no other address is
    /// allocated.
    #[track_caller]
    fn assert_has(&self, allocated: &[String], prefixes: &[&str], change: &str) {
        let shown = self.shown();
        assert_eq!(shown, allocated, "{change}");
        let is_served = |(ip, prefix): (&String, &&str)| ip.starts_with(*prefix);
        assert!(
            shown.len() == prefixes.len() && shown.iter().zip(prefixes).all(is_served),
            "{change}: {shown:?}"
        );
    }
}

#[tokio::test]
async fn change_of_the_type_releases_and_assigns_addresses() {
    let serving = Serving::new(service_of(json!(["IPv4", "IPv6"])), &three_pools()).await;
    serving.settle().await;
    for other in ["NodePort", "ClusterIP", "ExternalName"] {
        serving.assert_has(&serving.allocated().await, &["10.0.0.", "fd00::"], other);
        serving.spec("type", json!(other));
        // The API server removes the status of a Service whose type is no longer LoadBalancer.
        serving.server.lock().unwrap().service["status"] = json!({"loadBalancer": {}});
        assert_eq!(serving.settle().await, 0);
        serving.assert_has(&serving.allocated().await, &[], other);
        serving.spec("type", json!("LoadBalancer"));
        assert_eq!(serving.settle().await, 1, "one write shows both addresses");
    }
    serving.assert_has(
        &serving.allocated().await,
        &["10.0.0.", "fd00::"],
        "LoadBalancer",
    );
}

#[tokio::test]
async fn change_of_the_class_releases_and_assigns_addresses() {
    let serving = Serving::new(service_of(json!(["IPv4"])), &three_pools()).await;
    serving.settle().await;
    let served = &["10.0.0."][..];
    for (class, prefixes, writes) in [
        (json!("calico"), served, 0),
        (json!("other"), &[], 1),
        (json!("another"), &[], 0),
        (json!("calico"), served, 1),
        (Value::Null, served, 0),
        (json!("other"), &[], 1),
        (Value::Null, served, 1),
    ] {
        serving.spec("loadBalancerClass", class.clone());
        assert_eq!(serving.settle().await, writes, "{class}");
        serving.assert_has(&serving.allocated().await, prefixes, &class.to_string());
    }
}

#[tokio::test]
async fn each_change_of_the_families_is_one_write_of_the_status() {
    let (v4, v6) = ("10.0.0.", "fd00::");
    let all = [
        (json!(["IPv4"]), &[v4][..]),
        (json!(["IPv6"]), &[v6]),
        (json!(["IPv4", "IPv6"]), &[v4, v6]),
        (json!(["IPv6", "IPv4"]), &[v4, v6]),
    ];
    for (before, had) in &all {
        for (after, has) in &all {
            let serving = Serving::new(service_of(before.clone()), &three_pools()).await;
            serving.settle().await;
            let (change, first) = (format!("{before} to {after}"), serving.shown());
            serving.assert_has(&serving.allocated().await, had, &change);
            serving.spec("ipFamilies", after.clone());
            assert_eq!(serving.settle().await, usize::from(had != has), "{change}");
            serving.assert_has(&serving.allocated().await, has, &change);
            let stays = |ip: &String| {
                !has.iter().any(|prefix| ip.starts_with(prefix)) || serving.shown().contains(ip)
            };
            assert!(
                first.iter().all(stays),
                "{change}: the address of a family that stays is the same"
            );
        }
    }
}
