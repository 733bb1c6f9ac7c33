//! The whole controller is tested with a real API server in
//! tests/tests/controllers/controllers_nodes/services.rs.

mod convergence;
mod labeling;
mod not_served;
mod offers;
mod serving;
mod waiting;

use k8s_openapi::api::core::v1::Service as K8sService;
use libcalico::api::{IpPoolSpec, ObjectKey};
use libcalico::ipam::{AffinityOwner, BlockRequest, Reservations};
use libcalico::kubernetes::{IPV4_POOLS, IPV6_POOLS, LOAD_BALANCER_IPS as ADDRESSES};
use libcalico::net::Cidr;
use libcalico::store::Revision;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::addresses::ServiceAddresses;
use super::decision::Decision;
use super::decision::HeldAddress;
use super::decision::MissingAddress;
use super::decision::decide;
use super::decision::status_differs;
use super::pools::LoadBalancerPool;
use super::reconcile::CACHE_LAG;
use super::reports::WaitReports;
use super::request::{AddressRequest, RequestError};
use super::service::{LoadBalancerService, publish_addresses, withdraw_addresses};
use super::service_cache::ServiceCache;
use super::wait_reason::{Wait, WaitReason};
use super::waiting::{EVENT_INTERVAL, EventStep, WaitingServices};
use super::*;
use crate::controllers::cached::SharedCache;
use crate::events::EventPublisher;
use crate::runtime::NextReconcile;
use crate::runtime::Queue;
use crate::runtime::ReconcileError;
use crate::settings::AssignIps;
use crate::watched::Service;
use crate::watches::Event;
use datastore::Datastore;
use libcalico::api::IpPool;
use libcalico::ipam::Block;
use libcalico::ipam::HandleId;
use libcalico::ipam::Labels;
use libcalico::store::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio::time::Instant;

fn pool(name: &str, cidr: &str, automatic: bool) -> LoadBalancerPool {
    LoadBalancerPool {
        name: name.into(),
        cidr: cidr.parse().unwrap(),
        automatic,
    }
}

