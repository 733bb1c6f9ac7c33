//! [`Copier`]: copies all objects of v1 to v3.

mod deletion;
mod one;
mod outcome;
mod outside;
mod owners;
mod second_look;
mod sweep;
mod walk;

use std::mem;

use libcalico::migration::{KindProgress, OwnerMap, Progress, is_copy, moved_kinds};
use tokio::time::Instant;

use super::attempts::LockTimer;
use super::listing;
use super::object::Control;
use super::requests::{Problem, Requests};
use one::Action;
use outside::Outside;
use owners::{CopyTools, attach_all};
use second_look::CopiedKind;
use sweep::sweep;
use walk::KindWalk;

#[cfg(test)]
pub(super) use deletion::delete_copy;
pub(super) use deletion::delete_listed;
pub(super) use outcome::{Category, KindCount, Named, Outcome, shown};

/// Copies all objects. Safe to be dropped at any await, and to be repeated by another process.
pub(super) struct Copier<'a> {
    requests: &'a Requests,
    /// The object whose status shows the progress. Its uid marks the copies.
    control: &'a mut Control,
    /// Records each object that was created, replaced or deleted.
    timer: &'a LockTimer,
    owners: OwnerMap,
    outside: Outside,
    /// The copies that the second look compares with v1.
    copied: Vec<CopiedKind>,
    /// The resourceVersion of v1 at the beginning of the last look.
    revision: String,
}

impl<'a> Copier<'a> {
    pub(super) fn new(
        requests: &'a Requests,
        control: &'a mut Control,
        timer: &'a LockTimer,
    ) -> Self {
        let (owners, outside) = (OwnerMap::default(), Outside::default());
        Copier {
            requests,
            control,
            timer,
            owners,
            outside,
            copied: Vec::new(),
            revision: String::new(),
        }
    }

    /// Copies all objects, and deletes the copies whose sources are gone.
    pub(super) async fn all(&mut self) -> Result<Outcome, Problem> {
        (self.owners, self.outside, self.copied) =
            (OwnerMap::default(), Outside::default(), Vec::new());
        self.timer.begin_pass();
        let migration = self.control.uid().to_owned();
        let action = Action::Copy {
            migration: &migration,
            timer: Some(self.timer),
        };
        let kinds = moved_kinds();
        let mut progress = Progress::of(number(kinds.len()));
        let (mut outcome, mut owned) = (Outcome::default(), Vec::new());
        for (done, kind) in (1..).zip(&kinds) {
            kind.v3.kind.clone_into(&mut progress.current_type);
            self.show(&progress).await?;
            let began = Instant::now();
            let mut walk = KindWalk::run(self.requests, kind, action, &mut self.owners).await?;
            if walk.is_complete {
                sweep(&mut walk).await?;
            }
            let count = walk.outcome.count_of(kind.v3.kind);
            count.took = began.elapsed();
            progress.add(progress_of(count));
            progress.complete(done);
            outcome.append(mem::take(&mut walk.outcome));
            owned.append(&mut walk.owned);
            self.copied.extend(CopiedKind::of(walk));
        }
        let tools = CopyTools {
            requests: self.requests,
            owners: &self.owners,
            outside: &self.outside,
            action,
        };
        attach_all(tools, &owned, &mut outcome).await?;
        progress.current_type.clear();
        self.show(&progress).await?;
        Ok(outcome)
    }

    /// Copies the objects that have changed since [`Copier::all`] or the last call. Returns true if
    /// there was none.
    ///
    /// # Errors
    /// [`Problem::Refused`] if v3 cannot have a changed object.
    pub(super) async fn second_look(&mut self) -> Result<bool, Problem> {
        let migration = self.control.uid();
        // A program that writes all the time does not count as progress: the lock would never end.
        let action = Action::Copy {
            migration,
            timer: None,
        };
        let tools = CopyTools {
            requests: self.requests,
            owners: &self.owners,
            outside: &self.outside,
            action,
        };
        let (mut changes, mut revisions) = (0, Vec::new());
        for kind in &mut self.copied {
            let result = kind.look(tools).await?;
            changes += result.changes;
            revisions.push(result.revision);
        }
        // A look without a change has seen everything up to the first of its lists.
        self.revision = revisions
            .into_iter()
            .find(|revision| !revision.is_empty())
            .unwrap_or_default();
        Ok(changes == 0)
    }

    /// Returns the resourceVersion of v1 up to which the last second look has seen each change;
    /// empty if the API server does not say it.
    pub(super) fn seen_revision(&self) -> &str {
        &self.revision
    }

    /// Shows the progress in the status. A failure that may end does not stop the copies: the
    /// progress only informs.
    async fn show(&mut self, progress: &Progress) -> Result<(), Problem> {
        match self
            .control
            .write_status(self.requests, |status| status.progress.clone_from(progress))
            .await
        {
            Err(Problem::Transient(cause)) => {
                tracing::debug!(cause, "migration: the progress is not shown");
                Ok(())
            }
            shown => shown,
        }
    }
}

/// Converts all objects of v1, and with `with_v3` compares them with those of v3 and lets the API
/// server check the others. Changes nothing. [`Category::Copied`] are the objects that a migration
/// would copy.
///
/// The definitions of v3 are stricter than those of v1, so only the API server knows which objects
/// v3 can have (MB-24). It checks an object before it looks for its name: an object that a
/// migration would replace is checked too.
pub(super) async fn trial(requests: &Requests, with_v3: bool) -> Result<Outcome, Problem> {
    let action = if with_v3 {
        Action::Check
    } else {
        Action::Convert
    };
    let mut owners = OwnerMap::default();
    let (mut outcome, mut owned) = (Outcome::default(), Vec::new());
    for kind in &moved_kinds() {
        let mut walk = KindWalk::run(requests, kind, action, &mut owners).await?;
        if with_v3 && walk.is_complete {
            sweep(&mut walk).await?;
        }
        outcome.append(walk.outcome);
        owned.append(&mut walk.owned);
    }
    let tools = CopyTools {
        requests,
        owners: &owners,
        outside: &Outside::default(),
        action,
    };
    attach_all(tools, &owned, &mut outcome).await?;
    Ok(outcome)
}

/// Returns the number of copies among the objects of address management in v3.
pub(super) async fn count_copies(requests: &Requests) -> Result<usize, Problem> {
    let mut count = 0;
    for kind in moved_kinds().iter().filter(|kind| kind.is_ipam) {
        let copies =
            listing::metadata(requests, &kind.v3, |object| is_copy(object).then_some(())).await?;
        count += copies.0.len();
    }
    Ok(count)
}

fn progress_of(count: &KindCount) -> KindProgress {
    KindProgress {
        kind: count.kind.to_owned(),
        migrated: number(count.of(Category::Copied)),
        skipped: number(count.of(Category::Skipped)),
        conflicts: number(count.of(Category::Conflict)),
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
