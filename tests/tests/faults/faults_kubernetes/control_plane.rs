//! The API server itself: stopped, restarted, with other credentials and certificates.

use std::thread;
use std::time::{Duration, Instant};

use integration_tests::cluster::{Cluster, ControlPlane, Faulty, on, points};
use integration_tests::kernel;
use integration_tests::kubernetes::Identity;
use integration_tests::plugin::{DEADLINE, wait};
use integration_tests::proxy::{Fault, Point, Protocol, ServerCertificate};
use serde_json::json;

use super::cache::every_command_succeeds_without_a_cache;
use super::faulty;

/// CNI error code: try again later.
const TRY_AGAIN: u32 = 11;

#[on(kubernetes_v3)]
fn del_with_the_api_server_stopped_is_replayed_after_a_restart_without_cache(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let api = &mut control_plane.servers.api;
    let direct = api
        .kubeconfig("direct", &control_plane.account.identity)
        .unwrap();
    faulty.conf["kubernetes"]["kubeconfig"] = json!(direct);
    let (gone, refused, next) = (faulty.pod(), faulty.pod(), faulty.pod());
    faulty.run("ADD", &gone);
    api.stop();
    thread::scope(|scope| {
        let calls = [faulty.call("DEL", &gone), faulty.call("ADD", &refused)];
        let [del, add] = calls.map(|call| scope.spawn(move || call.run()));
        let (del, add) = (del.join().unwrap(), add.join().unwrap());
        assert_eq!(del.success(), "");
        assert_eq!(add.error().code, TRY_AGAIN);
    });
    assert_eq!(
        kernel::host().unwrap()["links"],
        json!({}),
        "taken down at once"
    );

    // Without its cache, the server also runs the commands at the end.
    api.restart_with(&["--watch-cache=false"]).unwrap();
    faulty.run("ADD", &next);
    faulty.cluster.assert_only(&[&next]);
    for pod in [&refused, &next] {
        faulty.run("DEL", pod);
    }
    faulty.cluster.assert_nothing_left();
    every_command_succeeds_without_a_cache(faulty);
}

#[on(kubernetes_v1)]
fn add_and_del_succeed_after_a_short_outage_of_the_api_server(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let pod = faulty.pod();
    for verb in ["ADD", "DEL"] {
        faulty.proxy.go_away();
        let call = faulty.call(verb, &pod);
        let started = Instant::now();
        let child = call.spawn().unwrap();
        thread::sleep(Duration::from_millis(500));
        faulty.proxy.arm(None);
        wait(child, started, DEADLINE).unwrap().success();
    }
    faulty.cluster.assert_nothing_left();
}

/// The server becomes unreachable between the assignment of addresses and the write of the
/// endpoint, or during a DEL.
#[on(kubernetes_v1)]
fn api_server_lost_in_the_middle_of_add_or_del_leaves_no_leak(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    // This ADD gives the node a block.
    let first = faulty.pod();
    faulty.run("ADD", &first);
    faulty.run("DEL", &first);
    for (verb, point) in [
        ("ADD", Point::First("PATCH", "/pods/")),
        ("DEL", Point::First("PUT", "/ipamblocks/")),
    ] {
        let pod = faulty.pod();
        if verb == "DEL" {
            faulty.run("ADD", &pod);
        }
        let outcome = faulty.faulted(verb, &pod, point, Fault::Gone);
        assert!(faulty.proxy.fired(), "{verb} did not come to {point:?}");
        match verb {
            "ADD" => assert_eq!(outcome.error().code, TRY_AGAIN),
            _ => drop(outcome.success()),
        }
        assert_eq!(
            kernel::host().unwrap()["links"],
            json!({}),
            "{verb} {point:?}"
        );
        faulty.run("DEL", &pod);
        faulty.cluster.assert_nothing_left();
        faulty.cluster.remove_pod(&pod);
    }
}

