//! The steps of `calicoctl datastore migrate`: our export of the recorded etcd, and our imports of
//! calicoctl's file.

use std::fs;

use libcalico::migration::calicoctl_file::{CalicoctlFile, parse};
use tempfile::TempDir;

use crate::golden_calicoctl::datastore::{Datastore, on};
use crate::golden_calicoctl::loaded_course::{
    Changes, Content, LoadedCourse, Replayed, of_calico, rows,
};
use crate::golden_calicoctl::reports::assert_reports;

const NODES: &str = "nodes//";

/// Replays a step that prints upstream's text and writes what upstream writes.
fn assert_as_recorded(course: &LoadedCourse<'_>, number: &str) {
    let Replayed { outcome, changed } = course.replay(number, &[]);
    let step = course.step(number);
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str()),
        (Some(0), step.stdout.as_str()),
        "{number}: {outcome:?}"
    );
    assert_eq!(changed, course.recorded_changes(number), "{number}");
}

/// Expects a refusal with this text, which changes nothing.
fn assert_refused(replayed: Replayed, text: &str) {
    let Replayed { outcome, changed } = replayed;
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str(), changed),
        (Some(1), "", Changes::new()),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains(text), "{outcome:?}");
}

/// Runs our import with the file of a step, on the recorded state before the step.
fn import(course: &LoadedCourse<'_>, number: &str) -> Replayed {
    course.prepare(number);
    import_now(course, number)
}

/// Runs our import with the file of a step, on the present state.
fn import_now(course: &LoadedCourse<'_>, number: &str) -> Replayed {
    let (step, dir) = (course.step(number), TempDir::new().unwrap());
    for (name, text) in &step.files_before {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let file = dir.path().join(step.argv.last().unwrap());
    course.run(&["migrate", "import", "-f", file.to_str().unwrap()])
}

/// Returns the recorded changes, without those of nodes, and the annotations of nodes that Calico
/// writes.
fn recorded(course: &LoadedCourse<'_>, number: &str) -> (Changes, Content) {
    let (nodes, objects): (Changes, Changes) = course
        .recorded_changes(number)
        .into_iter()
        .partition(|(key, _)| key.starts_with(NODES));
    let name = |key: String| key.trim_start_matches(NODES).to_owned();
    let nodes = nodes
        .into_iter()
        .map(|(key, node)| (name(key), of_calico(&node.unwrap()["annotations"])));
    (objects, nodes.collect())
}

/// Returns the content of a file in an order of its own, without what calicoctl writes and
/// `calico-ipam` does not.
fn sorted(text: &str) -> CalicoctlFile {
    let mut file = parse(text).unwrap();
    file.resources
        .sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]));
    file.cluster["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    file
}

#[on(etcd)]
fn lock_and_export_of_etcd_write_and_print_as_upstream_does(datastore: Datastore<'_>) {
    let course = &datastore.course("migrate-etcd");
    let replayed = course.replay("01", &[]);
    assert!(
        course
            .step("01")
            .stderr
            .contains("datastore is not locked. Run ")
    );
    assert_refused(replayed, "datastore is not locked. Run ");
    assert_as_recorded(course, "02");

    let Replayed { outcome, changed } = course.replay("03", &[]);
    assert_eq!(
        (outcome.exit, changed),
        (Some(0), Changes::new()),
        "{outcome:?}"
    );
    assert!(
        outcome
            .stderr
            .contains("note: not exported: 1 workloadendpoints"),
        "{outcome:?}"
    );
    let (mut ours, theirs) = (sorted(&outcome.stdout), sorted(&course.step("03").stdout));
    // calicoctl leaves the node's name in etcd there.
    let mut renamed = 0;
    for object in ours
        .resources
        .iter_mut()
        .filter(|object| object["spec"]["node"] == "node1")
    {
        object["spec"]["node"] = "etcd-name-1".into();
        renamed += 1;
    }
    assert_eq!(renamed, 2);
    assert_eq!(ours, theirs);
}

#[on(etcd)]
fn unlock_of_etcd_writes_and_prints_as_upstream_does(datastore: Datastore<'_>) {
    let course = &datastore.course("migrate-etcd-end");
    assert_as_recorded(course, "01");
}

