//! The steps on an API server: show, configure, the lock, and the refusal to release the address of
//! a running pod. The recorded pods also serve for the endpoints of one namespace.

use serde_json::Value;

use crate::golden_calicoctl::loaded_course::{Changes, LoadedCourse, Replayed, on, rows};

#[on(kubernetes_v1)]
fn show_on_an_api_server_prints_upstreams_columns(course: &LoadedCourse<'_>) {
    for number in ["01", "02"] {
        let Replayed { outcome, changed } = course.replay(number, &[]);
        assert_eq!(
            rows(&outcome.stdout, 6),
            rows(&course.step(number).stdout, 6),
            "{number}: {outcome:?}"
        );
        assert_eq!(changed, Changes::new(), "{number}");
    }
    let Replayed { outcome, .. } = course.replay("03", &[]);
    assert_eq!(outcome.stdout, course.step("03").stdout);
    let Replayed { outcome, .. } = course.replay("04", &[]);
    let mut ours = outcome.stdout.lines();
    for line in course.step("04").stdout.lines() {
        assert!(ours.any(|own| own == line), "{line}: {outcome:?}");
    }
}

#[on(kubernetes_v1)]
fn configure_and_lock_on_an_api_server_write_as_upstream_does(course: &LoadedCourse<'_>) {
    for number in ["10", "13", "15"] {
        let Replayed { outcome, changed } = course.replay(number, &[]);
        let recorded = course.step(number).stdout.as_str();
        assert_eq!(
            (outcome.exit, outcome.stdout.as_str()),
            (Some(0), recorded),
            "{number}: {outcome:?}"
        );
        assert_eq!(changed, course.recorded_changes(number), "{number}");
    }
}

/// Upstream releases the address (step 14).
#[on(kubernetes_v1)]
fn release_of_a_running_pods_address_is_refused(course: &LoadedCourse<'_>) {
    let Replayed { outcome, changed } = course.replay("14", &[]);
    assert_eq!(
        (outcome.exit, changed),
        (Some(1), Changes::new()),
        "{outcome:?}"
    );
}

#[on(kubernetes_v1)]
fn endpoints_of_one_namespace_are_listed_on_an_api_server(course: &LoadedCourse<'_>) {
    course.prepare("01");
    let namespaces = |arguments: &[&str]| -> Vec<String> {
        let Replayed { outcome, .. } =
            course.run(&[&["endpoints", "-o", "json"][..], arguments].concat());
        let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let items = document["items"].as_array().unwrap().iter();
        items
            .map(|item| item["metadata"]["namespace"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = namespaces(&["-A"]);
    assert!(
        !all.is_empty() && all.iter().all(|namespace| namespace == "ns1"),
        "{all:?}"
    );
    assert_eq!(namespaces(&["-n", "ns1"]), all);
    assert_eq!(namespaces(&["-n", "default"]), Vec::<String>::new());
}
