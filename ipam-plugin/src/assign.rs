//! [`assign`]: assigns addresses from the pools.

use std::mem;
use std::net::IpAddr;

use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Revision, Store};

use crate::assignment_log;
use crate::budget::{Budget, OPERATION};
use crate::clock::Clock;
use crate::commit::{CommitError, commit};
use crate::early_handle::{forget, forget_expected, read_beside_handle};
use crate::error::{Exhaustion, IpamError, Shortfall};
use crate::exhausted::Outcome;
use crate::knowledge::{Knowledge, Wants};
use crate::mend::Mend;
use crate::plan::{FamilyPlan, Step};
use crate::prelude::{Counts, Prelude};
use crate::recent::Recent;
use crate::request::AssignRequest;
use crate::take::Take;
use crate::undo::undo;

/// An assigned address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length in the result: the block's, or the full length for a requested address or one assigned earlier
    /// (IPAM-40).
    pub prefix: u8,
}

/// Result of a request.
#[derive(Debug, Clone, Default)]
pub struct Assigned {
    /// The addresses, IPv4 first.
    pub addresses: Vec<Assignment>,
    /// The families with fewer addresses than requested, with the reason. As in upstream, this is not an error here.
    pub shortfalls: Vec<Shortfall>,
    /// The blocks from which the next addresses will probably come.
    pub(crate) recent: Recent,
    /// The revision of the last block written.
    pub(crate) last_write: Option<Revision>,
    /// The outcomes of searches of all blocks.
    pub(crate) searches: Vec<Outcome>,
    /// True if the node claimed another block.
    pub(crate) has_claimed: bool,
}

/// The progress of one family.
struct Family<'a> {
    plan: FamilyPlan<'a>,
    remaining: usize,
    assigned: usize,
    exhausted: Option<Exhaustion>,
}

struct Run<'a, S, C> {
    store: &'a S,
    clock: &'a C,
    request: &'a AssignRequest,
    known: Knowledge,
    families: Vec<Family<'a>>,
    budget: Budget<'a, C>,
    taken: Vec<Take>,
    held: Vec<Assignment>,
    last_write: Option<Revision>,
    /// The last release of this node before the first search of all blocks.
    release: Option<u64>,
}

/// Assigns the requested addresses, or as many of them as are available. On error, and if `all_or_nothing` is set and
/// too few are available, none of them stays assigned.
///
/// With an own block that has room, this takes one read and one write beyond the prelude.
pub async fn assign<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    prelude: Prelude,
) -> Result<Assigned, IpamError> {
    let wanted = [IpVersion::V4, IpVersion::V6].into_iter().filter(|version| request.wanted(*version) > 0);
    let families: Result<Vec<Family<'_>>, IpamError> = wanted
        .map(|version| {
            let plan = FamilyPlan::new(request, &prelude, version)?;
            Ok(Family { plan, remaining: request.wanted(version), assigned: 0, exhausted: None })
        })
        .collect();
    let expected = prelude.expected.clone();
    let known = Knowledge::new(prelude, request.prelude_query(), clock.now())
        .map(|known| known.passing_over(request.passed_over.clone()))
        .map_err(IpamError::from);
    let (families, known) = match families.and_then(|families| Ok((families, known?))) {
        Ok(both) => both,
        Err(error) => {
            Box::pin(forget(store, clock, &request.handle, expected)).await;
            return Err(error);
        }
    };
    let mut run = Run {
        store,
        clock,
        request,
        families,
        known,
        budget: Budget::new(clock, OPERATION),
        taken: Vec::new(),
        held: Vec::new(),
        last_write: None,
        release: None,
    };
    run.complete().await
}

/// The next steps of all families.
#[derive(Default)]
struct Round {
    wants: Wants,
    mends: Vec<(IpVersion, Mend)>,
    takes: Vec<Take>,
}

