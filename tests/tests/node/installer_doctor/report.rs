//! doctor's report about a node.

use std::collections::BTreeMap;
use std::path::Path;

use integration_tests::plugin::{Outcome, Plugins};
use serde_json::Value;

/// A node that doctor examines.
pub(crate) trait Examined {
    fn doctor(&self) -> Report;
}

/// The report: exit status, and the checks by name.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) exit: Option<i32>,
    pub(crate) checks: BTreeMap<String, Value>,
}

impl Report {
    /// Parses the JSON report.
    #[track_caller]
    pub(crate) fn of(outcome: &Outcome) -> Report {
        let document = serde_json::from_str::<Value>(&outcome.stdout);
        let document = document
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", outcome.stdout, outcome.stderr));
        let checks = document["checks"].as_array().unwrap().iter();
        let named = |check: &Value| (check["name"].as_str().unwrap().to_owned(), check.clone());
        Report {
            exit: outcome.exit,
            checks: checks.map(named).collect(),
        }
    }

    /// Returns state and name of each check that is not ok, sorted.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let wrong = self
            .checks
            .iter()
            .filter(|(_, check)| check["state"] != "ok");
        let mut wrong: Vec<String> = wrong
            .map(|(name, check)| format!("{} {name}", check["state"].as_str().unwrap()))
            .collect();
        wrong.sort();
        wrong
    }

    /// Returns the observation and the remedy of a check.
    pub(crate) fn words(&self, name: &str) -> String {
        let check = &self.checks[name];
        format!(
            "{} -> {}",
            check["seen"].as_str().unwrap(),
            check["wayOut"].as_str().unwrap_or_default()
        )
    }
}

/// Runs doctor outside of a pod, for the node with this root.
pub(crate) fn doctor(root: &Path, more: &[&str]) -> Report {
    let root = root.display().to_string();
    let call = Plugins::locate()
        .unwrap()
        .call("calico")
        .args(["doctor", "-o", "json", "--root", &root]);
    Report::of(&call.args(more.iter().copied()).run())
}

/// Breaks a node and asserts that exactly the checks `found`, in the order of [`Report::wrong`],
/// report it, one of them with these words. Then repairs the node and asserts that all checks are
/// ok.
#[track_caller]
pub(crate) fn assert_reported(
    node: &impl Examined,
    found: &[&str],
    (check, words): (&str, &str),
    break_node: impl FnOnce(),
    repair: impl FnOnce(),
) {
    break_node();
    let report = node.doctor();
    assert_eq!(report.wrong(), found, "{report:#?}");
    let fails = found.iter().any(|state| state.starts_with("fail "));
    assert_eq!(report.exit, Some(i32::from(fails)), "{report:#?}");
    let seen = report.words(check);
    assert!(seen.contains(words), "{words} is not in {seen}");
    repair();
    assert_good(node);
}

/// Asserts that all checks of a node are ok.
#[track_caller]
pub(crate) fn assert_good(node: &impl Examined) {
    let report = node.doctor();
    assert_eq!(
        (report.wrong(), report.exit),
        (Vec::new(), Some(0)),
        "{report:#?}"
    );
}
