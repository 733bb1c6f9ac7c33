//! [`trial`]: a migration without any change.

use libcalico::migration::{OwnerMap, moved_kinds};

use super::copy::{Action, KindWalk, Outcome, attach_all, sweep};
use super::requests::{Problem, Requests};

/// Converts all objects of v1, and with `with_v3` compares them with those of v3 and lets the API server check the
/// others. Changes nothing. [`Outcome::copied`] are the objects that a migration would copy.
///
/// The definitions of v3 are stricter than those of v1, so only the API server knows which objects v3 can have (MB-24).
/// It checks an object before it looks for its name: an object that a migration would replace is checked too.
pub(super) async fn trial(requests: &Requests, with_v3: bool) -> Result<Outcome, Problem> {
    let action = if with_v3 { Action::Check } else { Action::Convert };
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
    attach_all(requests, &owners, &owned, action, &mut outcome).await?;
    Ok(outcome)
}
