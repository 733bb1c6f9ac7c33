//! [`Finding`]: the result of one check, and [`DoctorReport`]: all findings and repairs, as text or
//! JSON.

use std::fmt;

use netconf::printable;
use serde::Serialize;
use serde_json::{Value, json};

use super::Repairs;
use super::snapshot::Observed;
use installation::dead_interfaces::{Repair, RepairOutcome};

/// The state of the checked item, ordered from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No problem was found.
    Ok,
    /// The check was not possible, for the reason in the observation.
    Skipped,
    /// A lesser problem.
    Warn,
    /// A problem because of which pods may get no network, or a wrong one.
    Fail,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The checked item.
    pub name: String,
    /// The state of the item.
    pub state: Severity,
    /// The observation, or the reason for a skipped check.
    #[serde(rename = "seen")]
    pub observation: String,
    /// The remedy; empty without a problem, and for a skipped check.
    #[serde(rename = "wayOut", skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

/// The result of a check that was possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The state of the item.
    pub state: Severity,
    /// The observation.
    pub observation: String,
    /// The remedy; empty without a problem.
    pub remedy: String,
}

/// The verdict of a check, or the reason why the check was not possible.
pub(super) type Checked = Observed<Verdict>;

pub(super) fn pass(observation: impl Into<String>) -> Checked {
    Ok(Verdict {
        state: Severity::Ok,
        observation: observation.into(),
        remedy: String::new(),
    })
}

pub(super) fn warn(observation: impl Into<String>, remedy: impl Into<String>) -> Checked {
    Ok(Verdict {
        state: Severity::Warn,
        observation: observation.into(),
        remedy: remedy.into(),
    })
}

pub(super) fn fail(observation: impl Into<String>, remedy: impl Into<String>) -> Checked {
    Ok(Verdict {
        state: Severity::Fail,
        observation: observation.into(),
        remedy: remedy.into(),
    })
}

impl Finding {
    /// Creates the finding of a check. A check that was not possible is skipped.
    pub fn new(name: impl Into<String>, checked: Checked) -> Self {
        let (state, observation, remedy) = match checked {
            Ok(Verdict {
                state,
                observation,
                remedy,
            }) => (state, observation, remedy),
            Err(reason) => (Severity::Skipped, reason.into(), String::new()),
        };
        Finding {
            name: name.into(),
            state,
            observation,
            remedy,
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Ok => "ok",
            Severity::Skipped => "skipped",
            Severity::Warn => "warn",
            Severity::Fail => "FAIL",
        })
    }
}

/// All findings about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorReport {
    /// The name of the node; empty if unknown.
    pub node: String,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
    /// The repairs before the checks; `None` without `--repair`.
    pub repairs: Option<Repairs>,
}

/// The output format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A line for each finding, a line for each remedy, and a line with the numbers of findings.
    Text,
    /// A single JSON document.
    Json,
}

impl DoctorReport {
    /// Returns true if no check and no removal of an interface failed.
    pub fn passes(&self) -> bool {
        let has_failed = |repair: &Repair| matches!(repair.outcome, RepairOutcome::Failed(_));
        let is_repaired = self
            .repairs
            .as_ref()
            .is_none_or(|repairs| !repairs.0.iter().any(has_failed));
        is_repaired
            && self
                .findings
                .iter()
                .all(|finding| finding.state != Severity::Fail)
    }

    /// Renders the report in a format.
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Json => self.json(),
        }
    }

    fn text(&self) -> String {
        let width = self
            .findings
            .iter()
            .map(|finding| finding.name.chars().count())
            .max()
            .unwrap_or_default();
        let mut text = self.repairs.as_ref().map(Repairs::text).unwrap_or_default();
        for Finding {
            name,
            state,
            observation,
            remedy,
        } in &self.findings
        {
            // A text from elsewhere must not look like a finding of its own.
            let [name, observation, remedy] =
                [name, observation, remedy].map(|text| printable::line(text));
            text += &format!("{state:<7}  {name:<width$}  {observation}\n");
            if !remedy.is_empty() {
                text += &format!("{:<7}  {:<width$}  -> {remedy}\n", "", "");
            }
        }
        let count = |wanted| {
            self.findings
                .iter()
                .filter(|finding| finding.state == wanted)
                .count()
        };
        let [ok, warnings, failures] = [Severity::Ok, Severity::Warn, Severity::Fail].map(count);
        let skipped = count(Severity::Skipped);
        text + &format!("{ok} ok, {warnings} warnings, {failures} failures, {skipped} skipped\n")
    }

    fn json(&self) -> String {
        let mut document =
            json!({ "node": self.node, "passes": self.passes(), "checks": self.findings });
        if let Some(Repairs(repairs)) = &self.repairs {
            document["repairs"] = repairs.iter().map(repair_json).collect();
        }
        format!("{document:#}\n")
    }
}

impl Repairs {
    fn text(&self) -> String {
        if self.0.is_empty() {
            return "found no dead interface\n".to_owned();
        }
        self.0
            .iter()
            .map(|repair| format!("{}\n", printable::line(&repair_text(repair))))
            .collect()
    }
}

