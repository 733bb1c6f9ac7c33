//! [`Grudging`]: permissions that are withheld until nothing goes on without them.
//!
//! A life in which a verb is withheld altogether comes to a standstill again and again. Each time, what was refused more than
//! once is granted: whoever is refused and does it in another way does not ask again. What is left at the end of a life was not
//! needed for it. So few lives show what one for each permission would, and besides that kube-controllers goes on by itself
//! when its role is mended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use integration_tests::kubernetes::{ApiServer, Audit, Permission, Role, ServiceAccount};

use super::NAME;

/// How often it is looked what was refused.
const LOOK: Duration = Duration::from_millis(250);
/// Told once, and not asked for again: nothing depends on it.
const ASKED_ONCE: &str = "create events";

/// An account whose role is not whole.
pub(crate) struct Grudging<'a> {
    api: &'a ApiServer,
    audit: Audit,
    user: String,
    granted: RefCell<Role>,
    withheld: RefCell<Role>,
    looked: Cell<Instant>,
}

impl<'a> Grudging<'a> {
    /// The account has `role` but for what is `withheld`.
    pub(crate) fn new(api: &'a ApiServer, account: &ServiceAccount, role: &Role, withheld: Role) -> Grudging<'a> {
        let granted = Role(role.0.difference(&withheld.0).cloned().collect());
        api.cluster_role(NAME, &granted.rules()).unwrap();
        for permission in &role.0 {
            let seen = || Ok(api.allows(&account.user, permission.access())? == granted.0.contains(permission));
            integration_tests::controllers::await_that(integration_tests::controllers::PATIENCE, seen).unwrap();
        }
        Grudging {
            api,
            audit: api.audit().unwrap(),
            user: account.user.clone(),
            granted: RefCell::new(granted),
            withheld: RefCell::new(withheld),
            looked: Cell::new(Instant::now()),
        }
    }

    /// What is still withheld.
    pub(crate) fn withheld(&self) -> Role {
        self.withheld.borrow().clone()
    }

    /// Grants what was refused more than once.
    pub(crate) fn grant_what_is_missed(&self) {
        if self.looked.get().elapsed() < LOOK || self.withheld.borrow().0.is_empty() {
            return;
        }
        self.looked.set(Instant::now());
        let mut refused = BTreeMap::<Permission, usize>::new();
        for request in self.audit.of(&self.user).unwrap().iter().filter(|request| request.code == Some(403)) {
            for permission in Role::used_by(std::slice::from_ref(request)).0 {
                *refused.entry(permission).or_default() += 1;
            }
        }
        let mut withheld = self.withheld.borrow_mut();
        let is_missed = |permission: &Permission| {
            let times = refused.get(permission).copied().unwrap_or(0);
            times > 1 || (times == 1 && permission.to_string() == ASKED_ONCE)
        };
        let missed: Vec<Permission> = withheld.0.extract_if(.., |permission| is_missed(permission)).collect();
        if !missed.is_empty() {
            self.granted.borrow_mut().0.extend(missed);
            self.api.cluster_role(NAME, &self.granted.borrow().rules()).unwrap();
        }
    }
}
