//! Reports while kube-controllers gives no addresses to Services.

use super::*;
use crate::controllers::load_balancer::not_served::{ReportCache, ReportReconciler};
use crate::controllers::testing::{posting_kubernetes, settings};
use crate::settings::ControllerName;

type Posted = Arc<Mutex<Vec<Value>>>;

fn reconciler(is_enabled: bool) -> (ReportReconciler, Posted) {
    let mut settings = settings();
    match is_enabled {
        true => settings.enabled.insert(ControllerName::LoadBalancer),
        false => settings.enabled.remove(&ControllerName::LoadBalancer),
    };
    let (kubernetes, posted) = posting_kubernetes();
    let reports = WaitReports {
        kubernetes,
        leadership: Leadership::always(),
        events: EventPublisher::default(),
        waiting: SharedCache::default(),
        queue: Queue::default(),
    };
    let cache = SharedCache::<ReportCache>::default();
    (
        ReportReconciler {
            settings: watch::channel(Arc::new(settings)).1,
            cache,
            reports,
        },
        posted,
    )
}

fn messages(posted: &Posted) -> Vec<String> {
    posted
        .lock()
        .unwrap()
        .iter()
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn missing_role_or_setting_is_told_to_services_once() {
    for (is_enabled, cause) in [
        (
            true,
            "the role calico-kube-controllers-load-balancer is not bound",
        ),
        (
            false,
            "the controller loadbalancer is off; see ENABLED_CONTROLLERS and the \
             KubeControllersConfiguration",
        ),
    ] {
        let (reconciler, posted) = reconciler(is_enabled);
        let key = ObjectKey::namespaced("n", "a");
        assert_eq!(
            reconciler
                .cache
                .lock()
                .apply_service(&Event::Upsert(&watched("a", "1"))),
            []
        );
        assert_eq!(reconciler.cache.lock().apply_service(&Event::ListEnd), []);
        assert_eq!(
            reconciler
                .cache
                .lock()
                .apply_pool(&Event::Upsert(&stored_pool())),
            []
        );
        assert_eq!(
            reconciler.cache.lock().apply_pool(&Event::ListEnd),
            std::slice::from_ref(&key)
        );
        for _ in 0..2 {
            assert_eq!(
                reconciler.reconcile(&key).await.unwrap(),
                NextReconcile::AwaitChange
            );
        }
        assert_eq!(
            messages(&posted),
            [format!("kube-controllers gives no addresses: {cause}")]
        );
    }
}

#[tokio::test]
async fn services_of_others_have_no_report() {
    let entry = |entry: Value| serde_json::from_value(json!({"ingress": [entry]})).unwrap();
    let of_class =
        json!({"type": "LoadBalancer", "ipFamilies": ["IPv4"], "loadBalancerClass": "other"});
    let services = [
        Service {
            load_balancer: entry(json!({"hostname": "h"})),
            ..watched("a", "1")
        },
        Service {
            load_balancer: entry(json!({"ip": "192.0.2.1"})),
            ..watched("a", "1")
        },
        Service {
            spec: serde_json::from_value(of_class).unwrap(),
            ..watched("a", "1")
        },
    ];
    let key = ObjectKey::namespaced("n", "a");
    for service in services {
        let (reconciler, posted) = reconciler(false);
        reconciler
            .cache
            .lock()
            .apply_pool(&Event::Upsert(&stored_pool()));
        reconciler.cache.lock().apply_pool(&Event::ListEnd);
        assert_eq!(
            reconciler
                .cache
                .lock()
                .apply_service(&Event::Upsert(&service)),
            std::slice::from_ref(&key)
        );
        reconciler.reconcile(&key).await.unwrap();
        assert_eq!(messages(&posted), [""; 0]);
    }
}

#[tokio::test]
async fn cluster_without_a_pool_for_services_has_no_report() {
    let (reconciler, posted) = reconciler(false);
    reconciler.cache.lock().apply_pool(&Event::ListEnd);
    let changed = reconciler
        .cache
        .lock()
        .apply_service(&Event::Upsert(&watched("a", "1")));
    reconciler.reconcile(&changed[0]).await.unwrap();
    assert_eq!(messages(&posted), [""; 0]);
}
