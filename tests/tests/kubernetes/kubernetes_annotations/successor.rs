//! `K8S_POD_UID`: a deleted pod, and another pod of the same name.

use integration_tests::cluster::{Cluster, Pod, pod_path};
use integration_tests::content::Content;
use integration_tests::plugin::Outcome;
use serde_json::{Value, json};

use crate::kubernetes_annotations::{annotated, annotation, create, on};

fn uid(cluster: &Cluster<'_>) -> String {
    let pod = cluster
        .objects()
        .client()
        .get(&pod_path("pod1"))
        .unwrap()
        .success();
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn run(cluster: &Cluster<'_>, verb: &str, pod: &Pod, uid: &str, conf: &Value) -> Outcome {
    let args = format!("{};K8S_POD_UID={uid}", pod.args());
    cluster.verb(verb, pod, conf).env("CNI_ARGS", args).run()
}

/// Replaces the pod by another one of the same name. Returns the previous UID.
fn replaced(cluster: &Cluster<'_>) -> String {
    let before = uid(cluster);
    cluster
        .objects()
        .client()
        .delete(&pod_path("pod1"))
        .unwrap()
        .success();
    create(cluster.objects().client(), "pod1", &[]);
    assert_ne!(uid(cluster), before);
    before
}

#[on(kubernetes_v1)]
fn add_for_a_deleted_pod_fails_beside_a_pod_of_the_same_name(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let old = annotated(cluster, 1, &[]);
    let old_uid = replaced(cluster);
    let before = cluster.state();
    let error = run(cluster, "ADD", &old, &old_uid, &conf).error();
    assert_eq!(error.msg, "pod suite/pod1 is not the pod of this call");
    assert!(
        error.details.contains(&old_uid) && error.details.contains(&uid(cluster)),
        "{error:?}"
    );
    cluster.assert_unchanged(&before);
    run(cluster, "ADD", &old, &uid(cluster), &conf).success();
    run(cluster, "DEL", &old, &uid(cluster), &conf).success();
    assert_eq!(annotation(cluster, "pod1", "podIP"), "");
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn late_del_keeps_the_annotations_of_a_new_pod_of_the_same_name(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let old = annotated(cluster, 1, &[]);
    run(cluster, "ADD", &old, &uid(cluster), &conf).success();
    let old_uid = replaced(cluster);
    // Upstream would change the annotations of the new pod (CNI-262).
    run(cluster, "DEL", &old, &old_uid, &conf).success();
    assert_eq!(annotation(cluster, "pod1", "podIP"), Value::Null);
    cluster.assert_nothing_left();
    let newer = cluster.sandbox(&old, 11);
    run(cluster, "ADD", &newer, &uid(cluster), &conf).success();
    let address = annotation(cluster, "pod1", "podIP");
    run(cluster, "DEL", &old, &old_uid, &conf).success();
    assert_eq!(annotation(cluster, "pod1", "podIP"), address);
    cluster.assert_only(&[&newer]);
    run(cluster, "DEL", &newer, &uid(cluster), &conf).success();
    cluster.assert_nothing_left();
}

/// A static pod has a different UID on the node than in the API.
#[on(kubernetes_v1)]
fn static_pod_is_identified_by_its_mirror_annotation(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let hash = "3f1c7a6f1e2d4c5b6a79880f1e2d3c4b";
    let pod = annotated(cluster, 1, &[("kubernetes.io/config.mirror", hash)]);
    run(cluster, "ADD", &pod, hash, &conf).success();
    cluster.assert_only(&[&pod]);
    run(cluster, "DEL", &pod, hash, &conf).success();
    assert_eq!(annotation(cluster, "pod1", "podIP"), "");
    cluster.assert_nothing_left();
}
