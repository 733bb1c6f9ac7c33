//! [`Outcome`]: the results of a pass over all objects, as numbers and as lists of limited length.

use std::collections::BTreeMap;
use std::time::Duration;

use libcalico::kubernetes::Location;
use node_process::logging::printable;

/// Greatest number of objects in a list.
const MOST_LISTED: usize = 2000;
/// Greatest length of a reason, in characters. The API server's reason can contain the whole
/// object.
const LONGEST_REASON: usize = 1000;

/// The results of a pass over all objects. The lists are cut; the counts are complete.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) counts: Vec<KindCount>,
    pub(crate) lists: BTreeMap<Category, Vec<Named>>,
}

/// The numbers of objects of a kind, and of references to owners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KindCount {
    /// The kind in v3.
    pub(crate) kind: &'static str,
    pub(crate) numbers: BTreeMap<Category, usize>,
    /// The time for which objects of the kind were copied or compared.
    pub(crate) took: Duration,
}

/// An object, and the reason for which it is listed. Both are printable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The object as `Kind/namespace/name`, or `Kind/name`.
    pub(crate) object: String,
    /// May be empty.
    pub(crate) reason: String,
}

/// The result for one object or reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Category {
    /// The object is created in v3, or an older copy is replaced.
    Copied,
    /// v3 has the same object.
    Skipped,
    /// A person has to choose between two objects.
    Conflict,
    /// The object cannot be converted, or the API server refuses it.
    Refused,
    /// The object exists only in v3, and stays.
    OnlyInV3,
    /// A reference to an owner is not in the copy.
    LeftOut,
}

impl Category {
    pub(crate) const ALL: [Category; 6] = [
        Category::Copied,
        Category::Skipped,
        Category::Conflict,
        Category::Refused,
        Category::OnlyInV3,
        Category::LeftOut,
    ];
}

impl Outcome {
    /// Creates the outcome of a kind that has no objects yet.
    pub(crate) fn of(kind: &'static str) -> Self {
        Outcome {
            counts: vec![KindCount {
                kind,
                ..KindCount::default()
            }],
            ..Outcome::default()
        }
    }

    /// Returns the number of objects of all kinds.
    pub(crate) fn total(&self, category: Category) -> usize {
        self.counts.iter().map(|count| count.of(category)).sum()
    }

    /// Adds an object, which is shown as `object`.
    pub(crate) fn add(
        &mut self,
        kind: &'static str,
        category: Category,
        object: String,
        reason: &str,
    ) {
        *self.count_of(kind).numbers.entry(category).or_default() += 1;
        let list = self.lists.entry(category).or_default();
        if list.len() < MOST_LISTED {
            list.push(Named {
                object,
                reason: printable::line(&beginning(reason)).into_owned(),
            });
        }
    }

    /// Adds the outcome of other kinds.
    pub(crate) fn append(&mut self, other: Outcome) {
        for (category, added) in other.lists {
            let list = self.lists.entry(category).or_default();
            let room = MOST_LISTED - list.len();
            list.extend(added.into_iter().take(room));
        }
        self.counts.extend(other.counts);
    }

    /// Returns the numbers of a kind.
    pub(super) fn count_of(&mut self, kind: &'static str) -> &mut KindCount {
        let place = self
            .counts
            .iter()
            .position(|count| count.kind == kind)
            .unwrap_or_else(|| {
                self.counts.push(KindCount {
                    kind,
                    ..KindCount::default()
                });
                self.counts.len() - 1
            });
        &mut self.counts[place]
    }

    pub(crate) fn list(&self, category: Category) -> &[Named] {
        self.lists
            .get(&category)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }
}

impl KindCount {
    pub(crate) fn of(&self, category: Category) -> usize {
        self.numbers.get(&category).copied().unwrap_or_default()
    }
}

/// Returns an object as `Kind/namespace/name`, or `Kind/name`.
pub(crate) fn shown(kind: &str, namespace: Option<&str>, name: &str) -> String {
    let text = match namespace {
        Some(namespace) => format!("{kind}/{namespace}/{name}"),
        None => format!("{kind}/{name}"),
    };
    printable::line(&text).into_owned()
}

pub(super) fn shown_at(at: &Location) -> String {
    shown(at.resource.kind, at.namespace.as_deref(), &at.name)
}

fn beginning(reason: &str) -> String {
    reason.chars().take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_and_counts_are_complete() {
        let mut all = Outcome::default();
        for kind in ["Tier", "IPPool"] {
            let mut of_kind = Outcome::of(kind);
            for number in 0..1500 {
                of_kind.add(
                    kind,
                    Category::Conflict,
                    shown(kind, None, &number.to_string()),
                    "differs",
                );
            }
            all.append(of_kind);
        }
        let listed = all.list(Category::Conflict);
        assert_eq!(
            (listed.len(), all.total(Category::Conflict)),
            (MOST_LISTED, 3000)
        );
        assert_eq!(listed[1500].object, "IPPool/0");
        assert_eq!(
            all.counts
                .iter()
                .map(|count| count.of(Category::Conflict))
                .collect::<Vec<_>>(),
            [1500, 1500]
        );
        for category in Category::ALL
            .into_iter()
            .filter(|category| *category != Category::Conflict)
        {
            assert!(
                all.list(category).is_empty() && all.total(category) == 0,
                "{category:?}"
            );
        }
    }

    #[test]
    fn reasons_and_names_are_printable_and_cut() {
        let mut outcome = Outcome::of("Tier");
        let reason = format!("a\u{1b}[2J\nb{}", "ä".repeat(3 * LONGEST_REASON));
        outcome.add(
            "Tier",
            Category::Refused,
            shown("Tier", Some("n\n"), "t\u{202e}"),
            &reason,
        );
        let Named { object, reason } = &outcome.list(Category::Refused)[0];
        assert_eq!(object, "Tier/n\\n/t\\u202e");
        assert!(
            reason.starts_with("a\\u001b[2J\\nb") && reason.chars().count() < LONGEST_REASON + 10,
            "{reason}"
        );
    }
}