fn repair_text(
    Repair {
        interface,
        container,
        addresses,
        outcome,
    }: &Repair,
) -> String {
    let listed = addresses
        .iter()
        .map(|address| format!(", {address}"))
        .collect::<String>();
    match outcome {
        RepairOutcome::Removed => format!("removed {interface} (container {container}{listed})"),
        RepairOutcome::Kept(reason) => format!("kept {interface}: {reason}"),
        RepairOutcome::Failed(reason) => format!("kept {interface}: the removal failed: {reason}"),
    }
}

fn repair_json(
    Repair {
        interface,
        container,
        addresses,
        outcome,
    }: &Repair,
) -> Value {
    let mut repair =
        json!({ "interface": interface, "container": container, "addresses": addresses });
    repair["removed"] = (*outcome == RepairOutcome::Removed).into();
    if let RepairOutcome::Kept(reason) | RepairOutcome::Failed(reason) = outcome {
        repair["reason"] = reason.as_str().into();
    }
    repair
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> DoctorReport {
        let findings = vec![
            Finding::new("journal", pass("empty")),
            Finding::new("token", warn("valid for 5 min", "is the agent running?")),
            Finding::new("pools", Err("the API server is not reached".into())),
        ];
        DoctorReport {
            node: "node1".into(),
            findings,
            repairs: None,
        }
    }

    fn repairs() -> Repairs {
        let repair = |interface: &str, addresses: &[&str], outcome| Repair {
            interface: interface.to_owned(),
            container: "c1".to_owned(),
            addresses: addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
            outcome,
        };
        Repairs(vec![
            repair("cali1", &["10.0.0.7", "fd00::7"], RepairOutcome::Removed),
            repair(
                "cali2",
                &[],
                RepairOutcome::Kept("an endpoint has it".into()),
            ),
        ])
    }

    #[test]
    fn text_report_has_a_line_per_finding_and_per_remedy() {
        let expected = "\
ok       journal  empty
warn     token    valid for 5 min
                  -> is the agent running?
skipped  pools    the API server is not reached
1 ok, 1 warnings, 0 failures, 1 skipped
";
        assert_eq!(report().render(Format::Text), expected);
    }

    #[test]
    fn control_characters_in_findings_are_escaped() {
        let observation = "calia\nok       interfaces  fine\x1b[1A";
        let report = DoctorReport {
            node: "node1".into(),
            findings: vec![Finding::new("interfaces", fail(observation, "delete\rit"))],
            repairs: None,
        };
        let text = report.render(Format::Text);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n'),
            "{text:?}"
        );
    }

    #[test]
    fn json_report_has_node_result_and_checks() {
        let json: serde_json::Value = serde_json::from_str(&report().render(Format::Json)).unwrap();
        assert_eq!(
            (&json["node"], &json["passes"]),
            (&"node1".into(), &true.into())
        );
        assert_eq!(json["checks"][1]["wayOut"], "is the agent running?");
        assert_eq!(json["checks"][1]["state"], "warn");
        assert_eq!(
            (json["checks"][0].get("wayOut"), json.get("repairs")),
            (None, None)
        );
    }

    #[test]
    fn repairs_precede_the_findings() {
        let report = DoctorReport {
            repairs: Some(repairs()),
            ..report()
        };
        let lines = "removed cali1 (container c1, 10.0.0.7, fd00::7)\nkept cali2: an endpoint has \
                     it\nok       journal";
        assert!(
            report.render(Format::Text).starts_with(lines),
            "{}",
            report.render(Format::Text)
        );
        let json: Value = serde_json::from_str(&report.render(Format::Json)).unwrap();
        let expected = json!([
            {
                "interface": "cali1", "container": "c1", "addresses": ["10.0.0.7", "fd00::7"],
                "removed": true,
            },
            { "interface": "cali2", "container": "c1", "addresses": [], "removed": false,
              "reason": "an endpoint has it" },
        ]);
        assert_eq!(json["repairs"], expected);
        let without = DoctorReport {
            repairs: Some(Repairs::default()),
            ..report
        };
        assert!(
            without
                .render(Format::Text)
                .starts_with("found no dead interface\nok")
        );
    }

    #[test]
    fn failed_removal_fails_the_report() {
        let mut failing = repairs();
        assert!(
            DoctorReport {
                repairs: Some(failing.clone()),
                ..report()
            }
            .passes()
        );
        failing.0[1].outcome = RepairOutcome::Failed("no right".into());
        let report = DoctorReport {
            repairs: Some(failing),
            ..report()
        };
        assert!(!report.passes());
        assert!(
            report
                .render(Format::Text)
                .contains("\nkept cali2: the removal failed: no right\n")
        );
    }

    #[test]
    fn only_a_failed_finding_fails_the_report() {
        let mut report = report();
        assert!(report.passes());
        report.findings.push(Finding::new("x", fail("y", "z")));
        assert!(!report.passes());
    }
}
