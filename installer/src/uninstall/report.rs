//! The result of an uninstallation: the steps, and the remaining files.

use std::fmt::Display;

/// The result of `calico uninstall`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UninstallReport {
    /// False for a dry run.
    pub acted: bool,
    /// The steps, in order.
    pub steps: Vec<ReportedStep>,
    /// The remaining items, with reasons.
    pub remaining: Vec<Remaining>,
}

/// A step of the uninstallation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedStep {
    /// The verb of the action, such as `remove`, `move` or `release`.
    pub action: &'static str,
    /// The file or other object.
    pub target: String,
    /// The result of the step.
    pub outcome: Outcome,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The step succeeded; in a dry run, it would be run.
    Succeeded,
    /// The object was missing already.
    AlreadyMissing,
    /// The step failed, for this reason.
    Failed(String),
}

/// An item that remains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remaining {
    /// The file or other object.
    pub target: String,
    /// The reason why the item remains.
    pub reason: String,
}

impl UninstallReport {
    /// Adds a step that succeeded, or that a dry run would take.
    pub(super) fn add_success(&mut self, action: &'static str, target: impl Display) {
        self.steps.push(ReportedStep {
            action,
            target: target.to_string(),
            outcome: Outcome::Succeeded,
        });
    }

    /// Adds a step for an object that was missing already.
    pub(super) fn add_missing(&mut self, target: impl Display) {
        let (target, outcome) = (target.to_string(), Outcome::AlreadyMissing);
        self.steps.push(ReportedStep {
            action: "remove",
            target,
            outcome,
        });
    }

    /// Adds a failed step, and its object to the remaining items.
    pub(super) fn add_failure(
        &mut self,
        action: &'static str,
        target: impl Display,
        reason: impl Display,
    ) {
        self.add_remaining(&target, format!("see `FAILED to {action}` above"));
        self.add_refusal(action, target, reason);
    }

    /// Adds a failed step without adding its object to the remaining items, for example a step that
    /// was not tried.
    pub(super) fn add_refusal(
        &mut self,
        action: &'static str,
        target: impl Display,
        reason: impl Display,
    ) {
        let outcome = Outcome::Failed(reason.to_string());
        self.steps.push(ReportedStep {
            action,
            target: target.to_string(),
            outcome,
        });
    }

    /// Returns true if the report names the object in a step or as a remaining item.
    pub(super) fn mentions(&self, target: &str) -> bool {
        let mut steps = self.steps.iter().map(|step| &step.target);
        steps.any(|name| name == target) || self.remaining.iter().any(|item| item.target == target)
    }

    pub(super) fn add_remaining(&mut self, target: impl Display, reason: impl Display) {
        self.remaining.push(Remaining {
            target: target.to_string(),
            reason: reason.to_string(),
        });
    }

    /// Returns true if no step failed.
    pub fn succeeded(&self) -> bool {
        self.steps
            .iter()
            .all(|step| !matches!(step.outcome, Outcome::Failed(_)))
    }
}

/// Prints a line for each step, and then a line for each remaining item.
impl Display for UninstallReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ReportedStep {
            action,
            target,
            outcome,
        } in &self.steps
        {
            match (outcome, self.acted) {
                (Outcome::Succeeded, true) => writeln!(f, "{action}d {target}")?,
                (Outcome::Succeeded, false) => writeln!(f, "would {action} {target}")?,
                (Outcome::AlreadyMissing, _) => writeln!(f, "{target} was gone already")?,
                (Outcome::Failed(reason), _) => {
                    writeln!(f, "FAILED to {action} {target}: {reason}")?
                }
            }
        }
        if !self.remaining.is_empty() {
            writeln!(f, "left on this node:")?;
        }
        for Remaining { target, reason } in &self.remaining {
            writeln!(f, "  {target}: {reason}")?;
        }
        match (self.acted, self.succeeded()) {
            (true, _) => Ok(()),
            (false, true) => writeln!(
                f,
                "nothing was changed; run the command with --yes to carry out this plan"
            ),
            (false, false) => writeln!(f, "nothing was changed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uninstall_report_ends_with_the_remaining_files_and_reasons() {
        let mut report = UninstallReport {
            acted: true,
            ..UninstallReport::default()
        };
        report.add_success("remove", "/opt/cni/bin/calico");
        report.add_remaining("/opt/cni/bin/portmap", "it is not ours");
        assert!(report.succeeded());
        report.add_failure("remove", "/x", "read-only");
        assert!(!report.succeeded());
        let expected = "removed /opt/cni/bin/calico\nFAILED to remove /x: read-only\nleft on this \
                        node:\n  /opt/cni/bin/portmap: it is not ours\n  /x: see `FAILED to \
                        remove` above\n";
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn dry_run_report_is_conditional_and_names_the_yes_flag() {
        let mut report = UninstallReport::default();
        report.add_success("release", "3 addresses");
        assert_eq!(
            report.to_string(),
            "would release 3 addresses\nnothing was changed; run the command with --yes to carry \
             out this plan\n"
        );
    }
}
