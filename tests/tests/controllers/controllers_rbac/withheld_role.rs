//! [`WithheldRole`]: a role whose permissions are withheld until kube-controllers cannot continue
//! without them.
//!
//! If all permissions of a verb are withheld, a run stops repeatedly. Each time, every permission
//! that was denied more than once is granted: a program that can do without a permission seldom
//! requests it a second time. A permission that is still withheld at the end of the run was not
//! needed. Therefore a few runs suffice instead of one for each permission, and they also show that
//! kube-controllers continues by itself when its role is corrected.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{ApiServer, Audit, Permission, Role, ServiceAccount};

use super::NAME;

/// Interval between checks for denied requests.
const INTERVAL: Duration = Duration::from_millis(250);
/// A permission that is requested only once, since no further work depends on it.
const ASKED_ONCE: &str = "create events";

pub(crate) struct WithheldRole<'a> {
    api: &'a ApiServer,
    audit: Audit,
    user: String,
    granted: RefCell<Role>,
    withheld: RefCell<Role>,
    checked_at: Cell<Instant>,
}

impl<'a> WithheldRole<'a> {
    /// Gives the account `role` without the permissions in `withheld`.
    pub(crate) fn new(
        api: &'a ApiServer,
        account: &ServiceAccount,
        role: &Role,
        withheld: Role,
    ) -> WithheldRole<'a> {
        let granted = Role(role.0.difference(&withheld.0).cloned().collect());
        api.cluster_role(NAME, &granted.rules()).unwrap();
        for permission in &role.0 {
            let seen = || {
                Ok(api.allows(&account.user, permission.access())?
                    == granted.0.contains(permission))
            };
            await_that(PATIENCE, seen).unwrap();
        }
        WithheldRole {
            api,
            audit: api.audit().unwrap(),
            user: account.user.clone(),
            granted: RefCell::new(granted),
            withheld: RefCell::new(withheld),
            checked_at: Cell::new(Instant::now()),
        }
    }

    /// Returns the permissions that are still withheld. [`ASKED_ONCE`] is not one of them if it was
    /// denied: no work depends on it, so all work can end before the next check.
    pub(crate) fn not_requested(&self) -> Role {
        let refused = self.refused();
        let mut withheld = self.withheld.borrow().clone();
        withheld.0.retain(|permission| {
            permission.to_string() != ASKED_ONCE || !refused.contains_key(permission)
        });
        withheld
    }

    /// Returns the number of denied requests for each permission.
    fn refused(&self) -> BTreeMap<Permission, usize> {
        let mut refused = BTreeMap::new();
        for request in self
            .audit
            .of(&self.user)
            .unwrap()
            .iter()
            .filter(|request| request.code == Some(403))
        {
            for permission in Role::used_by(std::slice::from_ref(request)).0 {
                *refused.entry(permission).or_default() += 1;
            }
        }
        refused
    }

    /// Grants the permissions that were denied more than once, and [`ASKED_ONCE`] after one denial,
    /// at most once per [`INTERVAL`].
    pub(crate) fn grant_requested(&self) {
        if self.checked_at.get().elapsed() < INTERVAL || self.withheld.borrow().0.is_empty() {
            return;
        }
        self.checked_at.set(Instant::now());
        let refused = self.refused();
        let mut withheld = self.withheld.borrow_mut();
        let is_requested = |permission: &Permission| {
            let times = refused.get(permission).copied().unwrap_or(0);
            times > 1 || (times == 1 && permission.to_string() == ASKED_ONCE)
        };
        let requested: Vec<Permission> = withheld
            .0
            .extract_if(.., |permission| is_requested(permission))
            .collect();
        if !requested.is_empty() {
            self.granted.borrow_mut().0.extend(requested);
            self.api
                .cluster_role(NAME, &self.granted.borrow().rules())
                .unwrap();
        }
    }
}
