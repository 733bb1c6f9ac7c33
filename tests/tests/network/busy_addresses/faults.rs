//! Kills and broken connections at requests of an ADD that replaces busy addresses. After each call
//! no endpoint lists a free address, and after DEL no address is leaked.

use std::collections::BTreeMap;
use std::fs;

use integration_tests::cluster::{Cluster, ControlPlane, Faulty, on, points, shortest};
use integration_tests::content::Content;
use integration_tests::proxy::{Fault, Proxy};
use serde_json::{Value, json};

use crate::busy_addresses::{addresses, conf, other_program, restore, route};

const RECENT_BLOCKS: &str = "/var/run/calico/cni/recent_blocks";

/// Restores the datastore to `empty` and deletes all hints, so that every ADD begins with the same
/// address.
fn begin_anew(faulty: &Faulty<'_>, empty: &BTreeMap<String, Value>) {
    restore(faulty.cluster, empty);
    let _ = fs::remove_file(RECENT_BLOCKS);
    crate::busy_addresses::delete_notes();
}

/// Injects each fault at each request of an ADD, except the requests before the first busy address
/// is detected.
fn fault_at_each_request(faulty: &mut Faulty<'_>, faults: &[Fault]) {
    let empty = faulty.cluster.store.dump().unwrap();
    let pod = faulty.pod();
    let first = addresses(&faulty.run("ADD", &pod));
    let ordinary = faulty.proxy.requests().len();
    faulty.recover(&pod, 2);
    other_program();
    first.iter().for_each(|address| route("add", address));

    let requests = shortest(|| {
        begin_anew(faulty, &empty);
        let pod = faulty.pod();
        let requests = faulty.clean_requests("ADD", &pod);
        faulty.recover(&pod, 2);
        requests
    });
    for point in points(requests.len()).split_off(2 * (ordinary - 1)) {
        for fault in faults.iter().copied() {
            begin_anew(faulty, &empty);
            let pod = faulty.pod();
            let outcome = faulty.faulted("ADD", &pod, point, fault);
            assert!(
                faulty.proxy.fired(),
                "{point:?} was not reached: {outcome:?}"
            );
            faulty.recover(&pod, 2);
        }
    }
}

#[on(etcd)]
fn add_replacing_busy_addresses_with_a_fault_at_each_etcd_request_leaks_none(
    cluster: &Cluster<'_>,
) {
    let proxy = Proxy::start("127.0.0.1:2379").unwrap();
    cluster.load(&Content::dual_stack());
    let mut conf = conf(cluster);
    conf["etcd_endpoints"] = json!(proxy.endpoint());
    fault_at_each_request(
        &mut Faulty::new(cluster, &proxy, conf),
        &[Fault::Cut, Fault::Kill],
    );
}

#[on(kubernetes_v3)]
fn add_replacing_busy_addresses_killed_at_each_api_request_leaks_none(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(&Content::dual_stack());
    fault_at_each_request(
        &mut Faulty::new(cluster, &control_plane.proxy, conf(cluster)),
        &[Fault::Kill],
    );
}
