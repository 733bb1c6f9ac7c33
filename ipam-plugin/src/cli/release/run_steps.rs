//! [`run_steps`]: takes the steps of a release, those that concern different objects at the same time.

use std::cell::Cell;
use std::collections::HashMap;

use datastore::Datastore;
use futures::StreamExt;
use futures::stream;

use super::Row;
use super::step::{ChangeOutcome, ConcernedObject, ReleaseChange, ReleaseStep, StepVerdict, execute, execute_fixes};
use crate::cli::app::Progress;
use crate::cli::error::CliError;

/// Maximum number of releases of addresses under way at the same time.
const AT_ONCE: usize = 8;
/// Number of handles that are corrected together, so that a block of several of them is written once.
const FIXES_TOGETHER: usize = 32;

pub(super) const REFUSED: &str = "refused";
const SKIPPED: &str = "left alone";

/// Takes the steps: first the repairs of blocks, then those of handles, and then the releases of addresses. After a
/// failure no other step begins. Returns the rows of the complete steps in the order of the steps, and the first error.
pub(super) async fn run_steps(
    steps: Vec<ReleaseStep>,
    store: &Datastore,
    dry_run: bool,
) -> (Vec<Row>, Option<CliError>) {
    let run = Run {
        store,
        progress: Progress::new("releasing", steps.len()),
        rows: steps.iter().map(|_| Cell::new(None)).collect(),
        failure: Cell::new(None),
        has_failed: Cell::new(false),
    };
    let (mut repairs, mut fixes, mut releases) = (Vec::new(), Vec::new(), Vec::new());
    for (index, ReleaseStep { target, verdict }) in steps.into_iter().enumerate() {
        let change = match verdict {
            StepVerdict::Leave(reason) => {
                run.finish(index, Row { target, action: SKIPPED, detail: reason });
                continue;
            }
            StepVerdict::Refuse(reason) => {
                run.finish(index, Row { target, action: REFUSED, detail: reason });
                continue;
            }
            StepVerdict::Do(change) if dry_run => {
                let detail = format!("{}, {}", change.name(), change.reason());
                run.finish(index, Row { target, action: "would be", detail });
                continue;
            }
            StepVerdict::Do(change) => change,
        };
        let changes = match &change {
            ReleaseChange::Block(_) => &mut repairs,
            ReleaseChange::Handle(_) => &mut fixes,
            ReleaseChange::Release { .. } => &mut releases,
        };
        changes.push(PlannedChange { index, target, change });
    }
    for planned in repairs {
        run.take(planned).await;
    }
    run.fix_handles(fixes).await;
    let groups = stream::iter(independent_groups(releases)).map(async |group| {
        for planned in group {
            run.take(planned).await;
        }
    });
    groups.buffer_unordered(AT_ONCE).collect::<()>().await;
    (run.rows.into_iter().filter_map(Cell::into_inner).collect(), run.failure.into_inner().map(|(_, error)| error))
}

/// A step that changes an object.
struct PlannedChange {
    /// The position of the step.
    index: usize,
    target: String,
    change: ReleaseChange,
}

/// The state of the run of all steps.
struct Run<'a> {
    store: &'a Datastore,
    progress: Progress,
    /// The row of each step that is complete.
    rows: Vec<Cell<Option<Row>>>,
    /// The error of the first step that failed, and its position.
    failure: Cell<Option<(usize, CliError)>>,
    has_failed: Cell<bool>,
}

