//! A request that is never answered delays a release.

use integration_tests::proxy::{Fault, Point};

use crate::lab::{BEHIND_PROXY, Collecting, GRACE, Lab, SOON, account, to_pod, within};

/// Waits until a leaked address is released although the first `method` request for `target` gets
/// no answer. The log then has `line` `times` times.
fn release_without_answer_to(
    lab: &Lab<'_>,
    (method, target): (&'static str, &'static str),
    (line, times): (&str, usize),
) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    let addresses = lab.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    lab.pod("pod", "node-a", &addresses);
    let api = &lab.servers.api;
    let account = account(api, BEHIND_PROXY).unwrap();
    let proxy = api.proxy().unwrap();
    let kubeconfig = api
        .kubeconfig_to(&proxy.endpoint(), BEHIND_PROXY, &account.identity)
        .unwrap();
    let collecting = Collecting::start(lab.group, kubeconfig, lab.settings());
    collecting.has_looked();

    proxy.arm(Some((Point::First(method, target), Fault::Hold)));
    lab.delete_pod("pod");
    collecting.as_time_goes_by(GRACE, "the request is under way", || proxy.fired());
    assert_eq!(lab.held().len(), 1);
    within(SOON, "the address is free", || lab.held().is_empty());
    collecting.shows("kube_controllers_gc_reclaimed_total 1");
    let log = collecting.log();
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
fn gc_with_an_unanswered_pod_lookup_releases_the_address_in_a_later_pass(lab: &Lab<'_>) {
    let look = ("GET", "/pods?fieldSelector=metadata.name%3Dpod&");
    release_without_answer_to(
        lab,
        look,
        ("cannot look up an object; keeping what depends on it", 1),
    );
}

#[on(kubernetes_v1)]
fn gc_with_an_unanswered_block_write_reads_the_block_again_and_releases(lab: &Lab<'_>) {
    let write = ("PUT", "/ipamblocks/10-0-0-0-26");
    release_without_answer_to(
        lab,
        write,
        ("releasing a leaked address address=10.0.0.0", 2),
    );
}
