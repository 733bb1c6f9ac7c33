//! The steps of check, and of the release from its reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use libcalico::ipam::report::IpamReport;
use serde_json::Value;
use tempfile::TempDir;

use crate::golden_calicoctl::loaded_course::{Changes, LoadedCourse, Replayed, on};

/// A revision that ClusterInformation of a loaded state does not have.
const STALE: &str = "1";

/// Returns our report on the loaded state, with the recorded revision.
fn our_report(course: &LoadedCourse<'_>, recorded: &IpamReport) -> String {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("report.json");
    let Replayed { outcome, changed } =
        course.run(&["check", "--settle", "0", "--report", file.to_str().unwrap()]);
    assert!(
        outcome.exit.is_some_and(|exit| exit < 2) && changed == Changes::new(),
        "{outcome:?}"
    );
    let mut report = IpamReport::parse(&fs::read(file).unwrap()).unwrap();
    assert_eq!(report.cluster_information_revision, course.revision());
    report
        .cluster_information_revision
        .clone_from(&recorded.cluster_information_revision);
    report.to_text().unwrap()
}

/// Compares the report of our `check` on the state before each of these steps with the recorded
/// one.
pub(crate) fn assert_reports(course: &LoadedCourse<'_>, numbers: &[&str]) {
    for number in numbers {
        course.prepare(number);
        for text in course.step(number).files_after.values() {
            let recorded = IpamReport::parse(text.as_bytes()).unwrap();
            assert_eq!(our_report(course, &recorded), *text, "{number}");
        }
    }
}

#[on(etcd)]
fn check_writes_the_report_of_calicoctl(course: &LoadedCourse<'_>) {
    assert_reports(course, &["15", "16", "21"]);
}

#[on(kubernetes_v1)]
fn check_on_an_api_server_writes_the_report_of_calicoctl(course: &LoadedCourse<'_>) {
    assert_reports(course, &["07", "09", "11"]);
}

/// Returns the second or third words of these lines, such as the addresses of leaks.
fn words<'t>(
    text: &'t str,
    part: &str,
    word: impl Fn(&'t str) -> Option<&'t str>,
) -> BTreeSet<&'t str> {
    text.lines()
        .filter(|line| line.contains(part))
        .filter_map(word)
        .collect()
}

fn first_word(line: &str) -> Option<&str> {
    line.split_whitespace().next()
}

/// Returns the address after `has` or after the colon in a finding of ours.
fn address_of(finding: &str) -> Option<&str> {
    let rest = finding
        .split_once(" has ")
        .or_else(|| finding.split_once(": "))
        .map(|(_, rest)| rest)?;
    rest.split([',', ' ']).next()
}

/// Compares leaks and missing allocations with step `number`, which shows problems.
fn assert_same_problems(course: &LoadedCourse<'_>, number: &str) {
    course.prepare(number);
    let theirs = &course.step(number).stdout;
    let Replayed { outcome, changed } =
        course.run(&["check", "--settle", "0", "--show-problem-ips"]);
    assert_eq!(
        (outcome.exit, changed),
        (Some(1), Changes::new()),
        "{outcome:?}"
    );
    let leaks = words(theirs, " leaked; attrs ", first_word);
    assert_eq!(
        words(&outcome.stdout, "address without endpoint: ", address_of),
        leaks,
        "{outcome:?}"
    );
    let missing = words(
        theirs,
        " and in active IPAM pool but has no IPAM allocation.",
        first_word,
    );
    assert_eq!(
        words(&outcome.stdout, ", which is not allocated", address_of),
        missing,
        "{outcome:?}"
    );
    assert!(!leaks.is_empty() && !missing.is_empty());
}

