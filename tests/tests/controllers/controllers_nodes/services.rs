//! Addresses of Services in two datastores, with the cases of upstream's loadbalancer_fv_test.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Instant;

use integration_tests::kubernetes::Request;
use kube_controllers::settings::AssignIps;
use libcalico::api::IpPoolSpec;
use libcalico::ipam::{AffinityOwner, AffinitySelect, Block, BlockAffinity, Handle};
use serde_json::{Value, json};

use crate::controllers_nodes::controlled_cluster::{CALM, ControlledCluster, becomes, on, stays};

pub(crate) const SERVICES: &str = "/api/v1/namespaces/default/services";

impl ControlledCluster<'_> {
    pub(crate) fn pool(&self, name: &str, cidr: &str, more: Value) {
        let mut spec = json!({
            "cidr": cidr, "blockSize": 30, "allowedUses": ["LoadBalancer"], "nodeSelector": "all()",
        });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.put::<IpPoolSpec>(name, json!({}), spec);
    }

    pub(crate) fn service(&self, name: &str, annotations: Value, more: Value) {
        let mut spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let service = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        self.servers.create(SERVICES, &service);
    }

    fn patch(&self, name: &str, patch: Value) {
        self.servers.merge(&format!("{SERVICES}/{name}"), &patch);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.servers.remove(&format!("{SERVICES}/{name}"));
    }

    pub(crate) fn shown(&self, name: &str) -> Vec<String> {
        let service = self.servers.read(&format!("{SERVICES}/{name}"));
        let entries = service["status"]["loadBalancer"]["ingress"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text = |entry: &Value| {
            entry["ip"]
                .as_str()
                .or(entry["hostname"].as_str())
                .unwrap_or_default()
                .to_owned()
        };
        entries.iter().map(text).collect()
    }

    /// Returns the number of writes of a Service's status, conflicts included.
    fn status_writes(&self, name: &str) -> usize {
        let requests = self.audit.requests().unwrap();
        let of_status =
            |request: &&Request| request.resource == "services/status" && request.name == name;
        requests
            .iter()
            .filter(of_status)
            .filter(|request| request.verb == "update")
            .count()
    }

    /// Returns all allocated addresses.
    fn held(&self) -> Vec<String> {
        let blocks = self.objects.list::<Block>(&None);
        let mut held: Vec<_> = blocks
            .iter()
            .flat_map(|block| block.value.allocated())
            .map(|held| held.ip)
            .collect();
        held.sort();
        held.iter().map(IpAddr::to_string).collect()
    }

    fn holders(&self) -> usize {
        self.objects.list::<Handle>(&()).len()
    }
}

fn ip(text: &str) -> Vec<String> {
    vec![text.to_owned()]
}

pub(crate) fn wants(ip: &str) -> Value {
    json!({"projectcalico.org/loadBalancerIPs": format!("[\"{ip}\"]")})
}

#[on(etcd, kubernetes_v3)]
fn services_get_requested_addresses_and_release_them_with_the_pools(
    cluster: &ControlledCluster<'_>,
) {
    let running = cluster.start(|_| ());
    cluster.service("early", json!({}), json!({}));
    stays(Vec::new(), || cluster.shown("early"));
    cluster.pool("auto", "10.7.0.4/30", json!({}));
    becomes(1, || cluster.shown("early").len());
    assert!(cluster.shown("early")[0].starts_with("10.7.0."));
    let select = AffinitySelect::of(AffinityOwner::of_services());
    assert_eq!(cluster.objects.list::<BlockAffinity>(&select).len(), 1);

    // Requests by pool, by address, by spec.loadBalancerIP, and Services without a valid request.
    cluster.pool("manual", "10.8.0.0/30", json!({"assignmentMode": "Manual"}));
    cluster.service(
        "pooled",
        json!({"projectcalico.org/ipv4pools": "[\"manual\"]"}),
        json!({}),
    );
    becomes(1, || cluster.shown("pooled").len());
    assert!(cluster.shown("pooled")[0].starts_with("10.8.0."));
    cluster.remove("pooled");
    becomes(1, || cluster.holders());
    cluster.service("asked", wants("10.8.0.2"), json!({}));
    becomes(ip("10.8.0.2"), || cluster.shown("asked"));
    cluster.service(
        "old-style",
        json!({}),
        json!({"loadBalancerIP": "10.8.0.3"}),
    );
    becomes(ip("10.8.0.3"), || cluster.shown("old-style"));
    cluster.service(
        "others",
        json!({}),
        json!({"loadBalancerClass": "example.com/other"}),
    );
    cluster.service(
        "broken",
        json!({"projectcalico.org/loadBalancerIPs": "10.8.0.1"}),
        json!({}),
    );
    cluster.service("node-port", json!({}), json!({"type": "NodePort"}));

    cluster.service("second", wants("10.8.0.2"), json!({}));
    stays(Vec::new(), || cluster.shown("second"));
    cluster.patch(
        "asked",
        json!({"metadata": {"annotations": wants("10.8.0.1")}}),
    );
    becomes(ip("10.8.0.1"), || cluster.shown("asked"));
    becomes(ip("10.8.0.2"), || cluster.shown("second"));
    cluster.patch("second", json!({"spec": {"type": "NodePort"}}));
    cluster.service("third", wants("10.8.0.2"), json!({}));
    becomes(ip("10.8.0.2"), || cluster.shown("third"));
    for name in ["others", "broken", "node-port"] {
        assert_eq!(cluster.shown(name), ip("")[..0], "{name}");
    }

    drop(running);
    cluster.remove("third");
    cluster.remove("old-style");
    cluster.patch(
        "asked",
        json!({"metadata": {"annotations": wants("10.8.0.3")}}),
    );
    cluster.service("late", json!({}), json!({}));
    let _running = cluster.start(|_| ());
    becomes(ip("10.8.0.3"), || cluster.shown("asked"));
    becomes(1, || cluster.shown("late").len());
    becomes(3, || cluster.holders());

    cluster.delete::<IpPoolSpec>("manual");
    cluster.delete::<IpPoolSpec>("auto");
    for name in ["asked", "late", "early"] {
        becomes(Vec::new(), || cluster.shown(name));
    }
    becomes(0, || cluster.holders());
    becomes(Vec::<String>::new(), || cluster.names::<IpPoolSpec>());
}