impl<S: Store, C: Clock> Run<'_, S, C> {
    async fn complete(&mut self) -> Result<Assigned, IpamError> {
        let outcome = self.rounds().await;
        if outcome.is_err() || self.request.all_or_nothing && self.is_short() {
            let _releasing = (!self.taken.is_empty()).then(|| self.request.notes.releasing());
            // Boxed, because the future is large and rarely used; the usual ADD should not contain it.
            Box::pin(self.undo()).await;
            self.taken.clear();
        }
        if !self.known.expected().is_empty() {
            Box::pin(forget_expected(self.store, self.clock, self.request, &mut self.known)).await;
        }
        outcome.map(|()| self.outcome())
    }

    async fn rounds(&mut self) -> Result<(), IpamError> {
        loop {
            let round = self.plan()?;
            if self.request.all_or_nothing && self.is_short() {
                return Ok(());
            }
            if !round.wants.lists.is_empty() && self.release.is_none() {
                self.release = self.request.notes.begin();
            }
            if round.wants != Wants::default() {
                match self.expected(&round) {
                    Some(expected) => {
                        let (store, request, known) = (self.store, self.request, &mut self.known);
                        Box::pin(read_beside_handle(store, request, known, &round.wants, expected)).await?;
                    }
                    None => self.known.read(self.store, &round.wants).await?,
                }
            } else if let Some((version, mend)) = round.mends.into_iter().next() {
                Box::pin(self.mend(version, mend)).await?;
            } else if !round.takes.is_empty() {
                self.commit(round.takes).await?;
            } else {
                return Ok(());
            }
        }
    }

    fn plan(&mut self) -> Result<Round, IpamError> {
        let mut round = Round::default();
        for family in self.families.iter_mut().filter(|f| f.remaining > 0 && f.exhausted.is_none()) {
            match family.plan.next(&self.known, family.remaining)? {
                Step::Read(wants) => round.wants.merge(wants),
                Step::Mend(mend) => round.mends.push((family.plan.version, mend)),
                Step::Take(take) => round.takes.push(take),
                Step::Held(addresses) => {
                    let prefix = family.plan.version.bits();
                    self.held.extend(addresses.into_iter().map(|ip| Assignment { ip, prefix }));
                    family.remaining = 0;
                }
                // A possibly busy address is better than none.
                Step::Short(_) if self.known.pass_over_no_more() => return self.plan(),
                Step::Short(cause) => family.exhausted = Some(cause),
            }
        }
        Ok(round)
    }

    /// Returns the counts that the handle may get before blocks are read: for each family the addresses it needs, in
    /// the block that most probably has them. Returns `None` if that block is not known yet, or if this saves no
    /// request.
    fn expected(&self, round: &Round) -> Option<Counts> {
        if self.store.has_transactions() || !self.known.handle_is_unread() || round.wants.handle {
            return None;
        }
        let open = self.families.iter().filter(|family| family.remaining > 0 && family.exhausted.is_none());
        open.map(|family| Some((family.plan.likely_block(&self.known)?, family.remaining))).collect()
    }

    async fn mend(&mut self, version: IpVersion, mend: Mend) -> Result<(), IpamError> {
        let cidr = mend.cidr();
        let Err(error) = mend.apply(self.store, &mut self.known).await else { return Ok(()) };
        if error.is_unavailable() {
            return Err(error.into());
        }
        if !error.is_race() {
            // The request does not depend on this block: another one is used instead.
            tracing::warn!(block = %cidr, %error, "cannot put a claim in order");
            let family = self.families.iter_mut().find(|family| family.plan.version == version);
            family.into_iter().for_each(|family| family.plan.spare(cidr));
        }
        self.read_again(vec![cidr]).await
    }

    async fn commit(&mut self, takes: Vec<Take>) -> Result<(), IpamError> {
        let touched: Vec<Cidr> = takes.iter().map(Take::cidr).collect();
        match commit(self.store, self.clock, &mut self.known, self.request, takes).await {
            Ok(done) => {
                let last = done.last().and_then(|take| self.known.readable_block(&take.cidr()));
                self.last_write = last.map(|block| block.revision.clone());
                self.count(done);
                Ok(())
            }
            Err(CommitError { done, cause }) => {
                let settled = cause.has_unknown_outcome();
                let progress = !done.is_empty();
                self.count(done);
                if settled && progress && self.families.iter().all(|family| family.remaining == 0) {
                    return Ok(());
                }
                if !cause.is_race() && !settled {
                    return Err(cause.into());
                }
                self.read_again(touched).await
            }
        }
    }

    fn count(&mut self, done: Vec<Take>) {
        for take in done {
            let version = take.cidr().version();
            if let Some(family) = self.families.iter_mut().find(|family| family.plan.version == version) {
                family.remaining = family.remaining.saturating_sub(take.addresses.len());
                family.assigned += take.addresses.len();
            }
            self.taken.push(take);
        }
    }

    /// Pauses after a lost race and reads again all objects that may have changed, including the pools and the node's
    /// other blocks.
    async fn read_again(&mut self, touched: Vec<Cidr>) -> Result<(), IpamError> {
        if !self.budget.pause().await {
            return Err(IpamError::Contention);
        }
        let own = self.families.iter().flat_map(|family| self.known.own_affinities(family.plan.version));
        let mut blocks: Vec<Cidr> =
            own.map(|entry| entry.key.cidr).filter(|cidr| self.known.block(cidr).is_some()).chain(touched).collect();
        blocks.sort();
        blocks.dedup();
        let now = self.clock.now();
        self.known.refresh(self.store, now, blocks).await?;
        self.families.iter_mut().try_for_each(|family| family.plan.choose_again(&self.known.prelude))
    }

    fn is_short(&self) -> bool {
        self.families.iter().any(|family| family.exhausted.is_some())
    }

    async fn undo(&mut self) {
        undo(self.store, self.clock, self.request, &self.taken).await;
    }

    fn has_room(&self, cidr: &Cidr) -> bool {
        self.known.readable_block(cidr).is_some_and(|block| block.value.free(&self.known.reservations) > 0)
    }

    fn outcome(&mut self) -> Assigned {
        let mut addresses = mem::take(&mut self.held);
        for take in &self.taken {
            let prefix = take.cidr().prefix();
            addresses.extend(take.addresses.iter().map(|ip| Assignment { ip: *ip, prefix }));
        }
        addresses.sort_by_key(|assignment| IpVersion::of(assignment.ip));
        let blocks = self.taken.iter().flat_map(|take| take.addresses.iter().map(|ip| (*ip, take.cidr())));
        assignment_log::assigned(&self.request.handle, &self.known.prelude.pools, blocks);
        let (known, release) = (&self.known, self.release);
        let is_over = |family: &&Family<'_>| family.remaining == 0 || family.exhausted.is_some();
        let over = self.families.iter().filter(is_over);
        let searches =
            over.filter_map(|family| family.plan.outcome(known, family.exhausted.as_ref(), release)).collect();
        let has_claimed = self.taken.iter().any(|take| take.claim.is_some());
        let short = self.families.iter_mut().filter_map(|family| {
            let cause = family.exhausted.take()?;
            Some(family.plan.shortfall(known, family.assigned, cause))
        });
        let shortfalls = short.collect();
        let (recent, last_write) = (self.recent(), self.last_write.take());
        Assigned { addresses, shortfalls, recent, last_write, searches, has_claimed }
    }

    fn recent(&self) -> Recent {
        let first_with_room = |family: &Family<'_>| {
            let mut own = family.plan.affine_blocks(&self.known);
            own.find(|cidr| self.has_room(cidr))
        };
        let with_room: Vec<Cidr> = self.families.iter().filter_map(first_with_room).collect();
        let looked_at = self.families.iter().flat_map(|family| family.plan.looked_at_first(&self.known));
        let others = looked_at.filter(|cidr| !with_room.contains(cidr)).collect();
        Recent { with_room, others }
    }
}

#[cfg(test)]
mod tests;
