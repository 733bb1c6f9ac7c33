//! [`treat`]: copies one object, or checks if it could be copied.

use libcalico::kubernetes::Moved;
use libcalico::migration::{Found, judge, marked_copy, replacement};
use serde_json::Value;

use super::super::attempts::LockTimer;
use super::super::requests::{Created, Problem, Requests};
use super::outcome::Category;

/// Number of attempts at an object that other programs change at the same time.
pub(super) const TRIES: u32 = 5;
/// The uid in the marks of an object that is only checked: as long as a real one.
const SAMPLE_UID: &str = "00000000-0000-0000-0000-000000000000";

/// Upstream's text.
const DIFFERENT: &str = "v3 resource exists with different spec";
const EDITED: &str = "the copy in v3 has been edited; delete the copy, or undo the edit";
const ENDING: &str = "the object in v3 is being deleted; wait for the end of the deletion";
pub(super) const CHANGING: &str = "other programs change the object in v3 all the time; stop them";

/// The treatment of the objects of v1.
#[derive(Clone, Copy)]
pub(super) enum Action<'a> {
    /// Only converts the objects.
    Convert,
    /// Compares the objects with those of v3, and lets the API server check the others.
    Check,
    /// Copies the objects.
    Copy {
        /// The uid of the controlling object.
        migration: &'a str,
        /// Records each object that was created, replaced or deleted, if that counts as progress.
        timer: Option<&'a LockTimer>,
    },
}

/// The result for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Treated {
    pub(super) category: Category,
    /// May be empty.
    pub(super) reason: String,
    /// The uid of the object in v3, if v3 has the object now.
    pub(super) uid: Option<String>,
}

impl Action<'_> {
    /// Records that an object was created, replaced or deleted.
    pub(super) fn finished(self) {
        if let Action::Copy {
            timer: Some(timer), ..
        } = self
        {
            timer.finished();
        }
    }

    /// Records that an object was copied or compared.
    pub(super) fn treated(self) {
        if let Action::Copy {
            timer: Some(timer), ..
        } = self
        {
            timer.treated();
        }
    }
}

impl Treated {
    fn copied() -> Self {
        Treated {
            category: Category::Copied,
            reason: String::new(),
            uid: None,
        }
    }

    fn found(category: Category, object: &Value) -> Self {
        let uid = object["metadata"]["uid"].as_str().map(str::to_owned);
        Treated {
            category,
            reason: String::new(),
            uid,
        }
    }

    fn conflict(reason: &str) -> Self {
        Treated {
            category: Category::Conflict,
            reason: reason.to_owned(),
            uid: None,
        }
    }

    fn refused(reason: String) -> Self {
        Treated {
            category: Category::Refused,
            reason,
            uid: None,
        }
    }
}

/// Treats an object. Most objects are missing in v3, so the creation comes first, and the API
/// server says which exist.
pub(super) async fn treat(
    requests: &Requests,
    moved: &Moved,
    action: Action<'_>,
) -> Result<Treated, Problem> {
    let (migration, is_dry) = match action {
        Action::Convert => return Ok(Treated::copied()),
        Action::Check => (SAMPLE_UID, true),
        Action::Copy { migration, .. } => (migration, false),
    };
    let at = &moved.location;
    for _ in 0..TRIES {
        let refusal = match requests
            .create_copy(at, &marked_copy(moved, migration), is_dry)
            .await?
        {
            Created::New(copy) => {
                action.finished();
                return Ok(Treated::found(Category::Copied, &copy));
            }
            Created::Exists => None,
            Created::Refused(text) => Some(text),
        };
        // An object that exists may be valid although the API server would refuse its creation.
        let Some(existing) = requests.get(at).await? else {
            match refusal {
                Some(text) => return Ok(Treated::refused(text)),
                None => continue,
            }
        };
        if !existing["metadata"]["deletionTimestamp"].is_null() {
            return Ok(Treated::conflict(ENDING));
        }
        match (judge(&existing, moved), refusal) {
            (Found::Same, _) => return Ok(Treated::found(Category::Skipped, &existing)),
            (Found::Edited, _) => return Ok(Treated::conflict(EDITED)),
            (Found::Foreign, _) => return Ok(Treated::conflict(DIFFERENT)),
            (Found::Stale, Some(text)) => return Ok(Treated::refused(text)),
            (Found::Stale, None) if is_dry => {
                return Ok(Treated::found(Category::Copied, &existing));
            }
            (Found::Stale, None) => match requests
                .replace_copy(at, &replacement(&existing, moved, migration))
                .await
            {
                Ok(copy) => {
                    action.finished();
                    return Ok(Treated::found(Category::Copied, &copy));
                }
                Err(Problem::Refused { text, .. }) => return Ok(Treated::refused(text)),
                Err(Problem::Lost) => {}
                Err(problem) => return Err(problem),
            },
        }
    }
    // A temporary failure would be repeated under the lock for five minutes.
    Ok(Treated::conflict(CHANGING))
}
