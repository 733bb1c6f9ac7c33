//! The plugin on a real etcd, with a fault at each request and each response of ADD and DEL in
//! turn.

use std::time::Duration;

use integration_tests::cluster::{self, Cluster, Faulty, points};
use integration_tests::content::Content;
use integration_tests::kernel;
use integration_tests::proxy::{Fault, Point, Proxy};
use integration_tests::store::Store;
use integration_tests::{Place, on};
use serde_json::json;

/// Runs a test on a cluster whose plugins reach etcd through a proxy.
fn on(place: Place, test: impl FnOnce(&mut Faulty<'_>) + Send) {
    cluster::on(place, |cluster: &Cluster<'_>| {
        cluster.load(&Content::dual_stack());
        let proxy = Proxy::start("127.0.0.1:2379").unwrap();
        let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
        let more = json!({ "ipam": ipam, "etcd_endpoints": proxy.endpoint() });
        test(&mut Faulty::new(
            cluster,
            &proxy,
            cluster.conf("node1", more),
        ));
    });
}

const FAMILIES: usize = 2;

const SLOW: Fault = Fault::Delay(Duration::from_millis(300));

/// Returns the points at which a fault is injected. The client cannot distinguish a late request
/// from a late response.
fn points_of(fault: Fault, requests: usize) -> Vec<Point> {
    let mut points = points(requests);
    points.retain(|point| !matches!((fault, point), (Fault::Delay(_), Point::Answer(_))));
    points
}

fn fault_in_add(faulty: &mut Faulty<'_>, point: Point, fault: Fault) {
    let pod = faulty.pod();
    faulty.faulted("ADD", &pod, point, fault);
    assert!(faulty.proxy.fired(), "{point:?} was not reached");
    faulty.recover(&pod, FAMILIES);
}

/// Injects the fault at each point of an ADD that has to claim a block; cuts and kills also with an
/// existing block.
fn fault_at_each_point_of_add(faulty: &mut Faulty<'_>, fault: Fault) {
    let empty = faulty.cluster.store.dump().unwrap();
    let pod = faulty.pod();
    let claiming = faulty.requests("ADD", &pod);
    faulty.recover(&pod, FAMILIES);
    for point in points_of(fault, claiming) {
        faulty.cluster.store.keep_only(&empty).unwrap();
        faulty.cluster.store.load(&empty).unwrap();
        fault_in_add(faulty, point, fault);
    }
    let pod = faulty.pod();
    let with_block = faulty.requests("ADD", &pod);
    faulty.recover(&pod, FAMILIES);
    assert!(
        with_block < claiming,
        "{with_block} requests with a block, {claiming} without"
    );
    // The other faults take long, and their effect does not depend on the block.
    if matches!(fault, Fault::Cut | Fault::Kill) {
        for point in points(with_block) {
            fault_in_add(faulty, point, fault);
        }
    }
}

fn fault_at_each_point_of_del(faulty: &mut Faulty<'_>, fault: Fault) {
    let pod = faulty.pod();
    faulty.requests("ADD", &pod);
    let requests = faulty.requests("DEL", &pod);
    for point in points_of(fault, requests) {
        let pod = faulty.pod();
        faulty.requests("ADD", &pod);
        let outcome = faulty.faulted("DEL", &pod, point, fault);
        assert!(faulty.proxy.fired(), "{point:?} was not reached");
        if outcome.exit == Some(0) {
            assert_eq!(outcome.stdout, "");
        }
        faulty.recover(&pod, FAMILIES);
    }
}

#[on(etcd)]
fn add_with_a_broken_connection_at_each_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_point_of_add(faulty, Fault::Cut);
}

#[on(etcd)]
fn add_with_etcd_lost_at_each_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_point_of_add(faulty, Fault::Gone);
}

#[on(etcd)]
fn add_with_slow_etcd_at_each_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_point_of_add(faulty, SLOW);
}

#[on(etcd)]
fn add_killed_at_each_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_point_of_add(faulty, Fault::Kill);
}

#[on(etcd)]
fn del_with_a_broken_connection_at_each_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_point_of_del(faulty, Fault::Cut);
}

#[on(etcd)]
fn del_with_etcd_lost_at_each_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_point_of_del(faulty, Fault::Gone);
}

#[on(etcd)]
fn del_with_slow_etcd_at_each_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_point_of_del(faulty, SLOW);
}

#[on(etcd)]
fn del_killed_at_each_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_point_of_del(faulty, Fault::Kill);
}

