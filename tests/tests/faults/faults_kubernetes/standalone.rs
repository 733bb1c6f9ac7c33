//! A lock and a migration, seen by `calico-ipam` as the IPAM plugin of another main plugin, and by
//! the connection test. A lock during an ADD.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use datastore::kubernetes::API_GROUP_FILE;
use integration_tests::cluster::{Cluster, ControlPlane, Faulty, Pod, on};
use integration_tests::migration::{handles, migrate, set_ready};
use integration_tests::plugin::{Call, DEADLINE, Outcome, wait};
use integration_tests::proxy::{Fault, Point};
use libcalico::kubernetes::ApiGroup;
use libcalico::kubernetes::ApiGroup::{CrdV1, V3};
use serde_json::{Value, json};

use super::faulty;

fn call(faulty: &Faulty<'_>, verb: &str, pod: &Pod) -> Call {
    let call = faulty.cluster.plugins.verb(
        "calico-ipam",
        verb,
        &pod.container_id,
        &pod.netns,
        &faulty.conf,
    );
    call.env("CNI_ARGS", pod.args())
}

fn run(faulty: &Faulty<'_>, verb: &str, pod: &Pod) {
    faulty.proxy.arm(None);
    call(faulty, verb, pod).run().success();
}

fn test_connection(faulty: &Faulty<'_>) -> Outcome {
    faulty.proxy.arm(None);
    let call = faulty
        .cluster
        .plugins
        .call("calico")
        .without_env("CNI_PATH")
        .args(["-t"]);
    call.stdin(faulty.conf.to_string()).run()
}

/// Removes the API group from the configuration. Returns the configuration as it was.
fn without_group(faulty: &mut Faulty<'_>) -> Value {
    let named = faulty.conf.clone();
    faulty
        .conf
        .as_object_mut()
        .unwrap()
        .remove("calico_api_group");
    named
}

/// Shows SEC-68.
#[on(kubernetes_v1)]
fn standalone_calico_ipam_writes_nothing_while_locked(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    without_group(faulty);
    faulty.conf["cni.dev/valid-attachments"] = json!([]);
    let (first, second) = (faulty.pod(), faulty.pod());
    run(faulty, "ADD", &first);
    set_ready(&control_plane.servers.api, false);
    let before = faulty.cluster.store.dump().unwrap();
    for (verb, pod, code) in [
        ("ADD", &second, 11),
        ("DEL", &first, 11),
        ("GC", &first, 11),
        ("STATUS", &first, 50),
    ] {
        faulty.proxy.arm(None);
        let error = call(faulty, verb, pod).run().error();
        assert_eq!(error.code, code, "{verb}: {error:?}");
        assert!(
            error
                .msg
                .contains("Calico is currently not ready to process requests"),
            "{verb}: {error:?}"
        );
        let requests = faulty.proxy.requests();
        assert!(
            requests.iter().all(|request| request.starts_with("GET ")),
            "{verb}: {requests:?}"
        );
    }
    assert_eq!(faulty.cluster.store.dump().unwrap(), before);

    set_ready(&control_plane.servers.api, true);
    run(faulty, "DEL", &first);
    faulty.cluster.assert_nothing_left();
}

/// A migration begins to copy blocks 10 s after its lock. An address that an ADD gets in v1 later
/// would be free in v3. Shows SEC-70.
#[on(kubernetes_v1)]
fn add_that_was_delayed_until_after_a_lock_fails(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    /// The time for which an ADD relies on the ClusterInformation. The deadline of a request is 2 s
    /// longer.
    const DELAY: Duration = Duration::from_millis(8001);
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let api = &control_plane.servers.api;
    let (first, of_calico, of_ipam) = (faulty.pod(), faulty.pod(), faulty.pod());
    run(faulty, "ADD", &first);
    for (pod, delayed) in [
        (&of_calico, faulty.call("ADD", &of_calico)),
        (&of_ipam, call(faulty, "ADD", &of_ipam)),
    ] {
        faulty
            .proxy
            .arm(Some((Point::First("PUT", "/ipamblocks/"), Fault::Hold)));
        let begun = Instant::now();
        let child = delayed.spawn().unwrap();
        faulty.proxy.await_held().unwrap();
        let held = Instant::now();
        set_ready(api, false);
        thread::sleep(DELAY.saturating_sub(held.elapsed()));
        faulty.proxy.resume();
        let error = wait(child, begun, DEADLINE).unwrap().error();
        assert_eq!(error.code, 11, "{error:?}");
        assert!(
            error
                .msg
                .contains("Calico is currently not ready to process requests"),
            "{error:?}"
        );
        // The runtime runs a DEL after a failed ADD.
        let released = error.details.contains("the addresses were released");
        assert_eq!(
            released,
            pod.container_id == of_calico.container_id,
            "{error:?}"
        );
        assert_eq!(handles(api, CrdV1), if released { 1 } else { 2 });
        set_ready(api, true);
    }
    faulty.run("DEL", &of_calico);
    for pod in [&of_ipam, &first] {
        run(faulty, "DEL", pod);
    }
    faulty.cluster.assert_nothing_left();
}

/// Shows SEC-72.
#[on(kubernetes_v1)]
fn standalone_calico_ipam_follows_a_migration(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let named = without_group(faulty);
    let (first, second, third) = (faulty.pod(), faulty.pod(), faulty.pod());
    run(faulty, "ADD", &first);
    let api = &control_plane.servers.api;
    migrate(api);
    let cached = || fs::read_to_string(API_GROUP_FILE).unwrap();
    assert!(cached().contains(CrdV1.api_version()), "{}", cached());

    run(faulty, "ADD", &second);
    assert!(cached().contains(V3.api_version()), "{}", cached());
    let both = |groups: [ApiGroup; 2]| groups.map(|group| handles(api, group));
    assert_eq!(both([CrdV1, V3]), [1, 2]);
    run(faulty, "STATUS", &third);
    run(faulty, "ADD", &third);
    for pod in [&first, &second, &third] {
        run(faulty, "DEL", pod);
    }
    assert_eq!(both([CrdV1, V3]), [1, 0], "the former group is unchanged");

    faulty.conf = named;
    for (verb, code) in [("ADD", 11), ("STATUS", 50)] {
        faulty.proxy.arm(None);
        let error = call(faulty, verb, &first).run().error();
        assert_eq!(error.code, code, "{verb}: {error:?}");
        assert!(
            error.msg.contains("moved to projectcalico.org/v3"),
            "{verb}: {error:?}"
        );
        assert!(
            error.details.contains("set calico_api_group"),
            "{verb}: {error:?}"
        );
    }
    assert_eq!(both([CrdV1, V3]), [1, 0]);
}

/// Shows SEC-72.
#[on(kubernetes_v1)]
fn connection_test_follows_a_migration(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let named = without_group(faulty);
    test_connection(faulty).success();
    let api = &control_plane.servers.api;
    set_ready(api, false);
    let error = test_connection(faulty).error();
    assert!(
        error.code == 100 && error.details.contains("not ready"),
        "{error:?}"
    );

    migrate(api);
    test_connection(faulty).success();
    faulty.conf = named;
    let error = test_connection(faulty).error();
    assert!(
        error.code == 100 && error.details.contains("set calico_api_group"),
        "{error:?}"
    );
}