/// The pool of the published address is being deleted, and the Service names a pool in which it has
/// no address yet.
#[test]
fn published_address_stays_while_another_address_is_in_a_pool_that_the_service_no_longer_names() {
    let mut service = service(json!(["IPv4"]), json!({ IPV4_POOLS: r#"["manual"]"# }));
    service.published = vec!["172.16.0.1".parse().unwrap()];
    let decision = decide(
        Some(&service),
        &held(&["10.0.0.9", "172.16.0.1"]),
        &pools(),
        AssignIps::AllServices,
    );
    let Ok(Decision::Serve(plan)) = decision else {
        panic!("{decision:?}")
    };
    let ips = |held: &[HeldAddress]| {
        held.iter()
            .map(|held| held.ip.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (ips(&plan.keep), ips(&plan.release)),
        (vec!["172.16.0.1".into()], vec!["10.0.0.9".into()])
    );
}

fn pools() -> Vec<LoadBalancerPool> {
    vec![
        pool("v4", "10.0.0.0/24", true),
        pool("manual", "10.9.0.0/24", false),
        pool("v6", "fd00::/112", true),
    ]
}

fn service(families: Value, annotations: Value) -> LoadBalancerService {
    let metadata = json!({"name": "s", "namespace": "n", "uid": "u", "annotations": annotations});
    let spec = json!({"type": "LoadBalancer", "ipFamilies": families});
    LoadBalancerService::live(
        &serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap(),
    )
    .unwrap()
}

fn held_address(ip: IpAddr) -> HeldAddress {
    HeldAddress {
        ip,
        handle: HandleId::new("lb-x"),
        sequence: Some(7),
        since: None,
    }
}

fn held(ips: &[&str]) -> Vec<HeldAddress> {
    ips.iter()
        .map(|ip| held_address(ip.parse().unwrap()))
        .collect()
}

fn served(service: &LoadBalancerService, ips: &[&str]) -> (Vec<String>, String) {
    let decision = decide(Some(service), &held(ips), &pools(), AssignIps::AllServices).unwrap();
    let Decision::Serve(plan) = decision else {
        panic!("{decision:?}")
    };
    let assign = plan.assign.iter().map(|missing| match missing {
        MissingAddress::Address(ip) => ip.to_string(),
        MissingAddress::Any { version, .. } => format!("IPv{version}"),
    });
    (
        plan.release
            .iter()
            .map(|held| held.ip.to_string())
            .collect(),
        assign.collect::<Vec<_>>().join(" "),
    )
}

#[test]
fn each_family_of_a_service_is_assigned_separately() {
    let none: [String; 0] = [];
    for (families, ips, expected) in [
        (json!(["IPv4"]), &[][..], "IPv4"),
        (json!(["IPv4"]), &["10.0.0.1"], ""),
        (json!(["IPv6"]), &[], "IPv6"),
        (json!(["IPv4", "IPv6"]), &[], "IPv4 IPv6"),
        (json!(["IPv4", "IPv6"]), &["10.0.0.1"], "IPv6"),
        (json!(["IPv6", "IPv4"]), &["fd00::1"], "IPv4"),
        (json!(["IPv4", "IPv6"]), &["10.0.0.1", "fd00::1"], ""),
        (json!(null), &[], ""),
    ] {
        let found = served(&service(families.clone(), json!({})), ips);
        assert_eq!(
            found,
            (none.to_vec(), expected.to_owned()),
            "{families} {ips:?}"
        );
    }
}

#[test]
fn unsuitable_load_balancer_addresses_are_released() {
    let v4 = json!(["IPv4"]);
    for (annotations, ips, released, assign) in [
        (json!({}), "10.9.0.1", vec!["10.9.0.1"], "IPv4"),
        // The pool of the address is being deleted or missing.
        (json!({}), "172.16.0.1", vec![], ""),
        (json!({}), "fd00::1", vec!["fd00::1"], "IPv4"),
        (
            json!({ADDRESSES: r#"["10.0.0.7"]"#}),
            "10.0.0.1",
            vec!["10.0.0.1"],
            "10.0.0.7",
        ),
        (
            json!({ADDRESSES: r#"["10.0.0.7"]"#}),
            "10.0.0.7",
            vec![],
            "",
        ),
        (
            json!({IPV4_POOLS: r#"["manual"]"#}),
            "10.0.0.1",
            vec!["10.0.0.1"],
            "IPv4",
        ),
        (
            json!({IPV4_POOLS: r#"["10.9.0.0/24"]"#}),
            "10.9.0.1",
            vec![],
            "",
        ),
    ] {
        let found = served(&service(v4.clone(), annotations.clone()), &[ips]);
        assert_eq!(
            found,
            (
                released.iter().map(|ip| ip.to_string()).collect(),
                assign.to_owned()
            ),
            "{annotations}"
        );
    }
    let service = |spec: Value| {
        let metadata = json!({"name": "s", "namespace": "n", "uid": "u"});
        LoadBalancerService::live(
            &serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap(),
        )
        .unwrap()
    };
    let asks = service(
        json!({"type": "LoadBalancer", "loadBalancerIP": "10.9.0.5", "ipFamilies": ["IPv4"]}),
    );
    assert_eq!(served(&asks, &[]), (vec![], "10.9.0.5".to_owned()));
    assert_eq!(
        served(&asks, &["10.9.0.5"]),
        (vec![], "".to_owned()),
        "although its pool is manual"
    );
}

#[test]
fn unmanaged_services_lose_all_their_addresses() {
    let other: K8sService = serde_json::from_value(json!({
        "metadata": {"name": "s", "namespace": "n", "uid": "u"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "other"},
    }))
    .unwrap();
    let other = LoadBalancerService::live(&other);
    let ours = Some(service(json!(["IPv4"]), json!({})));
    let all = AssignIps::AllServices;
    for (service, ips, pools, expected) in [
        (&other, &[][..], pools(), Decision::Nothing),
        (&other, &["10.0.0.1"], pools(), Decision::Withdraw),
        (&None, &[], pools(), Decision::Nothing),
        (&None, &["10.0.0.1"], pools(), Decision::Withdraw),
        (&ours, &[], Vec::new(), Decision::NoPool),
        (&ours, &["10.0.0.1"], Vec::new(), Decision::Withdraw),
    ] {
        assert_eq!(
            decide(service.as_ref(), &held(ips), &pools, all),
            Ok(expected)
        );
    }
}

#[test]
fn invalid_service_annotations_are_rejected() {
    let error = |annotations: Value| {
        AddressRequest::parse(&service(json!([]), annotations), &pools()).unwrap_err()
    };
    assert!(matches!(
        error(json!({ADDRESSES: "10.0.0.1"})),
        RequestError::NoList { .. }
    ));
    assert!(matches!(
        error(json!({ADDRESSES: r#"["x"]"#})),
        RequestError::NoAddress { .. }
    ));
    assert!(matches!(
        error(json!({ADDRESSES: r#"["10.0.0.1","10.0.0.2"]"#})),
        RequestError::TooMany { .. }
    ));
    assert!(matches!(
        error(json!({IPV4_POOLS: r#"["nope"]"#})),
        RequestError::NoPool { .. }
    ));
    assert!(matches!(
        error(json!({IPV4_POOLS: r#"["v6"]"#})),
        RequestError::Family { .. }
    ));
    assert!(matches!(
        error(json!({IPV6_POOLS: r#"["10.0.0.0/24"]"#})),
        RequestError::Family { .. }
    ));
    let both = json!({
        ADDRESSES: r#"["10.0.0.1","fd00::1"]"#, IPV4_POOLS: r#"["v4"]"#, IPV6_POOLS: r#"["v6"]"#,
    });
    let request = AddressRequest::parse(&service(json!([]), both), &pools()).unwrap();
    assert_eq!(
        (
            request.addresses.len(),
            request.pools4.len(),
            request.pools6.len()
        ),
        (2, 1, 1)
    );
}

fn with_status(ingress: Value) -> K8sService {
    serde_json::from_value(
        json!({"metadata": {"name": "s"}, "status": {"loadBalancer": {"ingress": ingress}}}),
    )
    .unwrap()
}

fn ingress(service: &K8sService) -> Value {
    serde_json::to_value(&service.status).unwrap()["loadBalancer"]["ingress"].clone()
}

#[test]
fn foreign_ingress_entries_in_the_status_are_preserved() {
    let ips = |ips: &[&str]| {
        ips.iter()
            .map(|ip| ip.parse().unwrap())
            .collect::<Vec<IpAddr>>()
    };
    let proxied =
        json!({"ip": "10.0.0.1", "ipMode": "Proxy", "ports": [{"port": 80, "protocol": "TCP"}]});
    let mut service = with_status(json!([proxied, {"hostname": "h"}, {"ip": "10.0.0.9"}]));
    publish_addresses(&mut service, &ips(&["10.0.0.2", "10.0.0.1"]));
    assert_eq!(
        ingress(&service),
        json!([proxied, {"ip": "10.0.0.2"}, {"hostname": "h"}])
    );
    withdraw_addresses(&mut service, &ips(&["10.0.0.2"]));
    assert_eq!(ingress(&service), json!([proxied, {"hostname": "h"}]));
    publish_addresses(&mut service, &[]);
    withdraw_addresses(&mut service, &[]);
    assert_eq!(ingress(&service), json!([{"hostname": "h"}]));
    let mut bare = K8sService::default();
    publish_addresses(&mut bare, &ips(&["fd00::1"]));
    assert_eq!(ingress(&bare), json!([{"ip": "fd00::1"}]));
    assert!(!status_differs(
        &ips(&["10.0.0.2", "10.0.0.1"]),
        &held(&["10.0.0.1", "10.0.0.2"])
    ));
    assert!(
        status_differs(&ips(&["10.0.0.2"]), &held(&[]))
            && status_differs(&[], &held(&["10.0.0.1"]))
    );
}

fn watched(name: &str, uid: &str) -> Service {
    Service {
        name: ObjectKey::namespaced("n", name),
        uid: uid.into(),
        annotations: Default::default(),
        spec: serde_json::from_value(json!({"type": "LoadBalancer", "ipFamilies": ["IPv4"]}))
            .unwrap(),
        load_balancer: None,
    }
}

fn stored_pool() -> Entry<IpPool> {
    let spec: IpPoolSpec =
        serde_json::from_value(json!({"cidr": "10.0.0.0/24", "allowedUses": ["LoadBalancer"]}))
            .unwrap();
    let value = IpPool::new("p", spec);
    Entry {
        key: value.key(),
        value,
        revision: Revision("1".into()),
    }
}

fn block(owner: &AffinityOwner, services: &[&str]) -> Entry<Block> {
    let cidr: Cidr = "10.0.0.0/29".parse().unwrap();
    let mut value = Block::new(cidr, owner, OffsetDateTime::UNIX_EPOCH).unwrap();
    for name in services {
        let attributes = [("service", *name), ("namespace", "n")]
            .map(|(key, text)| (key.to_owned(), text.to_owned()));
        let (handle, attributes) = (HandleId::new(format!("lb-{name}")), attributes.into());
        let request = BlockRequest {
            handle: Some(&handle),
            attributes: &attributes,
            requester: owner,
            check_affinity: false,
        };
        value.assign(1, &request, &Reservations::none()).unwrap();
    }
    Entry {
        key: cidr,
        value,
        revision: Revision("1".into()),
    }
}

fn cache() -> ServiceCache {
    let mut cache = ServiceCache::default();
    cache.apply_service(&Event::Upsert(&watched("a", "1")));
    cache.apply_service(&Event::ListEnd);
    cache.apply_pool(&Event::Upsert(&stored_pool()));
    assert_eq!(
        cache.apply_pool(&Event::ListEnd),
        [],
        "blocks are not known yet"
    );
    assert!(cache.state_of(&ObjectKey::namespaced("n", "a")).is_none());
    cache
}

#[test]
fn block_changes_after_the_list_return_affected_and_waiting_services() {
    let [a, b] = ["a", "b"].map(|name| ObjectKey::namespaced("n", name));
    let mut cache = cache();
    let ours = AffinityOwner::of_services();
    assert_eq!(
        cache.apply_block(&Event::Upsert(&block(&ours, &["a", "b", "b"]))),
        []
    );
    assert_eq!(
        cache.apply_block(&Event::ListEnd),
        [a.clone(), b.clone()],
        "b is gone and holds addresses"
    );
    assert_eq!(cache.state_of(&b).unwrap().held.len(), 2);
    assert!(cache.state_of(&b).unwrap().service.is_none());

    let waiting = ObjectKey::namespaced("n", "waiting");
    let full = Wait {
        reason: WaitReason::PoolFull,
        text: "full".into(),
        cause: "full".into(),
    };
    cache
        .waiting
        .lock()
        .set(&waiting, "u", Some(&full), Instant::now());
    let elsewhere = ObjectKey::namespaced("n", "without-pool");
    cache
        .waiting
        .lock()
        .set(&elsewhere, "u", Some(&Wait::no_pool()), Instant::now());
    let gained = cache.apply_block(&Event::Upsert(&block(&ours, &["a", "b", "b", "a"])));
    assert_eq!(
        gained,
        std::slice::from_ref(&a),
        "the addresses of b are the same"
    );
    let freed = cache.apply_block(&Event::Upsert(&block(&ours, &["a"])));
    assert_eq!(
        freed,
        [a.clone(), b.clone(), waiting],
        "a Service without a pool cannot get the free address"
    );
    assert!(cache.state_of(&b).unwrap().held.is_empty());
    assert_eq!(
        cache.services(),
        std::slice::from_ref(&a),
        "b is removed with its last address"
    );
    cache.apply_block(&Event::Delete(&"10.0.0.0/29".parse().unwrap()));
    assert!(cache.state_of(&a).unwrap().held.is_empty());
}

#[test]
fn node_blocks_and_cooling_addresses_belong_to_no_service() {
    let mut cache = cache();
    cache.apply_block(&Event::Upsert(&block(
        &AffinityOwner::Host("node-1".into()),
        &["a"],
    )));
    cache.apply_block(&Event::ListEnd);
    let a = ObjectKey::namespaced("n", "a");
    assert!(cache.state_of(&a).unwrap().held.is_empty());
    let mut resting = block(&AffinityOwner::of_services(), &["a"]);
    let handle = HandleId::new("lb-a");
    resting
        .value
        .release_by_handle(&handle, None, 60, OffsetDateTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(cache.apply_block(&Event::Upsert(&resting)), []);
    assert!(cache.state_of(&a).unwrap().held.is_empty());
}