/// Upstream assigns no IPv6 address to a Service that has an IPv4 address (KC-509).
#[on(etcd, kubernetes_v3)]
fn each_family_of_a_dual_stack_service_gets_an_address(cluster: &ControlledCluster<'_>) {
    cluster.pool("v4", "10.7.0.4/30", json!({}));
    let running = cluster.start(|_| ());
    cluster.service(
        "web",
        json!({}),
        json!({"ipFamilyPolicy": "RequireDualStack"}),
    );
    becomes(1, || cluster.shown("web").len());
    cluster.pool("v6", "fd00:7::4/126", json!({"blockSize": 126}));
    becomes(2, || cluster.shown("web").len());
    let both = cluster.shown("web");
    assert!(
        both[0].starts_with("10.7.0.") && both[1].starts_with("fd00:7::"),
        "{both:?}"
    );
    assert_eq!(cluster.holders(), 1, "one handle for both");
    cluster.service("six", json!({}), json!({"ipFamilies": ["IPv6"]}));
    becomes(1, || cluster.shown("six").len());
    assert!(
        cluster.shown("six")[0].starts_with("fd00:7::"),
        "{:?}",
        cluster.shown("six")
    );
    let either = json!({"projectcalico.org/loadBalancerIPs": r#"["10.7.0.7", "fd00:7::7"]"#});
    cluster.service(
        "asked",
        either,
        json!({"ipFamilyPolicy": "PreferDualStack"}),
    );
    becomes(
        ["10.7.0.7", "fd00:7::7"].map(str::to_owned).to_vec(),
        || cluster.shown("asked"),
    );

    drop(running);
    cluster.patch(
        "web",
        json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}}),
    );
    let _running = cluster.start(|_| ());
    becomes(both[..1].to_vec(), || cluster.shown("web"));
    cluster.service("next", wants(&both[1]), json!({"ipFamilies": ["IPv6"]}));
    becomes(both[1..].to_vec(), || cluster.shown("next"));
    cluster.remove("web");
    cluster.remove("asked");
    becomes(2, || cluster.holders());
}

/// The list of pools restricts only its own family.
#[on(etcd, kubernetes_v3)]
fn dual_stack_service_with_pools_of_one_family_is_written_once(cluster: &ControlledCluster<'_>) {
    cluster.pool("v4", "10.7.0.4/30", json!({}));
    cluster.pool("v6", "fd00:7::4/126", json!({"blockSize": 126}));
    let _running = cluster.start(|_| ());
    let listed = json!({"projectcalico.org/ipv4pools": "[\"v4\"]"});
    cluster.service("web", listed, json!({"ipFamilyPolicy": "RequireDualStack"}));
    becomes(2, || cluster.shown("web").len());
    stays(1, || cluster.status_writes("web"));
    assert_eq!(cluster.held(), cluster.shown("web"));
}

