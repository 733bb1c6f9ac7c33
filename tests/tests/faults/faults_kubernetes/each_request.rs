//! Faults at each request of a CNI command, one at a time.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use integration_tests::Place;
use integration_tests::cluster::{
    Cluster, ControlPlane, Faults, Faulty, Pod, restricted, shortest, sweep,
};
use integration_tests::content::Content;
use integration_tests::proxy::{Fault, Point, Refusal};
use serde_json::Value;

use super::{faulty, on};

/// File in which ADD records the block from which it took an address.
const RECENT_BLOCKS: &str = "/var/run/calico/cni/recent_blocks";

/// Faults after which the server has not executed the request.
const BEFORE: [Fault; 9] = [
    refused(401),
    refused(409),
    refused(410),
    refused(429),
    Fault::Refuse(Refusal {
        code: 429,
        retry_after: Some(1),
    }),
    refused(500),
    refused(503),
    Fault::Cut,
    Fault::Kill,
];

const AT_WRITE: Faults<'static> = Faults {
    before: &BEFORE,
    after: &[refused(500), Fault::Cut, Fault::CutMidAnswer, Fault::Kill],
};

const AT_READ: Faults<'static> = Faults {
    before: &BEFORE,
    after: &[Fault::CutMidAnswer],
};

/// The faults of an ADD that claims a block.
const CLAIMING: Faults<'static> = Faults {
    before: &[refused(409), refused(500)],
    after: &[Fault::Cut],
};

const fn refused(code: u16) -> Fault {
    Fault::Refuse(Refusal {
        code,
        retry_after: None,
    })
}

/// Returns true if the client must succeed in spite of the fault. After 401 the token may have been
/// renewed.
fn is_passing(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Refuse(Refusal {
            code: 401 | 429 | 503,
            ..
        })
    )
}

fn addresses(result: &Value) -> BTreeSet<String> {
    result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip["address"].to_string())
        .collect()
}

/// Removes the parameter that permits an answer from the server's cache; a repetition may lack it.
fn without_cache(request: &str) -> &str {
    request
        .split("resourceVersion=")
        .next()
        .unwrap_or_default()
        .trim_end_matches(['?', '&'])
}

/// Runs a call with a fault. After a fault that [`is_passing`], the call must succeed. Returns the
/// result, or `None` if the call failed.
#[track_caller]
fn faulted(
    faulty: &Faulty<'_>,
    verb: &str,
    pod: &Pod,
    (point, fault): (Point, Fault),
) -> Option<Value> {
    let outcome = faulty.faulted(verb, pod, point, fault);
    assert!(
        faulty.proxy.fired(),
        "{verb} did not come to {point:?}: {:?}",
        faulty.proxy.requests()
    );
    if let (Point::Request(n), true) = (point, is_passing(fault)) {
        let requests = faulty.proxy.requests();
        let repeated = requests[n + 1..]
            .iter()
            .any(|request| without_cache(request) == without_cache(&requests[n]));
        assert!(
            repeated,
            "{verb} does not repeat request {n}: {requests:#?}"
        );
    }
    match is_passing(fault) {
        true => Some(outcome.success()),
        false => (outcome.exit == Some(0)).then(|| outcome.success()),
    }
}

/// Each ADD is for a new pod. Another pod remains unless `claiming`.
fn fault_at_each_request_of_add(faulty: &mut Faulty<'_>, claiming: bool) {
    let stays = (!claiming).then(|| faulty.pod());
    let resident = stays
        .as_ref()
        .map(|pod| addresses(&faulty.run("ADD", pod)))
        .unwrap_or_default();
    let stays: Vec<&Pod> = stays.iter().collect();
    let empty = faulty.cluster.store.dump().unwrap();
    // The file is missing if no ADD has claimed a block since.
    let delete_blocks = |faulty: &Faulty<'_>| {
        faulty.cluster.store.keep_only(&empty).unwrap();
        let _ = fs::remove_file(RECENT_BLOCKS);
    };
    let requests = shortest(|| {
        if claiming {
            delete_blocks(faulty);
        }
        let clean = faulty.pod();
        let requests = faulty.clean_requests("ADD", &clean);
        faulty.run("DEL", &clean);
        requests
    });
    let [at_write, at_read] = if claiming {
        [CLAIMING; 2]
    } else {
        [AT_WRITE, AT_READ]
    };
    for case in sweep(&requests, at_write, at_read) {
        if claiming {
            delete_blocks(faulty);
        }
        let pod = faulty.pod();
        let added = faulted(faulty, "ADD", &pod, case);
        if let Some(result) = added {
            assert!(addresses(&result).is_disjoint(&resident), "{case:?}");
            let both: Vec<&Pod> = stays.iter().copied().chain([&pod]).collect();
            faulty.cluster.assert_only(&both);
        }
        faulty.run("DEL", &pod);
        faulty.cluster.assert_only(&stays);
        faulty.cluster.remove_pod(&pod);
    }
}

#[on(kubernetes_v3)]
fn add_with_a_fault_at_each_api_request_leaks_no_address(faulty: &mut Faulty<'_>) {
    fault_at_each_request_of_add(faulty, false)
}

