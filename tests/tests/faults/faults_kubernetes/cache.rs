//! The API server's cache fails: the reads are repeated from the server's own store.

use integration_tests::cluster::Faulty;
use integration_tests::proxy::{Fault, Point, Refusal};

use super::on;

/// The first read that the server's cache may answer.
const CACHED: Point = Point::First("GET", "resourceVersion=");
/// More such reads than any CNI command has.
const MANY: usize = 20;

#[on(kubernetes_v3)]
fn every_command_succeeds_if_the_api_server_cache_fails(faulty: &mut Faulty<'_>) {
    let stays = faulty.pod();
    faulty.run("ADD", &stays);
    let refused = [400, 410, 500, 503, 504].map(|code| Fault::Refuse(Refusal::of(code)));
    for fault in refused.into_iter().chain([Fault::Cut]) {
        let pod = faulty.pod();
        for verb in ["ADD", "STATUS", "DEL"] {
            faulty.proxy.arm_all(&[(CACHED, fault); MANY]);
            faulty.call(verb, &pod).run().success();
            assert!(
                faulty.proxy.fired() || verb == "DEL",
                "{verb} asks no cache: {:?}",
                faulty.proxy.requests()
            );
        }
        faulty.cluster.assert_only(&[&stays]);
    }
    faulty.run("DEL", &stays);
    faulty.cluster.assert_nothing_left();
}

/// Runs each command on a server that was started without a cache.
pub(super) fn every_command_succeeds_without_a_cache(faulty: &mut Faulty<'_>) {
    let pods = [faulty.pod(), faulty.pod()];
    faulty.run("ADD", &pods[0]);
    faulty.conf["prevResult"] = faulty.run("ADD", &pods[1]);
    for verb in ["CHECK", "STATUS", "DEL"] {
        faulty.run(verb, &pods[1]);
    }
    faulty.conf.as_object_mut().unwrap().remove("prevResult");
    faulty.run("DEL", &pods[0]);
    faulty.cluster.assert_nothing_left();
}