/// A replay removes the addresses from the endpoint before it releases them, as DEL does.
#[on(etcd)]
fn replay_killed_at_each_request_leaves_no_free_address_in_an_endpoint(faulty: &mut Faulty<'_>) {
    faulty.conf["cniVersion"] = json!("1.1.0");
    let pod_with_deferred_del = |faulty: &mut Faulty<'_>| {
        let pod = faulty.pod();
        faulty.run("ADD", &pod);
        faulty.proxy.go_away();
        faulty.call("DEL", &pod).run().success();
        pod
    };
    let pod = pod_with_deferred_del(faulty);
    for point in points(faulty.requests("STATUS", &pod)) {
        let pod = pod_with_deferred_del(faulty);
        faulty.faulted("STATUS", &pod, point, Fault::Kill);
        assert!(faulty.proxy.fired(), "{point:?} was not reached");
        faulty.await_replayed(&pod);
        faulty.cluster.assert_nothing_left();
    }
}

/// A slow response is not a failure.
#[on(etcd)]
fn add_and_del_with_a_delayed_response_succeed(faulty: &mut Faulty<'_>) {
    let [resident, plain, pod] = [(); 3].map(|()| faulty.pod());
    faulty.requests("ADD", &resident);
    for verb in ["ADD", "DEL"] {
        let requests = faulty.requests(verb, &plain);
        faulty
            .faulted(
                verb,
                &pod,
                Point::Answer(1),
                Fault::Delay(Duration::from_secs(1)),
            )
            .success();
        assert!(
            faulty.proxy.fired(),
            "{verb}: {:?}",
            faulty.proxy.requests()
        );
        assert_eq!(
            faulty.proxy.traffic().requests,
            requests,
            "{verb}: {:?}",
            faulty.proxy.requests()
        );
    }
    faulty.run("DEL", &resident);
    faulty.cluster.assert_nothing_left();
}

#[on(etcd)]
fn del_with_frozen_etcd_succeeds_and_is_replayed_by_the_next_add(faulty: &mut Faulty<'_>) {
    let cluster = faulty.cluster;
    let (gone, refused) = (faulty.pod(), faulty.pod());
    faulty.requests("ADD", &gone);

    let Store::Etcd(etcd) = &cluster.store else {
        panic!("not on etcd")
    };
    etcd.freeze().unwrap();
    let error = faulty.call("ADD", &refused).run().error();
    assert_eq!(error.code, 11, "try again: {error:?}");
    faulty.call("DEL", &gone).run().success();
    etcd.thaw().unwrap();
    assert_eq!(
        kernel::host().unwrap()["links"],
        json!({}),
        "taken down at once"
    );

    let next = faulty.pod();
    faulty.requests("ADD", &next);
    assert_eq!(cluster.accounts().held.len(), 2);
    faulty.call("DEL", &refused).run().success();
    faulty.call("DEL", &next).run().success();
    cluster.assert_nothing_left();
}

/// As with upstream, a DEL fails then, and is not deferred.
#[on(etcd)]
fn add_and_del_on_a_datastore_that_is_not_ready_change_nothing(faulty: &mut Faulty<'_>) {
    let pod = faulty.pod();
    faulty.requests("ADD", &pod);
    let cluster = faulty.cluster;
    let key = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
    let content = cluster.store.dump().unwrap();
    let mut not_ready = content[key].clone();
    not_ready["spec"]["datastoreReady"] = json!(false);
    cluster.store.put(key, &not_ready).unwrap();
    let newcomer = faulty.pod();
    let before = cluster.state();
    for (verb, pod) in [("DEL", &pod), ("ADD", &newcomer)] {
        let error = faulty.call(verb, pod).run().error();
        assert!(error.msg.contains("not ready"), "{verb}: {error:?}");
    }
    cluster.assert_unchanged(&before);
    cluster.store.put(key, &content[key]).unwrap();
    faulty.call("DEL", &pod).run().success();
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn add_and_del_make_at_most_four_etcd_requests(faulty: &mut Faulty<'_>) {
    faulty.conf["ipam"] = json!({ "type": "calico-ipam" });
    let first = faulty.pod();
    faulty.requests("ADD", &first);
    let second = faulty.pod();
    let add = faulty.requests("ADD", &second);
    let del = faulty.requests("DEL", &second);
    assert!(add <= 4 && del <= 4, "ADD made {add} requests, DEL {del}");
}
