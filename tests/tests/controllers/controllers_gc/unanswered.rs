//! A request that is never answered delays a release.

use integration_tests::controllers::{Proxied, REPLICAS};
use integration_tests::proxy::{Fault, Point};

use crate::controllers_gc::collected_cluster::{
    CollectedCluster, GRACE, GarbageCollector, SOON, on, settings, to_pod, within,
};

/// Waits until a leaked address is released although the first `method` request for `target` gets
/// no answer. The log then has `line` `times` times.
fn release_without_answer_to(
    cluster: &CollectedCluster<'_>,
    (method, target): (&'static str, &'static str),
    (line, times): (&str, usize),
) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let addresses = cluster.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    cluster.pod("pod", "node-a", &addresses);
    let (api, group) = (cluster.servers.api, cluster.servers.group);
    let account = Proxied::account(api, REPLICAS[1]).unwrap();
    let proxy = api.proxy().unwrap();
    let kubeconfig = api
        .kubeconfig_to(&proxy.endpoint(), "behind-proxy", &account.identity)
        .unwrap();
    let collector = GarbageCollector::start(group, kubeconfig, settings(group));
    collector.await_first_pass();

    proxy.arm(Some((Point::First(method, target), Fault::Hold)));
    cluster.delete_pod("pod");
    collector.advance_until(GRACE, "the request is under way", || proxy.fired());
    assert_eq!(cluster.held().len(), 1);
    within(SOON, "the address is free", || cluster.held().is_empty());
    collector.await_metric("kube_controllers_gc_reclaimed_total 1");
    let log = collector.log();
    assert_eq!(log.matches(line).count(), times, "{line}: {log}");
    let is_same =
        |request: &&String| request.starts_with(&format!("{method} ")) && request.contains(target);
    let requests = proxy.requests();
    assert_eq!(
        requests.iter().filter(is_same).count(),
        2,
        "the first got no answer, and the second did: {requests:#?}"
    );
}

#[on(kubernetes_v1)]
fn gc_with_an_unanswered_pod_lookup_releases_the_address_in_a_later_pass(
    cluster: &CollectedCluster<'_>,
) {
    let look = ("GET", "/pods?fieldSelector=metadata.name%3Dpod&");
    release_without_answer_to(
        cluster,
        look,
        ("cannot look up an object; keeping what depends on it", 1),
    );
}

#[on(kubernetes_v1)]
fn gc_with_an_unanswered_block_write_reads_the_block_again_and_releases(
    cluster: &CollectedCluster<'_>,
) {
    let write = ("PUT", "/ipamblocks/10-0-0-0-26");
    release_without_answer_to(
        cluster,
        write,
        ("releasing a leaked address address=10.0.0.0", 2),
    );
}
