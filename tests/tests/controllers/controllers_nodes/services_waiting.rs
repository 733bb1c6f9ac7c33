//! Services that wait for an address say why: by Events, which the audit log of the API server
//! counts, and by a metric.

use integration_tests::kubernetes::Request;
use kube_controllers::settings::ControllerName;
use libcalico::api::IpPoolSpec;
use serde_json::{Value, json};

use crate::controllers_nodes::controlled_cluster::{
    ControlledCluster, RunningControllers, becomes, on, stays,
};
use crate::controllers_nodes::services::{SERVICES, wants};

const REASONS: [&str; 6] = [
    "no_pool",
    "pool_full",
    "address_taken",
    "invalid_request",
    "class",
    "not_enabled",
];

impl ControlledCluster<'_> {
    /// Returns the Events of a Service, each as `Reason: text`.
    fn events(&self, service: &str) -> Vec<String> {
        let events = self
            .servers
            .admin()
            .events_of_controllers("default")
            .unwrap();
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
    fn await_event(&self, service: &str, text: &str) {
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

/// Returns true if the metric has these numbers, in the order of [`REASONS`].
fn counts(running: &RunningControllers, numbers: [u32; 6]) -> bool {
    let line = |(reason, number): (&str, u32)| {
        format!("kube_controllers_load_balancer_waiting_services{{reason=\"{reason}\"}} {number}")
    };
    REASONS
        .into_iter()
        .zip(numbers)
        .all(|pair| running.has_metric(&line(pair)))
}

fn of_class(class: &str) -> Value {
    json!({"loadBalancerClass": class})
}

#[on(etcd, kubernetes_v1, kubernetes_v3)]
fn services_say_why_they_wait(cluster: &ControlledCluster<'_>) {
    let running = cluster.start(|_| ());
    becomes(true, || counts(&running, [0; 6]));
    cluster.service("asks", wants("10.8.0.2"), json!({}));
    cluster.await_event(
        "asks",
        "NoIPPool: no address: no IPPool for LoadBalancer serves this Service",
    );
    cluster.service(
        "broken",
        json!({"projectcalico.org/loadBalancerIPs": "10.8.0.1"}),
        json!({}),
    );
    cluster.service("foreign", wants("10.8.0.2"), of_class("example.com/other"));
    cluster.service("others", json!({}), of_class("example.com/other"));
    cluster.await_event(
        "foreign",
        "ClassNotServed: loadBalancerClass \"example.com/other\" is not calico",
    );
    becomes(true, || counts(&running, [2, 0, 0, 0, 1, 0]));

    cluster.one_address();
    cluster.await_event(
        "broken",
        "NoIPPool: no address: no IPPool for LoadBalancer serves this Service",
    );
    becomes(true, || counts(&running, [1, 0, 0, 1, 1, 0]));
    cluster.service("first", json!({}), json!({}));
    becomes(1, || cluster.shown("first").len());
    cluster.service("second", json!({}), json!({}));
    cluster.await_event(
        "second",
        "IPPoolFull: no IPv4 address: 1 IPPool serves this Service, and it is full",
    );
    cluster.service("third", wants("10.7.0.4"), json!({}));
    cluster.await_event("third", "AddressTaken: 10.7.0.4 is held by ");
    cluster.await_event("third", "service default/first");
    cluster.service(
        "malformed",
        json!({"projectcalico.org/ipv4pools": "[\"no-pool\"]"}),
        json!({}),
    );
    cluster.await_event(
        "malformed",
        "InvalidAddressRequest: projectcalico.org/ipv4pools: \"no-pool\" is neither",
    );
    becomes(true, || counts(&running, [1, 1, 1, 2, 1, 0]));
    for silent in ["first", "others"] {
        assert_eq!(cluster.events(silent), Vec::<String>::new());
    }

    cluster.remove("first");
    becomes(1, || {
        cluster.shown("second").len() + cluster.shown("third").len()
    });
    running.set(|settings| settings.assign_ips = None);
    cluster.service("late", json!({}), json!({}));
    cluster.await_event(
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
        cluster.remove(name);
    }
    becomes(true, || counts(&running, [0; 6]));
}

#[on(etcd, kubernetes_v3)]
fn served_services_post_no_event(cluster: &ControlledCluster<'_>) {
    cluster.pool("auto", "10.7.0.0/28", json!({"blockSize": 28}));
    let running = cluster.start(|_| ());
    cluster.service("web", json!({}), json!({}));
    cluster.service("asked", wants("10.7.0.7"), json!({}));
    cluster.service("others", json!({}), of_class("example.com/other"));
    becomes(2, || {
        cluster.shown("web").len() + cluster.shown("asked").len()
    });
    cluster.remove("web");
    stays(0, || cluster.posts());
    assert!(counts(&running, [0; 6]));
}

#[on(etcd, kubernetes_v3)]
fn waiting_service_is_told_once_across_replicas(cluster: &ControlledCluster<'_>) {
    cluster.one_address();
    let replicas = [cluster.start(|_| ()), cluster.start(|_| ())];
    cluster.service("first", wants("10.7.0.4"), json!({}));
    becomes(1, || cluster.shown("first").len());
    cluster.service("second", wants("10.7.0.4"), json!({}));
    // Both try to create the same Event.
    becomes(2, || cluster.posts());
    stays((1, 2), || (cluster.events("second").len(), cluster.posts()));
    drop(replicas);
    let _running = cluster.start(|_| ());
    becomes(3, || cluster.posts());
    stays((1, 3), || (cluster.events("second").len(), cluster.posts()));
}

#[on(etcd, kubernetes_v3)]
fn missing_role_is_told_to_services_if_a_pool_exists(cluster: &ControlledCluster<'_>) {
    let running = cluster.start_without_load_balancer(|settings| {
        settings.enabled.insert(ControllerName::LoadBalancer);
    });
    cluster.service("web", json!({}), json!({}));
    cluster.service("others", json!({}), of_class("example.com/other"));
    cluster.service("elsewhere", json!({}), json!({}));
    let status = json!({"status": {"loadBalancer": {"ingress": [{"hostname": "elsewhere"}]}}});
    cluster
        .servers
        .merge(&format!("{SERVICES}/elsewhere/status"), &status);
    stays(0, || cluster.posts());
    cluster.one_address();
    let text = "the role calico-kube-controllers-load-balancer is not bound";
    cluster.await_event(
        "web",
        &format!("LoadBalancerNotEnabled: kube-controllers gives no addresses: {text}"),
    );
    becomes(true, || counts(&running, [0, 0, 0, 0, 0, 1]));
    stays(1, || cluster.posts());
    cluster.delete::<IpPoolSpec>("one");
    becomes(true, || counts(&running, [0; 6]));
    drop(running);

    cluster.pool("two", "10.7.0.8/32", json!({"blockSize": 32}));
    let _running = cluster.start_without_load_balancer(|settings| {
        settings.enabled.remove(&ControllerName::LoadBalancer);
    });
    let text = "LoadBalancerNotEnabled: kube-controllers gives no addresses: the controller \
                loadbalancer is off";
    cluster.await_event("web", text);
    assert_eq!(cluster.shown("web"), Vec::<String>::new());
}

/// A tenant asks for each address of others, by a Service of its own. Shows SEC-23.
#[on(etcd, kubernetes_v3)]
fn services_of_a_tenant_learn_no_foreign_holder(cluster: &ControlledCluster<'_>) {
    let namespace = json!({"metadata": {"name": "bank"}});
    cluster.servers.create("/api/v1/namespaces", &namespace);
    cluster.pool("auto", "10.7.0.0/28", json!({"blockSize": 28}));
    cluster.pool(
        "secret-pool",
        "10.8.0.0/32",
        json!({"blockSize": 32, "assignmentMode": "Manual"}),
    );
    let _running = cluster.start(|_| ());
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    let service =
        json!({"metadata": {"name": "vault", "annotations": wants("10.7.0.5")}, "spec": spec});
    let services = "/api/v1/namespaces/bank/services";
    cluster.servers.create(services, &service);
    let entries = || {
        let vault = cluster.servers.read(&format!("{services}/vault"));
        vault["status"]["loadBalancer"]["ingress"]
            .as_array()
            .map_or(0, Vec::len)
    };
    becomes(1, entries);

    cluster.service("probe", wants("10.7.0.5"), json!({}));
    cluster.await_event(
        "probe",
        "AddressTaken: 10.7.0.5 is held by another namespace",
    );
    cluster.service("six", json!({}), json!({"ipFamilies": ["IPv6"]}));
    cluster.await_event(
        "six",
        "NoIPPool: no IPv6 address: no IPPool for LoadBalancer serves this Service",
    );
    cluster.service(
        "large",
        json!({"projectcalico.org/loadBalancerIPs": "x\u{1b}[2J".repeat(20_000)}),
        json!({}),
    );
    cluster.await_event("large", "InvalidAddressRequest: ");
    for name in ["probe", "six", "large"] {
        for event in cluster.events(name) {
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