/// Compares the numbers of leaks and of missing allocations with step `number`, which lists none of
/// them.
fn assert_same_counts(course: &LoadedCourse<'_>, number: &str) {
    let theirs = |text: &str| -> usize {
        let line = course
            .step(number)
            .stdout
            .lines()
            .find(|line| line.ends_with(text))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let Replayed { outcome, changed } = course.replay(number, &["--settle", "0"]);
    assert_eq!(
        (outcome.exit, changed),
        (Some(1), Changes::new()),
        "{number}: {outcome:?}"
    );
    let ours = |text: &str| {
        outcome
            .stdout
            .lines()
            .filter(|line| line.contains(text))
            .count()
    };
    let leaks = theirs(" are allocated in IPAM but not actually in use.");
    assert_eq!(
        ours("address without endpoint: "),
        leaks,
        "{number}: {outcome:?}"
    );
    let missing = theirs(" in active IP pools but have no corresponding IPAM allocation.");
    assert_eq!(
        ours(", which is not allocated"),
        missing,
        "{number}: {outcome:?}"
    );
    assert!(missing > 0, "{number}");
}

#[on(etcd)]
fn check_counts_the_problems_that_calicoctl_counts(course: &LoadedCourse<'_>) {
    assert_same_counts(course, "12");
    assert_same_counts(course, "33");
}

#[on(kubernetes_v1)]
fn check_on_an_api_server_counts_the_problems_that_calicoctl_counts(course: &LoadedCourse<'_>) {
    assert_same_counts(course, "05");
}

/// Upstream fails in step 11, which lacks a KubeControllersConfiguration.
#[on(etcd)]
fn check_finds_the_problems_that_calicoctl_finds(course: &LoadedCourse<'_>) {
    assert_same_problems(course, "13");
    course.prepare("11");
    let Replayed { outcome, .. } = course.run(&["check", "--settle", "0"]);
    assert!(
        outcome.exit == Some(1) && outcome.stdout.contains("5 things are wrong"),
        "{outcome:?}"
    );
}

#[on(kubernetes_v1)]
fn check_on_an_api_server_finds_the_problems_that_calicoctl_finds(course: &LoadedCourse<'_>) {
    assert_same_problems(course, "06");
}

#[on(etcd)]
fn all_addresses_are_listed_in_calicoctls_words(course: &LoadedCourse<'_>) {
    let Replayed { outcome, .. } = course.replay("14", &["--settle", "0"]);
    let listed = |text: &str| -> Vec<String> {
        let is_listed =
            |line: &&str| line.starts_with(" IPAM block ") || line.contains(" allocated; attrs ");
        let mut lines: Vec<String> = text.lines().filter(is_listed).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(listed(&outcome.stdout), listed(&course.step("14").stdout));
}

/// Writes the files of a step, with `revisions` in place of the recorded ones, and returns their
/// paths.
fn write_files(
    course: &LoadedCourse<'_>,
    number: &str,
    dir: &TempDir,
    revisions: &[&str],
) -> Vec<String> {
    let files: BTreeMap<&String, &String> = course.step(number).files_before.iter().collect();
    assert_eq!(files.len(), revisions.len(), "{number}");
    let write = |((name, text), revision): ((&String, &String), &&str)| {
        let mut report = IpamReport::parse(text.as_bytes()).unwrap();
        report.cluster_information_revision = (*revision).to_owned();
        let path = dir.path().join(name);
        fs::write(&path, report.to_text().unwrap()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    files.into_iter().zip(revisions).map(write).collect()
}

/// Replays a release from reports with the lock rule. The files have these revisions, and the
/// present one for `None`.
fn release(
    course: &LoadedCourse<'_>,
    number: &str,
    revisions: &[Option<&str>],
    more: &[&str],
) -> Replayed {
    course.prepare(number);
    let (present, dir) = (course.revision(), TempDir::new().unwrap());
    let revisions: Vec<&str> = revisions
        .iter()
        .map(|revision| revision.unwrap_or(&present))
        .collect();
    let files = write_files(course, number, &dir, &revisions);
    let files = files.iter().map(String::as_str);
    let line: Vec<&str> = ["release", "--from-report"]
        .into_iter()
        .chain(files)
        .chain(["--require-lock"])
        .collect();
    course.run(&[&line[..], more].concat())
}

fn assert_refused(course: &LoadedCourse<'_>, number: &str, revision: Option<&str>, more: &[&str]) {
    let Replayed { outcome, changed } = release(course, number, &[revision], more);
    assert_eq!(
        (outcome.exit, changed),
        (Some(1), Changes::new()),
        "{number}: {outcome:?}"
    );
    // The file has another path, and calicoctl prints the error twice.
    let theirs = course
        .step(number)
        .stderr
        .lines()
        .next()
        .unwrap()
        .trim_start_matches("Error: ");
    let expected = theirs.split_once(".json)").map_or(theirs, |(_, rest)| rest);
    assert!(outcome.stderr.contains(expected), "{number}: {outcome:?}");
}

#[on(etcd)]
fn release_from_reports_is_refused_in_upstreams_words(course: &LoadedCourse<'_>) {
    assert_refused(course, "17", None, &[]);
    assert_refused(course, "22", Some(STALE), &[]);
    assert_refused(course, "23", None, &[]);
    assert_refused(course, "26", Some(STALE), &["--force"]);
}

/// Removes the sequence numbers of blocks: calicoctl writes a block once, and `calico-ipam` once
/// for each address.
fn without_sequence(changes: Changes) -> Changes {
    fn remove(value: &mut Value) {
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| name != "sequenceNumber" && name != "sequence_number");
            fields.values_mut().for_each(remove);
        }
    }
    let mut changes = changes;
    changes.values_mut().flatten().for_each(remove);
    changes
}

#[on(etcd)]
fn release_from_two_reports_writes_as_upstream_does(course: &LoadedCourse<'_>) {
    // The files in alphabetical order: locked.json, report-all.json.
    let Replayed { outcome, changed } = release(course, "24", &[None, Some(STALE)], &[]);
    assert_eq!(
        (outcome.exit, outcome.stdout.matches(": released: ").count()),
        (Some(0), 4),
        "{outcome:?}"
    );
    assert_eq!(
        without_sequence(changed),
        without_sequence(course.recorded_changes("24"))
    );
    assert!(
        outcome
            .stderr
            .contains("You may now unlock the data store."),
        "{outcome:?}"
    );
}

/// calicoctl reports an update conflict.
#[on(etcd)]
fn second_release_from_the_same_report_leaves_the_addresses_alone(course: &LoadedCourse<'_>) {
    let Replayed { outcome, changed } = release(course, "25", &[None], &[]);
    assert_eq!(
        (outcome.exit, changed),
        (Some(0), Changes::new()),
        "{outcome:?}"
    );
    assert_eq!(
        outcome
            .stdout
            .matches(": left alone: it is not in use\n")
            .count(),
        4,
        "{outcome:?}"
    );
}

/// calicoctl exits with an error; ours finds nothing to do.
#[on(etcd)]
fn release_of_a_free_address_writes_nothing(course: &LoadedCourse<'_>) {
    for number in ["36", "37"] {
        let Replayed { outcome, changed } = course.replay(number, &[]);
        assert_eq!(
            (outcome.exit, changed),
            (Some(0), Changes::new()),
            "{number}: {outcome:?}"
        );
        assert!(
            outcome.stdout.ends_with(": left alone: it is not in use\n"),
            "{number}: {outcome:?}"
        );
    }
}

#[on(kubernetes_v1)]
fn release_from_a_report_on_an_api_server_writes_as_upstream_does(course: &LoadedCourse<'_>) {
    let Replayed { outcome, changed } = release(course, "08", &[None], &["--force"]);
    assert_eq!(
        (outcome.exit, outcome.stdout.matches(": released: ").count()),
        (Some(0), 3),
        "{outcome:?}"
    );
    assert!(
        outcome
            .stderr
            .contains("WARNING: Data store is not locked."),
        "{outcome:?}"
    );
    assert_eq!(
        without_sequence(changed),
        without_sequence(course.recorded_changes("08"))
    );
    let Replayed { outcome, changed } = release(course, "12", &[None], &[]);
    assert_eq!(
        (outcome.stdout.as_str(), changed),
        ("nothing to release\n", Changes::new()),
        "{outcome:?}"
    );
}