impl Run<'_> {
    fn finish(&self, index: usize, row: Row) {
        self.rows[index].set(Some(row));
        self.progress.step();
    }

    async fn take(&self, PlannedChange { index, target, change }: PlannedChange) {
        if self.has_failed.get() {
            return;
        }
        let (name, reason) = (change.name(), change.reason());
        let outcome = execute(self.store, change).await;
        self.end_change(index, target, (name, reason), outcome);
    }

    /// Corrects handles, some of them together.
    async fn fix_handles(&self, fixes: Vec<PlannedChange>) {
        let mut fixes = fixes.into_iter().peekable();
        while fixes.peek().is_some() && !self.has_failed.get() {
            let (mut ended, mut together) = (Vec::new(), Vec::new());
            for PlannedChange { index, target, change } in fixes.by_ref().take(FIXES_TOGETHER) {
                ended.push((index, target, (change.name(), change.reason())));
                if let ReleaseChange::Handle(fix) = change {
                    together.push(fix);
                }
            }
            let outcomes = execute_fixes(self.store, together).await;
            for ((index, target, described), outcome) in ended.into_iter().zip(outcomes) {
                self.end_change(index, target, described, outcome);
            }
        }
    }

    fn end_change(
        &self,
        index: usize,
        target: String,
        (name, reason): (&'static str, String),
        outcome: Result<ChangeOutcome, CliError>,
    ) {
        match outcome {
            Ok(ChangeOutcome::Applied) => self.finish(index, Row { target, action: name, detail: reason }),
            Ok(ChangeOutcome::Refused(changed)) => {
                self.finish(index, Row { target, action: REFUSED, detail: changed });
            }
            Err(error) => {
                self.has_failed.set(true);
                let earlier = self.failure.take().filter(|(first, _)| *first < index);
                self.failure.set(earlier.or(Some((index, error))));
            }
        }
    }
}

/// Returns the changes in groups of which no two concern the same object. The changes of a group keep their order.
fn independent_groups(changes: Vec<PlannedChange>) -> Vec<Vec<PlannedChange>> {
    let mut groups: Vec<Vec<PlannedChange>> = Vec::new();
    let mut group_of: HashMap<ConcernedObject, usize> = HashMap::new();
    // The group into which a group was merged.
    let mut merged_into: Vec<usize> = Vec::new();
    for planned in changes {
        let objects = planned.change.concerned_objects();
        let root = |merged_into: &[usize], mut group: usize| {
            while merged_into[group] != group {
                group = merged_into[group];
            }
            group
        };
        let mut shared: Vec<usize> =
            objects.iter().filter_map(|object| group_of.get(object)).map(|group| root(&merged_into, *group)).collect();
        shared.sort_unstable();
        shared.dedup();
        let target = shared.first().copied().unwrap_or_else(|| {
            groups.push(Vec::new());
            merged_into.push(groups.len() - 1);
            groups.len() - 1
        });
        for other in shared.into_iter().skip(1) {
            let moved = std::mem::take(&mut groups[other]);
            groups[target].extend(moved);
            merged_into[other] = target;
        }
        groups[target].push(planned);
        group_of.extend(objects.into_iter().map(|object| (object, target)));
    }
    groups.retain(|group| !group.is_empty());
    groups.iter_mut().for_each(|group| group.sort_by_key(|planned| planned.index));
    groups
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::AllocatedAddress;

    use super::*;

    fn release(index: usize, block: &str, handle: &str) -> PlannedChange {
        let block: libcalico::net::Cidr = block.parse().unwrap();
        let held = AllocatedAddress {
            address: "10.0.0.1".parse().unwrap(),
            block,
            handle: Some(handle.to_owned()),
            sequence_number: None,
            attributes: Default::default(),
        };
        PlannedChange { index, target: handle.to_owned(), change: ReleaseChange::Release { held, fingerprint: None } }
    }

    /// Two releases that wrote the same block or handle at the same time would fail each other's comparison.
    #[test]
    fn releases_of_one_block_or_handle_are_in_one_group() {
        let changes = vec![
            release(0, "10.0.0.0/26", "a"),
            release(1, "10.0.0.64/26", "b"),
            release(2, "10.0.0.128/26", "c"),
            release(3, "10.0.0.0/26", "d"),
            // This dual-stack handle joins two groups.
            release(4, "fd00::/122", "d"),
            release(5, "fd00::/122", "b"),
        ];
        let groups: Vec<Vec<usize>> = independent_groups(changes)
            .iter()
            .map(|group| group.iter().map(|planned| planned.index).collect())
            .collect();
        assert_eq!(groups, [vec![0, 1, 3, 4, 5], vec![2]]);
    }
}
