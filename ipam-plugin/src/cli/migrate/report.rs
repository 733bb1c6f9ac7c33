//! [`Report`]: the document of an import.

use std::fmt::Write as _;

use netconf::printable;
use serde::Serialize;

/// The number of objects that a text lists.
pub(super) const LISTED: usize = 20;

/// The result of an import, or of its plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) resources: Counts,
    pub(super) ipam: Counts,
    /// Nodes that do not exist in Kubernetes.
    pub(super) skipped_nodes: Vec<String>,
    /// Objects that exist with the fields in the file and with other fields, each with these
    /// fields.
    pub(super) other_fields: Vec<Named>,
    /// Objects without fields of the file that the API server does not know, each with these
    /// fields.
    pub(super) dropped_fields: Vec<Named>,
    /// The reasons why nothing is imported.
    pub(super) refused: Vec<Named>,
}

/// The number of objects for each outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) created: usize,
    pub(super) configured: usize,
    pub(super) unchanged: usize,
}

/// A remark about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Named {
    pub(super) object: String,
    pub(super) remark: String,
}

impl Counts {
    pub(super) fn total(&self) -> usize {
        self.created + self.configured + self.unchanged
    }
}

impl Report {
    pub(super) fn counts(&mut self, is_ipam: bool) -> &mut Counts {
        if is_ipam {
            &mut self.ipam
        } else {
            &mut self.resources
        }
    }

    pub(super) fn refuse(&mut self, object: impl Into<String>, remark: impl Into<String>) {
        self.refused.push(Named {
            object: object.into(),
            remark: remark.into(),
        });
    }

    /// Returns the first refusals, one per line.
    pub(super) fn listed_refusals(&self) -> String {
        let mut text = String::new();
        for Named { object, remark } in self.refused.iter().take(LISTED) {
            let _ = write!(
                text,
                "\n  {}: {}",
                printable::line(object),
                printable::line(remark)
            );
        }
        if self.refused.len() > LISTED {
            let _ = write!(
                text,
                "\n  … and {} more; -o json lists all",
                self.refused.len() - LISTED
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_listed_escaped_and_limited() {
        let mut report = Report::default();
        assert_eq!(report.listed_refusals(), "");
        for number in 0..22 {
            report.refuse(format!("IPPool(p{number}\n)"), "differs");
        }
        let text = report.listed_refusals();
        assert!(text.starts_with("\n  IPPool(p0\\n): differs\n"), "{text}");
        assert!(
            text.ends_with("\n  IPPool(p19\\n): differs\n  … and 2 more; -o json lists all"),
            "{text}"
        );
    }
}
