//! The final checks of the suites fail on leftovers of a pod.

use std::panic::{AssertUnwindSafe, catch_unwind};

use integration_tests::cluster::{Cluster, on};
use integration_tests::content::Content;
use serde_json::json;

fn fails(check: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(check)).is_err()
}

#[on(etcd, local)]
fn leftovers_fail_the_final_checks(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    cluster.assert_nothing_left();
    let conf = cluster.conf("node1", json!({}));
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    cluster.assert_in_order();
    assert!(
        fails(|| cluster.assert_nothing_left()),
        "a pod that is still there"
    );

    let content = cluster.store.dump().unwrap();
    let endpoint = content
        .keys()
        .find(|key| key.contains("/workloadendpoints/"))
        .unwrap();
    let handle = content
        .keys()
        .find(|key| key.contains("/ipam/v2/handle/"))
        .unwrap();
    for (key, words) in [(endpoint, "10.65."), (handle, &pod.container_id[..12])] {
        cluster.store.delete(key).unwrap();
        let check = cluster
            .store
            .calico_ipam(&cluster.plugins, &["check"])
            .unwrap();
        assert_eq!(
            check.exit,
            Some(1),
            "calico-ipam check: {}{}",
            check.stdout,
            check.stderr
        );
        assert!(
            check.stdout.contains(words),
            "{words} is not in {}",
            check.stdout
        );
        assert!(
            fails(|| cluster.assert_in_order()) || key == endpoint,
            "{key}"
        );
        cluster.store.put(key, &content[key]).unwrap();
        cluster.assert_in_order();
    }

    let before = cluster.state();
    cluster.assert_unchanged(&before);
    integration_tests::command::ip("link add cali1 type veth peer name cali2").unwrap();
    assert!(
        fails(|| cluster.assert_unchanged(&before)),
        "a new interface"
    );
    cluster.delete(&pod, &conf);
    assert!(
        fails(|| cluster.assert_nothing_left()),
        "an interface that is still there"
    );
    integration_tests::command::ip("link delete cali1").unwrap();
    cluster.assert_nothing_left();
}