#[test]
fn add_creating_a_block_with_a_fault_at_each_request_leaks_no_address() {
    restricted(
        Place::KubernetesV1,
        fault_at_each_request_of_an_add_with_a_claim,
    );
}

fn fault_at_each_request_of_an_add_with_a_claim(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    fault_at_each_request_of_add(&mut faulty(cluster, &control_plane.proxy), true);
}

/// The write of the block is executed after the plugin has stopped waiting for it, perhaps even
/// after DEL.
fn block_written_late(faulty: &mut Faulty<'_>, write: Point) {
    let empty = faulty.cluster.store.dump().unwrap();
    // Most of these delays end while the plugin verifies the write.
    let soon = (0..40).map(|n| Duration::from_micros(250 * n));
    for late in soon.chain([Duration::from_millis(400)]) {
        faulty.cluster.store.keep_only(&empty).unwrap();
        // The file is missing if the case before got no block.
        let _ = fs::remove_file(RECENT_BLOCKS);
        let stays = faulty.pod();
        let resident = addresses(&faulty.run("ADD", &stays));
        let pod = faulty.pod();
        if let Some(result) = faulted(faulty, "ADD", &pod, (write, Fault::Late(late))) {
            assert!(addresses(&result).is_disjoint(&resident), "{late:?}");
        }
        faulty.run("DEL", &pod);
        faulty.proxy.await_late().unwrap();
        faulty.cluster.assert_only(&[&stays]);
        faulty.run("DEL", &stays);
        for pod in [pod, stays] {
            faulty.cluster.remove_pod(&pod);
        }
    }
}

#[on(kubernetes_v1)]
fn add_with_a_late_block_update_leaks_no_address(faulty: &mut Faulty<'_>) {
    block_written_late(faulty, Point::First("PUT", "ipamblocks"))
}

/// A block has a single address here.
#[on(kubernetes_v3)]
fn add_with_a_late_block_creation_leaks_no_address(faulty: &mut Faulty<'_>) {
    faulty.cluster.store.delete("ippools/pool4").unwrap();
    faulty
        .cluster
        .load(&Content::default().pool("single", "10.66.0.0/24", 32));
    block_written_late(faulty, Point::First("POST", "ipamblocks"));
}

#[test]
fn del_with_a_fault_at_each_api_request_leaks_no_address() {
    restricted(Place::KubernetesV1, fault_at_each_request_of_del);
}

fn fault_at_each_request_of_del(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let stays = faulty.pod();
    faulty.run("ADD", &stays);
    let clean = faulty.pod();
    faulty.run("ADD", &clean);
    for case in sweep(&faulty.clean_requests("DEL", &clean), AT_WRITE, AT_READ) {
        let pod = faulty.pod();
        faulty.run("ADD", &pod);
        faulted(faulty, "DEL", &pod, case);
        faulty.run("DEL", &pod);
        faulty.cluster.assert_only(&[&stays]);
        faulty.cluster.remove_pod(&pod);
    }
}

#[on(kubernetes_v3)]
fn check_with_a_fault_at_each_api_request_changes_nothing(faulty: &mut Faulty<'_>) {
    let pod = faulty.pod();
    faulty.conf["prevResult"] = faulty.run("ADD", &pod);
    let requests = faulty.clean_requests("CHECK", &pod);
    let before = faulty.cluster.state();
    for case in sweep(&requests, AT_WRITE, AT_READ) {
        faulted(faulty, "CHECK", &pod, case);
        faulty.cluster.assert_unchanged(&before);
    }
    faulty.run("CHECK", &pod);
    faulty.run("DEL", &pod);
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn every_command_succeeds_if_each_request_is_delayed(faulty: &mut Faulty<'_>) {
    const DELAY: Duration = Duration::from_millis(500);
    let resident = faulty.pod();
    faulty.run("ADD", &resident);
    let mut counts = Vec::new();
    for fault in [None, Some((Point::EveryRequest, Fault::Delay(DELAY)))] {
        let pod = faulty.pod();
        counts.push(["ADD", "CHECK", "STATUS", "DEL", "DEL"].map(|verb| {
            faulty.proxy.arm(fault);
            let answer = faulty.call(verb, &pod).run().success();
            faulty.cluster.assert_listed_is_held();
            if verb == "ADD" {
                faulty.conf["prevResult"] = answer;
            }
            let requests = faulty.proxy.requests();
            assert!(!requests.is_empty(), "{verb}");
            assert_eq!(
                faulty.proxy.faults(),
                if fault.is_some() { requests.len() } else { 0 },
                "{requests:#?}"
            );
            requests.len()
        }));
        faulty.conf.as_object_mut().unwrap().remove("prevResult");
    }
    for (few, late) in counts[0].into_iter().zip(counts[1]) {
        // An ADD repeats reads that are too old, and each command a read that the server's
        // cache answers too late.
        assert!(
            (few..=2 * few).contains(&late),
            "{late} requests instead of {few}: {counts:?}"
        );
    }
    faulty.run("DEL", &resident);
    faulty.cluster.assert_nothing_left();
}
