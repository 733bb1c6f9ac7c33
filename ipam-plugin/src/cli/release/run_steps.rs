//! [`run_steps`]: takes the steps of a release, many of them together.

use std::cell::Cell;
use std::collections::BTreeMap;

use datastore::Datastore;
use libcalico::ipam::AllocatedAddress;
use libcalico::net::Cidr;

use super::Row;
use super::step::{
    BlockRepair, ChangeOutcome, HandleFix, ReleaseChange, ReleaseStep, StepVerdict, execute_fixes,
    release_together, store_block,
};
use crate::cli::app::Progress;
use crate::cli::error::CliError;

/// Number of blocks whose addresses are released together.
const BLOCKS_TOGETHER: usize = 16;
/// Number of handles that are corrected together, so that a block of several of them is written
/// once.
const FIXES_TOGETHER: usize = 32;

pub(super) const REFUSED: &str = "refused";
const SKIPPED: &str = "left alone";

/// Takes the steps: first the repairs of blocks, then those of handles, and then the releases of
/// addresses. After a failure no other step begins, except those taken together with it. Returns
/// the rows of the complete steps in the order of the steps, and the first error.
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
                run.finish(
                    index,
                    Row {
                        target,
                        action: SKIPPED,
                        detail: reason,
                    },
                );
                continue;
            }
            StepVerdict::Refuse(reason) => {
                run.finish(
                    index,
                    Row {
                        target,
                        action: REFUSED,
                        detail: reason,
                    },
                );
                continue;
            }
            StepVerdict::Do(change) if dry_run => {
                let detail = format!("{}, {}", change.name(), change.reason());
                run.finish(
                    index,
                    Row {
                        target,
                        action: "would be",
                        detail,
                    },
                );
                continue;
            }
            StepVerdict::Do(change) => change,
        };
        let planned = Planned {
            index,
            target,
            name: change.name(),
            reason: change.reason(),
        };
        match change {
            ReleaseChange::Block(repair) => repairs.push((planned, *repair)),
            ReleaseChange::Handle(fix) => fixes.push((planned, fix)),
            ReleaseChange::Release { held, fingerprint } => {
                releases.push((planned, (held, fingerprint)))
            }
        }
    }
    run.repair_blocks(repairs).await;
    run.fix_handles(fixes).await;
    run.release_addresses(releases).await;
    (
        run.rows.into_iter().filter_map(Cell::into_inner).collect(),
        run.failure.into_inner().map(|(_, error)| error),
    )
}

/// The description of a step that changes an object.
struct Planned {
    /// The position of the step.
    index: usize,
    target: String,
    name: &'static str,
    reason: String,
}

/// An allocation and its fingerprint.
type Held = (AllocatedAddress, Option<u32>);

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

    async fn repair_blocks(&self, repairs: Vec<(Planned, BlockRepair)>) {
        for (planned, repair) in repairs {
            if self.has_failed.get() {
                return;
            }
            self.end(planned, store_block(self.store, repair).await);
        }
    }

    /// Corrects handles, some of them together.
    async fn fix_handles(&self, fixes: Vec<(Planned, HandleFix)>) {
        let mut fixes = fixes.into_iter().peekable();
        while fixes.peek().is_some() && !self.has_failed.get() {
            let (planned, together): (Vec<_>, Vec<_>) = fixes.by_ref().take(FIXES_TOGETHER).unzip();
            self.end_all(planned, execute_fixes(self.store, together).await);
        }
    }

    /// Releases addresses, those of some blocks together.
    async fn release_addresses(&self, releases: Vec<(Planned, Held)>) {
        let mut by_block: BTreeMap<Cidr, Vec<(Planned, Held)>> = BTreeMap::new();
        for (planned, held) in releases {
            by_block
                .entry(held.0.block)
                .or_default()
                .push((planned, held));
        }
        let mut blocks = by_block.into_values().peekable();
        while blocks.peek().is_some() && !self.has_failed.get() {
            let (planned, together): (Vec<_>, Vec<_>) =
                blocks.by_ref().take(BLOCKS_TOGETHER).flatten().unzip();
            self.end_all(planned, release_together(self.store, &together).await);
        }
    }

    fn end_all(&self, planned: Vec<Planned>, outcomes: Vec<Result<ChangeOutcome, CliError>>) {
        planned
            .into_iter()
            .zip(outcomes)
            .for_each(|(planned, outcome)| self.end(planned, outcome));
    }

    fn end(
        &self,
        Planned {
            index,
            target,
            name,
            reason,
        }: Planned,
        outcome: Result<ChangeOutcome, CliError>,
    ) {
        match outcome {
            Ok(ChangeOutcome::Applied) => self.finish(
                index,
                Row {
                    target,
                    action: name,
                    detail: reason,
                },
            ),
            Ok(ChangeOutcome::Refused(changed)) => {
                self.finish(
                    index,
                    Row {
                        target,
                        action: REFUSED,
                        detail: changed,
                    },
                );
            }
            Err(error) => {
                self.has_failed.set(true);
                let earlier = self.failure.take().filter(|(first, _)| *first < index);
                self.failure.set(earlier.or(Some((index, error))));
            }
        }
    }
}
