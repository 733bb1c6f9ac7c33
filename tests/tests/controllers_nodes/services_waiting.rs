//! Services that wait for an address say why: by Events, which the audit log of the API server
//! counts, and by a metric.

use integration_tests::kubernetes::Request;
use kube_controllers::settings::ControllerName;
use libcalico::api::IpPoolSpec;
use serde_json::{Value, json};

use crate::scene::{Running, Scene, becomes, stays};
use crate::services::{SERVICES, wants};

const REASONS: [&str; 6] = [
    "no_pool",
    "pool_full",
    "address_taken",
    "invalid_request",
    "class",
    "not_enabled",
];

impl Scene {
    /// Returns the Events of a Service, each as `Reason: text`.
    fn events(&self, service: &str) -> Vec<String> {
        let events = self.admin.events_of_controllers("default").unwrap();
        let of_service = |event: &&Value| {
            event["involvedObject"]["kind"] == "Service"
                && event["involvedObject"]["name"] == service
        };
        let text = |event: &Value| {
            format!(
                "{}: {}",
                event["reason"].as_str().unwrap(),
                event["message"].as_str().unwrap()
            )
        };
        events.iter().filter(of_service).map(text).collect()
    }

    #[track_caller]
    fn awaits_event(&self, service: &str, text: &str) {
        let has_text = || {
            self.events(service)
                .iter()
                .any(|event| event.contains(text))
        };
        becomes((true, Vec::new()), || {
            (
                has_text(),
                if has_text() {
                    Vec::new()
                } else {
                    self.events(service)
                },
            )
        });
    }

    /// Returns the number of attempts to create an Event.
    fn posts(&self) -> usize {
        let requests = self.audit.requests().unwrap();
        let of_events =
            |request: &&Request| request.resource == "events" && request.verb == "create";
        requests.iter().filter(of_events).count()
    }

    fn one_address(&self) {
        self.pool("one", "10.7.0.4/32", json!({"blockSize": 32}));
    }
}

impl Running {
    /// Returns true if the metric has these numbers, in the order of [`REASONS`].
    fn counts(&self, numbers: [u32; 6]) -> bool {
        let line = |(reason, number): (&str, u32)| {
            format!(
                "kube_controllers_load_balancer_waiting_services{{reason=\"{reason}\"}} {number}"
            )
        };
        REASONS
            .into_iter()
            .zip(numbers)
            .all(|pair| self.measures(&line(pair)))
    }
}

fn of_class(class: &str) -> Value {
    json!({"loadBalancerClass": class})
}

#[on(etcd, kubernetes_v1, kubernetes_v3)]
fn services_say_why_they_wait(scene: &Scene) {
    let running = scene.start(|_| ());
    becomes(true, || running.counts([0; 6]));
    scene.service("asks", wants("10.8.0.2"), json!({}));
    scene.awaits_event(
        "asks",
        "NoIPPool: no address: no IPPool for LoadBalancer serves this Service",
    );
    scene.service(
        "broken",
        json!({"projectcalico.org/loadBalancerIPs": "10.8.0.1"}),
        json!({}),
    );
    scene.service("foreign", wants("10.8.0.2"), of_class("example.com/other"));
    scene.service("others", json!({}), of_class("example.com/other"));
    scene.awaits_event(
        "foreign",
        "ClassNotServed: loadBalancerClass \"example.com/other\" is not calico",
    );
    becomes(true, || running.counts([2, 0, 0, 0, 1, 0]));

    scene.one_address();
    scene.awaits_event(
        "broken",
        "NoIPPool: no address: no IPPool for LoadBalancer serves this Service",
    );
    becomes(true, || running.counts([1, 0, 0, 1, 1, 0]));
    scene.service("first", json!({}), json!({}));
    becomes(1, || scene.shown("first").len());
    scene.service("second", json!({}), json!({}));
    scene.awaits_event(
        "second",
        "IPPoolFull: no IPv4 address: 1 IPPool serves this Service, and it is full",
    );
    scene.service("third", wants("10.7.0.4"), json!({}));
    scene.awaits_event("third", "AddressTaken: 10.7.0.4 is held by ");
    scene.awaits_event("third", "service default/first");
    scene.service(
        "malformed",
        json!({"projectcalico.org/ipv4pools": "[\"no-pool\"]"}),
        json!({}),
    );
    scene.awaits_event(
        "malformed",
        "InvalidAddressRequest: projectcalico.org/ipv4pools: \"no-pool\" is neither",
    );
    becomes(true, || running.counts([1, 1, 1, 2, 1, 0]));
    for silent in ["first", "others"] {
        assert_eq!(scene.events(silent), Vec::<String>::new());
    }

    scene.remove("first");
    becomes(1, || {
        scene.shown("second").len() + scene.shown("third").len()
    });
    running.set(|settings| settings.assign_ips = None);
    scene.service("late", json!({}), json!({}));
    scene.awaits_event(
        "late",
        "LoadBalancerNotEnabled: kube-controllers gives no addresses: loadBalancer.assignIPs",
    );
    for name in [
        "asks",
        "broken",
        "foreign",
        "second",
        "third",
        "malformed",
        "late",
    ] {
        scene.remove(name);
    }
    becomes(true, || running.counts([0; 6]));
}

