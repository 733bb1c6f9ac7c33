//! The steps on etcd: show, split, configure, and the release of single addresses.

use crate::golden_calicoctl::loaded_course::{Changes, LoadedCourse, Replayed, on, rows};

/// The columns of calicoctl's table of pools; ours has two more.
const COLUMNS: usize = 6;
/// The row in which upstream prints a pointer.
const PERSISTENCE: &str = "KubeVirtVMAddressPersistence";

/// Replays a step that our program refuses without a write, and whose error contains this text in
/// both programs.
fn assert_refused(course: &LoadedCourse<'_>, number: &str, exit: i32, text: &str) {
    let Replayed { outcome, changed } = course.replay(number, &[]);
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str()),
        (Some(exit), ""),
        "{number}: {outcome:?}"
    );
    assert!(
        course.step(number).stderr.contains(text) && outcome.stderr.contains(text),
        "{number}: {outcome:?}"
    );
    assert_eq!(changed, Changes::new(), "{number}");
}

#[on(etcd)]
fn show_prints_upstreams_columns(course: &LoadedCourse<'_>) {
    for number in ["01", "02", "34"] {
        let Replayed { outcome, changed } = course.replay(number, &[]);
        assert_eq!(
            rows(&outcome.stdout, COLUMNS),
            rows(&course.step(number).stdout, COLUMNS),
            "{number}"
        );
        assert_eq!(
            (outcome.exit, changed),
            (Some(0), Changes::new()),
            "{number}"
        );
    }
}

#[on(etcd)]
fn show_of_borrowed_addresses_prints_upstreams_table(course: &LoadedCourse<'_>) {
    let Replayed { outcome, .. } = course.replay("03", &[]);
    assert_eq!(
        (outcome.stdout.as_str(), outcome.exit),
        (course.step("03").stdout.as_str(), Some(0))
    );
}

#[on(etcd)]
fn show_of_the_configuration_prints_values_in_upstreams_table(course: &LoadedCourse<'_>) {
    for (number, persistence) in [("04", "Enabled"), ("44", "Enabled"), ("48", "Disabled")] {
        let mut expected = rows(&course.step(number).stdout, 2);
        for row in expected.iter_mut().filter(|row| row[0] == PERSISTENCE) {
            row[1] = persistence.to_owned();
        }
        let Replayed { outcome, .. } = course.replay(number, &[]);
        assert_eq!(rows(&outcome.stdout, 2), expected, "{number}: {outcome:?}");
    }
}

#[on(etcd)]
fn show_of_an_address_begins_as_upstreams_does(course: &LoadedCourse<'_>) {
    for number in ["05", "06", "07", "08"] {
        let Replayed { outcome, .. } = course.replay(number, &[]);
        let mut ours = outcome.stdout.lines();
        for line in course.step(number).stdout.lines() {
            assert!(
                ours.any(|own| own.starts_with(line)),
                "{number}: {line}: {outcome:?}"
            );
        }
        assert_eq!(outcome.exit, Some(0), "{number}");
    }
    let Replayed { outcome, .. } = course.replay("09", &[]);
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str()),
        (Some(2), ""),
        "an invalid address is a wrong argument"
    );
}

/// Upstream disables the pool in step 27 before it checks the number.
#[on(etcd)]
fn split_is_refused_in_upstreams_words_without_a_write(course: &LoadedCourse<'_>) {
    assert_refused(course, "18", 1, "datastore is not locked. Run ");
    assert_refused(
        course,
        "27",
        1,
        "number to split CIDR into is not a valid power of 2: 3",
    );
    let too_small = "IP pool size is too small for use with Calico IPAM. It must be equal to \
                         or greater than the block size.";
    assert_refused(course, "28", 1, too_small);
    assert_refused(course, "29", 1, "unable to find IP pool with name nothing");
}

/// Upstream prints no line break after the first sentence and the last one.
#[on(etcd)]
fn split_writes_and_prints_as_upstream_does(course: &LoadedCourse<'_>) {
    for number in ["30", "31"] {
        let Replayed { outcome, changed } = course.replay(number, &[]);
        let without_breaks = |text: &str| text.replace('\n', "");
        let expected = without_breaks(&course.step(number).stdout);
        assert_eq!(
            (outcome.exit, without_breaks(&outcome.stdout)),
            (Some(0), expected),
            "{}",
            outcome.stderr
        );
        assert!(
            outcome.stdout.ends_with('\n') && outcome.stdout.contains("pools.\nCreated"),
            "{number}"
        );
        assert_eq!(changed, course.recorded_changes(number), "{number}");
    }
}

#[on(etcd)]
fn configure_is_refused_in_upstreams_words(course: &LoadedCourse<'_>) {
    assert_refused(
        course,
        "39",
        1,
        "at least one configuration option must be specified",
    );
    assert_refused(
        course,
        "40",
        2,
        "invalid value. Use true or false to set strictaffinity",
    );
    assert_refused(
        course,
        "41",
        1,
        "MaxBlocksPerHost requires StrictAffinity to be enabled",
    );
}

#[on(etcd)]
fn configure_writes_and_prints_as_upstream_does(course: &LoadedCourse<'_>) {
    for number in ["43", "45", "46", "47"] {
        let Replayed { outcome, changed } = course.replay(number, &[]);
        assert_eq!(
            (outcome.exit, outcome.stdout.as_str()),
            (Some(0), course.step(number).stdout.as_str()),
            "{number}"
        );
        assert_eq!(changed, course.recorded_changes(number), "{number}");
    }
}

/// Ours requires `--force` for an address in use, and an argument.
#[on(etcd)]
fn release_of_an_address_writes_as_upstream_does(course: &LoadedCourse<'_>) {
    for number in ["35", "42"] {
        let Replayed { outcome, changed } = course.replay(number, &["--force"]);
        assert_eq!(outcome.exit, Some(0), "{number}: {outcome:?}");
        assert_eq!(changed, course.recorded_changes(number), "{number}");
    }
    let Replayed { outcome, changed } = course.replay("38", &[]);
    assert_eq!((outcome.exit, changed), (Some(2), Changes::new()));
}

#[on(etcd)]
fn lock_and_unlock_write_and_print_as_upstream_does(course: &LoadedCourse<'_>) {
    for number in ["19", "20", "32"] {
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