#[on(kubernetes_v3)]
fn invalid_token_is_reported_and_a_renewed_token_is_used(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let (api, account) = (&control_plane.servers.api, &control_plane.account);
    let (added, pod) = (faulty.pod(), faulty.pod());
    faulty.run("ADD", &added);
    let before = faulty.cluster.state();
    let stale = "stale.but.secret";
    let file = {
        let url = faulty.proxy.endpoint();
        move |token: &Identity| api.kubeconfig_to(&url, "plugin", token).unwrap()
    };
    let path = file(&Identity::Token(stale.into()));
    for verb in ["ADD", "STATUS"] {
        faulty.proxy.arm(None);
        let outcome = faulty.call(verb, &pod).run();
        let error = outcome.error();
        assert!(
            error.msg.contains(&path.display().to_string()),
            "{verb}: {error:?}"
        );
        assert!(
            !format!("{outcome:?}").contains(stale),
            "{verb} tells the token"
        );
        faulty.cluster.assert_unchanged(&before);
    }

    // The token is renewed after the plugin has read it and before the server receives it.
    faulty.proxy.arm(Some((Point::Request(0), Fault::Hold)));
    let call = faulty.call("ADD", &pod);
    let child = call.spawn().unwrap();
    faulty.proxy.await_held().unwrap();
    file(&account.identity);
    faulty.proxy.resume();
    wait(child, Instant::now(), DEADLINE).unwrap().success();
    faulty.cluster.assert_only(&[&added, &pod]);
    faulty.run("DEL", &added);
    faulty.run("DEL", &pod);
    faulty.cluster.assert_nothing_left();
}

/// A proxy that supports HTTP/1.1 only.
#[on(kubernetes_v1)]
fn add_over_http1_with_a_broken_connection_at_each_request_leaks_none(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let certificate = control_plane.servers.api.server_certificate().unwrap();
    faulty
        .proxy
        .present(&ServerCertificate {
            protocol: Protocol::Http1,
            ..certificate
        })
        .unwrap();
    let pod = faulty.pod();
    let requests = faulty.requests("ADD", &pod);
    let mut checked = faulty.conf.clone();
    checked["prevResult"] = faulty.run("ADD", &pod);
    faulty.cluster.verb("CHECK", &pod, &checked).run().success();
    assert_eq!(
        faulty.proxy.traffic().connections,
        2,
        "one each for ADD and CHECK"
    );
    faulty.run("DEL", &pod);
    faulty.cluster.assert_nothing_left();
    for point in points(requests) {
        let pod = faulty.pod();
        faulty.faulted("ADD", &pod, point, Fault::Cut);
        faulty.run("DEL", &pod);
        faulty.cluster.assert_nothing_left();
        faulty.cluster.remove_pod(&pod);
    }
}

#[on(kubernetes_v3)]
fn replaced_server_certificate_must_be_of_the_same_authority(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let (api, account) = (&control_plane.servers.api, &control_plane.account);
    let (gone, refused) = (faulty.pod(), faulty.pod());
    faulty.run("ADD", &gone);
    faulty
        .proxy
        .present(&api.server_certificate().unwrap())
        .unwrap();
    let pod = faulty.pod();
    faulty.run("ADD", &pod);
    faulty.run("DEL", &pod);
    faulty.cluster.assert_only(&[&gone]);

    let (authority, certificate) = api.certificate_of_another_authority().unwrap();
    faulty.proxy.present(&certificate).unwrap();
    thread::scope(|scope| {
        let calls = [faulty.call("DEL", &gone), faulty.call("ADD", &refused)];
        let [del, add] = calls.map(|call| scope.spawn(move || call.run()));
        assert_eq!(del.join().unwrap().success(), "");
        let error = add.join().unwrap().error();
        assert_eq!(error.code, TRY_AGAIN);
        assert!(error.msg.contains("certificate"), "{error:?}");
    });

    // An operator who replaces the authority also rewrites the kubeconfig.
    let kubeconfig = account
        .identity
        .kubeconfig(&faulty.proxy.endpoint(), &authority)
        .unwrap();
    std::fs::write(account_file(faulty), kubeconfig).unwrap();
    faulty.await_replayed(&refused);
    faulty.cluster.assert_nothing_left();
    faulty.run("DEL", &refused);
    faulty.cluster.assert_nothing_left();
}

fn account_file(faulty: &Faulty<'_>) -> String {
    faulty.conf["kubernetes"]["kubeconfig"]
        .as_str()
        .unwrap()
        .to_owned()
}
