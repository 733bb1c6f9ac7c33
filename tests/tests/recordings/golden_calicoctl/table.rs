//! All files of the recordings, each with the treatment of its step.

use integration_tests::golden::calicoctl::names;

use self::Treatment::{Replayed, Report, State, Unneeded};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    /// A state, not a step.
    State,
    /// A step that `etcd.rs`, `kubernetes.rs` or `migrate.rs` replays.
    Replayed,
    /// A step of `check`, or of a release by its report, that `reports.rs` replays.
    Report,
    /// A step that is not replayed, with the reason.
    Unneeded(&'static str),
}

const VERSION: &str = "`calico-ipam` works with each version of the cluster";
const SAME_COUNTS: &str = "the report of a later step on the same addresses has these counts";
const NO_KUBECONFIG: &str = "`calico-ipam` needs no kubeconfig beside etcd";

const ETCD: [(&str, Treatment); 51] = [
    ("01-show", Replayed),
    ("02-show-blocks", Replayed),
    ("03-show-borrowed", Replayed),
    ("04-show-configuration-none", Replayed),
    ("05-show-ip-used", Replayed),
    ("06-show-ip-borrowed", Replayed),
    ("07-show-ip-free", Replayed),
    ("08-show-ip-no-pool", Replayed),
    ("09-show-ip-wrong", Replayed),
    ("10-check-no-kubeconfig", Unneeded(NO_KUBECONFIG)),
    ("11-check-no-configuration", Report),
    ("12-check", Report),
    ("13-check-problem-ips", Report),
    ("14-check-all-ips", Report),
    ("15-check-report", Report),
    ("16-check-report-all", Report),
    ("17-release-from-report-unlocked", Report),
    ("18-split-unlocked", Replayed),
    ("19-lock", Replayed),
    ("20-lock-again", Replayed),
    ("21-check-locked", Report),
    ("22-release-from-report-stale", Report),
    ("23-release-from-report-version", Report),
    ("24-release-from-two-reports", Report),
    ("25-release-from-report", Report),
    ("26-release-from-report-force", Report),
    ("27-split-odd", Replayed),
    ("28-split-too-small", Replayed),
    ("29-split-no-pool", Replayed),
    ("30-split", Replayed),
    ("31-split-cidr", Replayed),
    ("32-unlock", Replayed),
    ("33-check-after", Report),
    ("34-show-after-split", Replayed),
    ("35-release-ip", Replayed),
    ("36-release-ip-free", Report),
    ("37-release-ip-no-pool", Report),
    ("38-release-no-flag", Replayed),
    ("39-configure-none", Replayed),
    ("40-configure-wrong", Replayed),
    ("41-configure-max-blocks", Replayed),
    ("42-release-borrowed", Replayed),
    ("43-configure-strict", Replayed),
    ("44-show-configuration", Replayed),
    ("45-configure-cooldown", Replayed),
    ("46-configure-kubevirt", Replayed),
    ("47-configure-strict-off", Replayed),
    ("48-show-configuration-full", Replayed),
    ("49-version-mismatch", Unneeded(VERSION)),
    ("50-version-mismatch-allowed", Unneeded(VERSION)),
    ("initial", State),
];

const KUBERNETES: [(&str, Treatment); 17] = [
    ("01-show", Replayed),
    ("02-show-blocks", Replayed),
    ("03-show-borrowed", Replayed),
    ("04-show-ip", Replayed),
    ("05-check", Report),
    ("06-check-all-ips", Report),
    ("07-check-report", Report),
    ("08-release-from-report-force", Report),
    ("09-check-after", Report),
    ("10-lock", Replayed),
    ("11-check-locked", Report),
    ("12-release-from-report", Report),
    ("13-unlock", Replayed),
    ("14-release-in-use", Replayed),
    ("15-configure-strict", Replayed),
    ("initial", State),
    ("pods-and-services", State),
];

/// The courses of `calicoctl datastore migrate`.
const MIGRATIONS: [(&str, &[(&str, Treatment)]); 7] = [
    (
        "migrate-etcd",
        &[
            ("01-export-unlocked", Replayed),
            ("02-lock", Replayed),
            ("03-export", Replayed),
            ("initial", State),
        ],
    ),
    (
        "migrate-etcd-end",
        &[
            ("01-unlock", Replayed),
            ("02-export-mismatch", Unneeded(VERSION)),
            ("initial", State),
        ],
    ),
    (
        "migrate-kubernetes",
        &[
            ("01-import", Replayed),
            ("02-import-again", Replayed),
            ("03-check-locked", Unneeded(SAME_COUNTS)),
            ("04-unlock", Replayed),
            ("05-check", Replayed),
            ("06-show", Replayed),
            ("07-export", Replayed),
            ("initial", State),
        ],
    ),
    (
        "migrate-kubernetes-broken-file",
        &[("01-import", Replayed), ("initial", State)],
    ),
    (
        "migrate-kubernetes-no-file",
        &[("01-import", Replayed), ("initial", State)],
    ),
    (
        "migrate-kubernetes-no-namespace",
        &[
            ("01-import", Replayed),
            ("02-import-again", Replayed),
            ("initial", State),
        ],
    ),
    (
        "migrate-kubernetes-no-nodes",
        &[
            ("01-export-kubernetes", Replayed),
            ("02-import-no-nodes", Replayed),
            ("03-import-again", Replayed),
            ("initial", State),
        ],
    ),
];

#[test]
fn every_recording_of_a_migration_is_in_the_table() {
    for (course, table) in MIGRATIONS {
        let listed: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
        assert_eq!(names(course).unwrap(), listed, "{course}");
        let selects = format!(".course(\"{course}\")");
        for (name, _) in table.iter().filter(|(_, treatment)| *treatment == Replayed) {
            assert!(
                has_test(include_str!("migrate.rs"), &selects, name),
                "{course}: no test names step {name}"
            );
        }
    }
}

#[test]
fn every_recording_of_calicoctl_is_in_the_table() {
    let etcd = ("etcd-ipam", &ETCD[..], include_str!("etcd.rs"), "etcd)]");
    let kubernetes = (
        "kubernetes-ipam",
        &KUBERNETES[..],
        include_str!("kubernetes.rs"),
        "kubernetes_v1)]",
    );
    for (course, table, replays, attribute) in [etcd, kubernetes] {
        let listed: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
        assert_eq!(names(course).unwrap(), listed, "{course}");
        let is_empty =
            |treatment: &Treatment| matches!(treatment, Unneeded(reason) if reason.is_empty());
        assert!(
            !table.iter().any(|(_, treatment)| is_empty(treatment)),
            "{course}"
        );
        for (name, treatment) in table {
            let is_replayed = match treatment {
                Replayed => has_test(replays, attribute, name),
                Report => has_test(include_str!("reports.rs"), attribute, name),
                State | Unneeded(_) => true,
            };
            assert!(is_replayed, "{course}: no test names step {name}");
        }
    }
}

/// Returns true if a test with the text `part` contains the number of the step.
fn has_test(source: &str, part: &str, name: &str) -> bool {
    let number = name.split('-').next().unwrap_or_default();
    let mut tests = source.split("#[on(").skip(1);
    tests.any(|test| test.contains(part) && test.contains(&format!("\"{number}\"")))
}