#[on(etcd, kubernetes_v1, kubernetes_v3)]
fn served_services_post_no_event(scene: &Scene) {
    scene.pool("auto", "10.7.0.0/28", json!({"blockSize": 28}));
    let running = scene.start(|_| ());
    scene.service("web", json!({}), json!({}));
    scene.service("asked", wants("10.7.0.7"), json!({}));
    scene.service("others", json!({}), of_class("example.com/other"));
    becomes(2, || scene.shown("web").len() + scene.shown("asked").len());
    scene.remove("web");
    stays(0, || scene.posts());
    assert!(running.counts([0; 6]));
}

#[on(etcd, kubernetes_v3)]
fn waiting_service_is_told_once_across_replicas(scene: &Scene) {
    scene.one_address();
    let replicas = [scene.start(|_| ()), scene.start(|_| ())];
    scene.service("first", wants("10.7.0.4"), json!({}));
    becomes(1, || scene.shown("first").len());
    scene.service("second", wants("10.7.0.4"), json!({}));
    // Both try to create the same Event.
    becomes(2, || scene.posts());
    stays((1, 2), || (scene.events("second").len(), scene.posts()));
    drop(replicas);
    let _running = scene.start(|_| ());
    becomes(3, || scene.posts());
    stays((1, 3), || (scene.events("second").len(), scene.posts()));
}

#[on(etcd, kubernetes_v1, kubernetes_v3)]
fn missing_role_is_told_to_services_if_a_pool_exists(scene: &Scene) {
    let running = scene.start_without_load_balancer(|settings| {
        settings.enabled.insert(ControllerName::LoadBalancer);
    });
    scene.service("web", json!({}), json!({}));
    scene.service("others", json!({}), of_class("example.com/other"));
    scene.service("elsewhere", json!({}), json!({}));
    let status = json!({"status": {"loadBalancer": {"ingress": [{"hostname": "elsewhere"}]}}});
    scene
        .admin
        .patch(&format!("{SERVICES}/elsewhere/status"), &status)
        .unwrap()
        .success()
        .unwrap();
    stays(0, || scene.posts());
    scene.one_address();
    let text = "the role calico-kube-controllers-load-balancer is not bound";
    scene.awaits_event(
        "web",
        &format!("LoadBalancerNotEnabled: kube-controllers gives no addresses: {text}"),
    );
    becomes(true, || running.counts([0, 0, 0, 0, 0, 1]));
    stays(1, || scene.posts());
    scene.delete::<IpPoolSpec>("one");
    becomes(true, || running.counts([0; 6]));
    drop(running);

    scene.pool("two", "10.7.0.8/32", json!({"blockSize": 32}));
    let _running = scene.start_without_load_balancer(|settings| {
        settings.enabled.remove(&ControllerName::LoadBalancer);
    });
    let text = "LoadBalancerNotEnabled: kube-controllers gives no addresses: the controller \
                loadbalancer is off";
    scene.awaits_event("web", text);
    assert_eq!(scene.shown("web"), Vec::<String>::new());
}

/// A tenant asks for each address of others, by a Service of its own.
#[on(etcd, kubernetes_v3)]
fn services_of_a_tenant_learn_no_foreign_holder(scene: &Scene) {
    let namespace = json!({"metadata": {"name": "bank"}});
    scene
        .admin
        .create("/api/v1/namespaces", &namespace)
        .unwrap()
        .success()
        .unwrap();
    scene.pool("auto", "10.7.0.0/28", json!({"blockSize": 28}));
    scene.pool(
        "secret-pool",
        "10.8.0.0/32",
        json!({"blockSize": 32, "assignmentMode": "Manual"}),
    );
    let _running = scene.start(|_| ());
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    let service =
        json!({"metadata": {"name": "vault", "annotations": wants("10.7.0.5")}, "spec": spec});
    let services = "/api/v1/namespaces/bank/services";
    scene
        .admin
        .create(services, &service)
        .unwrap()
        .success()
        .unwrap();
    let entries = || {
        let vault = scene
            .admin
            .get(&format!("{services}/vault"))
            .unwrap()
            .success()
            .unwrap();
        vault["status"]["loadBalancer"]["ingress"]
            .as_array()
            .map_or(0, Vec::len)
    };
    becomes(1, entries);

    scene.service("probe", wants("10.7.0.5"), json!({}));
    scene.awaits_event(
        "probe",
        "AddressTaken: 10.7.0.5 is held by another namespace",
    );
    scene.service("six", json!({}), json!({"ipFamilies": ["IPv6"]}));
    scene.awaits_event(
        "six",
        "NoIPPool: no IPv6 address: no IPPool for LoadBalancer serves this Service",
    );
    scene.service(
        "large",
        json!({"projectcalico.org/loadBalancerIPs": "x\u{1b}[2J".repeat(20_000)}),
        json!({}),
    );
    scene.awaits_event("large", "InvalidAddressRequest: ");
    for name in ["probe", "six", "large"] {
        for event in scene.events(name) {
            assert!(
                !["bank", "vault", "auto", "secret-pool"]
                    .iter()
                    .any(|hidden| event.contains(hidden)),
                "{event}"
            );
            assert!(event.len() < 2048 && !event.contains('\u{1b}'), "{event}");
        }
    }
}
