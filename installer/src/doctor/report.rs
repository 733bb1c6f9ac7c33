//! [`Finding`]: the result of one check, and [`DoctorReport`]: all findings, as text or JSON.

use std::fmt;

use netconf::printable;
use serde::Serialize;

use super::snapshot::Observed;

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
    Ok(Verdict { state: Severity::Ok, observation: observation.into(), remedy: String::new() })
}

pub(super) fn warn(observation: impl Into<String>, remedy: impl Into<String>) -> Checked {
    Ok(Verdict { state: Severity::Warn, observation: observation.into(), remedy: remedy.into() })
}

pub(super) fn fail(observation: impl Into<String>, remedy: impl Into<String>) -> Checked {
    Ok(Verdict { state: Severity::Fail, observation: observation.into(), remedy: remedy.into() })
}

impl Finding {
    /// Creates the finding of a check. A check that was not possible is skipped.
    pub fn new(name: impl Into<String>, checked: Checked) -> Self {
        let (state, observation, remedy) = match checked {
            Ok(Verdict { state, observation, remedy }) => (state, observation, remedy),
            Err(reason) => (Severity::Skipped, reason.into(), String::new()),
        };
        Finding { name: name.into(), state, observation, remedy }
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// The name of the node; empty if unknown.
    pub node: String,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
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
    /// Returns true if no check failed.
    pub fn passes(&self) -> bool {
        self.findings.iter().all(|finding| finding.state != Severity::Fail)
    }

    /// Renders the report in a format.
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Json => self.json(),
        }
    }

    fn text(&self) -> String {
        let width = self.findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or_default();
        let mut text = String::new();
        for Finding { name, state, observation, remedy } in &self.findings {
            // A text from elsewhere must not look like a finding of its own.
            let [name, observation, remedy] = [name, observation, remedy].map(|text| printable::line(text));
            text += &format!("{state:<7}  {name:<width$}  {observation}\n");
            if !remedy.is_empty() {
                text += &format!("{:<7}  {:<width$}  -> {remedy}\n", "", "");
            }
        }
        let count = |wanted| self.findings.iter().filter(|finding| finding.state == wanted).count();
        let [ok, warnings, failures] = [Severity::Ok, Severity::Warn, Severity::Fail].map(count);
        let skipped = count(Severity::Skipped);
        text + &format!("{ok} ok, {warnings} warnings, {failures} failures, {skipped} skipped\n")
    }

    fn json(&self) -> String {
        let document = serde_json::json!({ "node": self.node, "passes": self.passes(), "checks": self.findings });
        format!("{document:#}\n")
    }
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
        DoctorReport { node: "node1".into(), findings }
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
        };
        let text = report.render(Format::Text);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }

    #[test]
    fn json_report_has_node_result_and_checks() {
        let json: serde_json::Value = serde_json::from_str(&report().render(Format::Json)).unwrap();
        assert_eq!((&json["node"], &json["passes"]), (&"node1".into(), &true.into()));
        assert_eq!(json["checks"][1]["wayOut"], "is the agent running?");
        assert_eq!(json["checks"][1]["state"], "warn");
        assert_eq!(json["checks"][0].get("wayOut"), None);
    }

    #[test]
    fn only_a_failed_finding_fails_the_report() {
        let mut report = report();
        assert!(report.passes());
        report.findings.push(Finding::new("x", fail("y", "z")));
        assert!(!report.passes());
    }
}