#[on(kubernetes_v1)]
fn import_of_calicoctls_file_writes_and_prints_as_upstream_does(datastore: Datastore<'_>) {
    let course = &datastore.course("migrate-kubernetes");
    course.create_namespace("ns1");
    let Replayed { outcome, changed } = import(course, "01");
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str()),
        (Some(0), course.step("01").stdout.as_str()),
        "{outcome:?}"
    );
    assert_eq!((changed, course.node_annotations()), recorded(course, "01"));

    // Upstream refuses the second import, also after an interruption.
    let Replayed { outcome, changed } = import(course, "02");
    assert_eq!(
        (outcome.exit, changed),
        (Some(0), Changes::new()),
        "{outcome:?}"
    );
    let unchanged = "Successfully applied 19 resource(s), of which 19 existed \
                     already\nImporting IPAM resources\n\
                     Successfully applied 13 IPAM resource(s), of which 13 existed already\n";
    assert!(outcome.stdout.starts_with(unchanged), "{outcome:?}");
    // The target is locked, and no source of an export.
    let not_etcd = "invalid datastore type: kubernetes to export from for datastore migration. \
                    Datastore type must be etcdv3";
    assert_refused(course.run(&["migrate", "export"]), not_etcd);

    assert_as_recorded(course, "04");
    assert_reports(course, &["05"]);
    let Replayed { outcome, changed } = course.replay("06", &[]);
    assert_eq!(
        (rows(&outcome.stdout, 6), changed),
        (rows(&course.step("06").stdout, 6), Changes::new())
    );
    assert_refused(course.replay("07", &[]), "datastore is not locked. Run ");
}

/// Upstream locks the target before it reads the file.
#[on(kubernetes_v1)]
fn import_of_a_broken_file_changes_nothing(datastore: Datastore<'_>) {
    let course = &datastore.course("migrate-kubernetes-broken-file");
    assert_refused(
        import(course, "01"),
        "is improperly formatted: it has 1 parts",
    );
}

/// Upstream locks the target before it reads the file.
#[on(kubernetes_v1)]
fn import_of_a_missing_file_changes_nothing(datastore: Datastore<'_>) {
    let course = &datastore.course("migrate-kubernetes-no-file");
    assert_refused(
        import(course, "01"),
        "absent.yaml: No such file or directory",
    );
}

/// Upstream stops half-way, and refuses each further import.
#[on(kubernetes_v1)]
fn import_without_a_namespace_changes_nothing_and_succeeds_with_the_namespace(
    datastore: Datastore<'_>,
) {
    let course = &datastore.course("migrate-kubernetes-no-namespace");
    let missing = "NetworkPolicy(ns1/allow): namespace ns1 does not exist; create it first";
    assert_refused(import(course, "01"), missing);
    course.create_namespace("ns1");
    // The state that upstream's import left.
    let Replayed { outcome, changed } = import(course, "02");
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    assert!(
        changed.contains_key("networksets/ns1/set2")
            && changed.contains_key("ipamhandles//net1.c4")
    );
}

#[on(kubernetes_v1)]
fn import_without_nodes_writes_the_rest_with_a_warning_as_upstream_does(datastore: Datastore<'_>) {
    let course = &datastore.course("migrate-kubernetes-no-nodes");
    let replayed = course.replay("01", &[]);
    assert_refused(replayed, "has no ClusterInformation");
    course.create_namespace("ns1");
    let Replayed { outcome, changed } = import(course, "02");
    assert_eq!(
        (outcome.exit, changed),
        (Some(0), recorded(course, "02").0),
        "{outcome:?}"
    );
    for node in ["node1", "node2"] {
        let warning =
            format!("[WARNING] Attempted to import node Node({node}) from etcd that references");
        assert!(course.step("02").stdout.contains(&warning), "{node}");
        assert!(
            outcome
                .stderr
                .lines()
                .any(|line| line.starts_with(&warning)),
            "{outcome:?}"
        );
    }
    assert!(
        outcome
            .stderr
            .contains("note: 4 blocks belong to nodes that do not exist in Kubernetes")
    );
    let Replayed { outcome, changed } = import_now(course, "03");
    assert_eq!(
        (outcome.exit, changed),
        (Some(0), Changes::new()),
        "{outcome:?}"
    );
}