#[on(etcd, kubernetes_v3)]
fn changed_load_balancer_ip_replaces_the_address_of_a_service(cluster: &ControlledCluster<'_>) {
    cluster.pool("auto", "10.7.0.0/28", json!({"blockSize": 28}));
    let _running = cluster.start(|_| ());
    cluster.service("web", json!({}), json!({"loadBalancerIP": "10.7.0.5"}));
    becomes(ip("10.7.0.5"), || cluster.shown("web"));
    for (changes, next) in [10, 5, 6].into_iter().enumerate() {
        let next = format!("10.7.0.{next}");
        cluster.patch("web", json!({"spec": {"loadBalancerIP": next}}));
        becomes(ip(&next), || cluster.shown("web"));
        becomes(ip(&next), || cluster.held());
        assert_eq!(
            cluster.status_writes("web"),
            changes + 2,
            "no write without the address in between"
        );
    }
    // Without a request, any address is suitable.
    cluster.patch("web", json!({"spec": {"loadBalancerIP": null}}));
    stays(ip("10.7.0.6"), || cluster.shown("web"));
    // The requested address is in no pool.
    cluster.patch("web", json!({"spec": {"loadBalancerIP": "172.16.0.1"}}));
    stays(ip("10.7.0.6"), || cluster.shown("web"));
    assert_eq!(
        (cluster.held(), cluster.status_writes("web")),
        (ip("10.7.0.6"), 4)
    );
}

#[on(etcd, kubernetes_v3)]
fn two_racing_controllers_assign_one_address_per_service(cluster: &ControlledCluster<'_>) {
    cluster.pool("auto", "10.7.0.0/26", json!({"blockSize": 26}));
    let names: Vec<String> = (0..10).map(|n| format!("web{n}")).collect();
    let _running = [cluster.start(|_| ()), cluster.start(|_| ())];
    names
        .iter()
        .for_each(|name| cluster.service(name, json!({}), json!({})));
    let shown = || {
        let mut shown: Vec<_> = names.iter().flat_map(|name| cluster.shown(name)).collect();
        shown.sort_by_key(|ip| ip.parse::<IpAddr>().unwrap());
        shown
    };
    becomes(names.len(), || shown().len());
    // A controller that is late may assign a second address, and then releases it.
    let differed = Cell::new(Instant::now());
    becomes(true, || {
        if cluster.held() != shown() {
            differed.set(Instant::now());
        }
        differed.get().elapsed() >= CALM
    });
}

#[on(etcd)]
fn recreated_service_of_the_same_name_gets_a_new_address(cluster: &ControlledCluster<'_>) {
    cluster.pool("auto", "10.7.0.4/30", json!({}));
    let running = cluster.start(|_| ());
    cluster.service("web", json!({}), json!({}));
    becomes(1, || cluster.shown("web").len());
    drop(running);
    cluster.remove("web");
    cluster.service("web", json!({}), json!({}));
    let _running = cluster.start(|_| ());
    becomes(1, || cluster.shown("web").len());
    becomes(1, || cluster.holders());
}

#[on(etcd)]
fn foreign_entries_in_a_service_status_are_kept(cluster: &ControlledCluster<'_>) {
    cluster.pool("auto", "10.7.0.4/30", json!({}));
    cluster.service("web", json!({}), json!({}));
    let entry = json!([{"hostname": "elsewhere"}]);
    let status = json!({"status": {"loadBalancer": {"ingress": entry}}});
    cluster
        .servers
        .merge(&format!("{SERVICES}/web/status"), &status);
    let running =
        cluster.start(|settings| settings.assign_ips = Some(AssignIps::RequestedServicesOnly));
    stays(ip("elsewhere"), || cluster.shown("web"));
    running.set(|settings| settings.assign_ips = Some(AssignIps::AllServices));
    becomes(2, || cluster.shown("web").len());
    assert_eq!(cluster.shown("web")[1], "elsewhere");
    // `None` is an unknown value of the setting.
    running.set(|settings| settings.assign_ips = None);
    stays(2, || cluster.shown("web").len());
    running.set(|settings| settings.assign_ips = Some(AssignIps::RequestedServicesOnly));
    becomes(ip("elsewhere"), || cluster.shown("web"));
    becomes(0, || cluster.holders());
}

#[on(etcd)]
fn service_status_converges_against_conflicting_writers(cluster: &ControlledCluster<'_>) {
    cluster.pool("auto", "10.7.0.0/28", json!({"blockSize": 28}));
    let _running = cluster.start(|_| ());
    let names: Vec<String> = (0..6).map(|n| format!("web{n}")).collect();
    for round in 0..10 {
        for name in &names {
            match round {
                0 => cluster.service(name, json!({}), json!({})),
                _ => cluster.patch(
                    name,
                    json!({"metadata": {"labels": {"round": round.to_string()}}}),
                ),
            }
        }
    }
    for name in &names {
        becomes(1, || cluster.shown(name).len());
    }
    assert_eq!(cluster.holders(), 6, "none has two");
}
