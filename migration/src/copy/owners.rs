//! [`attach_all`]: adds the references to owners to the copies, once the copies of all owners
//! exist.
//!
//! Kubernetes' garbage collector deletes an object whose owners do not exist. So copies are created
//! without references to Calico's objects, and a reference to an owner without a copy stays out. So
//! does a reference to a missing object of another program, if only Calico's annotation has the
//! reference.

use futures::future::join_all;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{OwnerMap, is_copy};
use serde_json::Value;

use super::super::requests::{Problem, Requests};
use super::one::{Action, CHANGING, TRIES};
use super::outcome::{Category, Outcome, shown_at};
use super::outside::Outside;
use super::walk::{OwnedObject, PARALLEL};

/// Greatest number of owners of other kinds than Calico's that are looked for, of one object. Even
/// on ten unreachable servers, the looks take less time than the longest standstill under the lock.
const MOST_LOOKS: usize = 10;
const WITHOUT_COPY: &str = "no copy of it exists, or it is in another namespace";
const TOO_MANY: &str = "the object has more than 10 references to objects of other programs";

/// The means by which objects are copied.
#[derive(Clone, Copy)]
pub(super) struct CopyTools<'a> {
    pub(super) requests: &'a Requests,
    pub(super) owners: &'a OwnerMap,
    pub(super) outside: &'a Outside,
    pub(super) action: Action<'a>,
}

/// Adds the references to the copies, unless the action only checks. Lists the references that stay
/// out.
pub(super) async fn attach_all(
    tools: CopyTools<'_>,
    owned: &[OwnedObject],
    outcome: &mut Outcome,
) -> Result<(), Problem> {
    for some in owned.chunks(PARALLEL) {
        let attached = join_all(some.iter().map(|object| attach(tools, object))).await;
        for (object, left_out) in some.iter().zip(attached) {
            for reason in left_out? {
                add_left_out(outcome, object, &reason, tools.action);
            }
            tools.action.treated();
        }
    }
    Ok(())
}

/// Adds the references to a copy. Returns the reasons for which references stay out.
pub(super) async fn attach(
    tools: CopyTools<'_>,
    object: &OwnedObject,
) -> Result<Vec<String>, Problem> {
    let CopyTools {
        requests,
        owners,
        outside,
        action,
    } = tools;
    let namespace = object.location.namespace.as_deref();
    let (mut kept, left_out) = owners.resolve(namespace, &object.owners);
    let (mut reasons, mut looks) = (Vec::new(), 0);
    for owner in left_out {
        let reason = match action {
            _ if owner["apiVersion"] == ApiGroup::V3.api_version() => Some(WITHOUT_COPY.to_owned()),
            Action::Convert => None,
            _ if looks == MOST_LOOKS => Some(TOO_MANY.to_owned()),
            _ => {
                looks += 1;
                outside.doubt(requests, namespace, &owner).await
            }
        };
        match reason {
            Some(reason) => reasons.push(format!("{}: {reason}", named(&owner))),
            None => kept.push(owner),
        }
    }
    if let Action::Copy { .. } = action
        && !kept.is_empty()
        && let Some(refusal) = write(requests, object, &kept, action).await?
    {
        reasons.extend(
            kept.iter()
                .map(|owner| format!("{}: {refusal}", named(owner))),
        );
    }
    Ok(reasons)
}

/// Writes the references into the copy. Returns the API server's text if it refuses them. An object
/// that is not a copy stays as it is.
///
/// # Errors
/// [`Problem::Refused`] also if other programs change the copy all the time.
async fn write(
    requests: &Requests,
    object: &OwnedObject,
    kept: &[Value],
    action: Action<'_>,
) -> Result<Option<String>, Problem> {
    let references = Value::Array(object.others.iter().chain(kept).cloned().collect());
    for _ in 0..TRIES {
        let Some(mut copy) = requests.get(&object.location).await?.filter(is_copy) else {
            return Ok(None);
        };
        if copy["metadata"]["ownerReferences"] == references {
            return Ok(None);
        }
        copy["metadata"]["ownerReferences"] = references.clone();
        match requests.replace(&object.location, &copy).await {
            Ok(_) => {
                action.finished();
                return Ok(None);
            }
            // Clients of v1 may have stored any text as a reference.
            Err(Problem::Refused { text, .. }) => return Ok(Some(text)),
            Err(Problem::Lost) => {}
            Err(problem) => return Err(problem),
        }
    }
    Err(Problem::Refused {
        code: 409,
        text: format!("{}: {CHANGING}", shown_at(&object.location)),
    })
}

fn add_left_out(outcome: &mut Outcome, object: &OwnedObject, reason: &str, action: Action<'_>) {
    let name = shown_at(&object.location);
    if let Action::Copy { .. } = action {
        tracing::warn!(
            object = name,
            reason,
            "migration: a reference to an owner is not copied"
        );
    }
    outcome.add(
        object.location.resource.kind,
        Category::LeftOut,
        name,
        reason,
    );
}

/// Returns a reference as a short text.
fn named(owner: &Value) -> String {
    let text = |field: &str| {
        owner[field]
            .as_str()
            .unwrap_or_default()
            .chars()
            .take(253)
            .collect::<String>()
    };
    format!("owner {} {} ({})", text("kind"), text("name"), text("uid"))
}
