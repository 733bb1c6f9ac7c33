//! What was done, and what is left.

use std::fmt::Display;

/// What `calico uninstall` came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether anything was done, or would be.
    pub acted: bool,
    /// What was done, in order.
    pub steps: Vec<Step>,
    /// What stays, and why.
    pub left: Vec<Left>,
}

/// One thing that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// `remove`, `release`.
    pub action: &'static str,
    /// What.
    pub target: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, or would be.
    Done,
    /// Somebody did it before.
    DoneAlready,
    /// It could not be done.
    Failed(String),
}

/// One thing that stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// What.
    pub target: String,
    /// Why.
    pub reason: String,
}

impl Report {
    /// Notes a step.
    pub(super) fn done(&mut self, action: &'static str, target: impl Display) {
        self.steps.push(Step { action, target: target.to_string(), outcome: Outcome::Done });
    }

    /// Notes what was gone before.
    pub(super) fn gone(&mut self, target: impl Display) {
        self.steps.push(Step { action: "remove", target: target.to_string(), outcome: Outcome::DoneAlready });
    }

    /// Notes a step that could not be done, and with it what stays.
    pub(super) fn fail(&mut self, action: &'static str, target: impl Display, reason: impl Display) {
        self.leave(&target, format!("see `FAILED to {action}` above"));
        self.refuse(action, target, reason);
    }

    /// Notes a step that is not tried.
    pub(super) fn refuse(&mut self, action: &'static str, target: impl Display, reason: impl Display) {
        let outcome = Outcome::Failed(reason.to_string());
        self.steps.push(Step { action, target: target.to_string(), outcome });
    }

    /// Whether something is said of this already.
    pub(super) fn names(&self, target: &str) -> bool {
        self.steps
            .iter()
            .map(|step| &step.target)
            .chain(self.left.iter().map(|left| &left.target))
            .any(|it| it == target)
    }

    /// Notes what stays.
    pub(super) fn leave(&mut self, target: impl Display, reason: impl Display) {
        self.left.push(Left { target: target.to_string(), reason: reason.to_string() });
    }

    /// Whether all that should be done could be.
    pub fn succeeded(&self) -> bool {
        self.steps.iter().all(|step| !matches!(step.outcome, Outcome::Failed(_)))
    }
}

/// A line for each step, then a line for each thing that stays.
impl Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Step { action, target, outcome } in &self.steps {
            match (outcome, self.acted) {
                (Outcome::Done, true) => writeln!(f, "{action}d {target}")?,
                (Outcome::Done, false) => writeln!(f, "would {action} {target}")?,
                (Outcome::DoneAlready, _) => writeln!(f, "{target} was gone already")?,
                (Outcome::Failed(reason), _) => writeln!(f, "FAILED to {action} {target}: {reason}")?,
            }
        }
        if !self.left.is_empty() {
            writeln!(f, "left on this node:")?;
        }
        for Left { target, reason } in &self.left {
            writeln!(f, "  {target}: {reason}")?;
        }
        match (self.acted, self.succeeded()) {
            (true, _) => Ok(()),
            (false, true) => writeln!(f, "nothing was changed; --yes does what is said above"),
            (false, false) => writeln!(f, "nothing was changed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_what_is_left_and_why() {
        let mut report = Report { acted: true, ..Report::default() };
        report.done("remove", "/opt/cni/bin/calico");
        report.leave("/opt/cni/bin/portmap", "it is not ours");
        assert!(report.succeeded());
        report.fail("remove", "/x", "read-only");
        assert!(!report.succeeded());
        let expected = "removed /opt/cni/bin/calico\nFAILED to remove /x: read-only\nleft on this node:\n  \
                        /opt/cni/bin/portmap: it is not ours\n  /x: see `FAILED to remove` above\n";
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn a_dry_run_says_so() {
        let mut report = Report::default();
        report.done("release", "3 addresses");
        assert_eq!(
            report.to_string(),
            "would release 3 addresses\nnothing was changed; --yes does what is said above\n"
        );
    }
}
