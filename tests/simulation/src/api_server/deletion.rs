//! DELETE: preconditions, finalizers and the grace period of pods.

use libcalico::kubernetes::{Location, NAMESPACES, PODS, Preconditions};
use serde_json::Value;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use super::fields::{remove, text, timestamp};
use super::{ApiServer, Refusal, refusal};

/// The grace period of a pod without one of its own, in seconds.
const POD_GRACE_PERIOD: u64 = 30;

/// Returns true if an object is marked as deleted and nothing delays its removal.
pub(super) fn is_complete(object: &Value) -> bool {
    let metadata = &object["metadata"];
    metadata.get("deletionTimestamp").is_some()
        && metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or(0) == 0
        && !has_finalizers(object)
}

fn has_finalizers(object: &Value) -> bool {
    let is_filled = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    is_filled(&object["metadata"]["finalizers"])
        || object["kind"] == NAMESPACES.kind && is_filled(&object["spec"]["finalizers"])
}

impl ApiServer {
    /// Deletes an object at once, or marks it as deleted. `grace` is the grace period in seconds
    /// that the client requests for a pod. Returns the object.
    pub(super) fn delete(
        &mut self,
        location: &Location,
        preconditions: &Preconditions,
        grace: Option<u64>,
    ) -> Result<Value, Refusal> {
        let object = self.stored(location)?;
        check(location, preconditions, object)?;
        let is_pod = location.resource == PODS;
        let wanted = if is_pod { pod_grace(object, grace) } else { 0 };
        let mut marked = object.clone();
        let metadata = &mut marked["metadata"];
        if metadata.get("deletionTimestamp").is_none() {
            metadata["deletionTimestamp"] = timestamp(self.now + seconds(wanted));
            if let Some(generation) = metadata["generation"].as_u64() {
                metadata["generation"] = (generation + 1).into();
            }
        } else {
            // Only a client that names a shorter period changes anything.
            let present = metadata["deletionGracePeriodSeconds"].as_u64();
            let Some(present) = present.filter(|present| grace.is_some() && wanted < *present)
            else {
                return Ok(marked);
            };
            let until = metadata["deletionTimestamp"].as_str().unwrap_or_default();
            let until = OffsetDateTime::parse(until, &Rfc3339).unwrap_or(self.now);
            metadata["deletionTimestamp"] = timestamp(until - seconds(present - wanted));
        }
        metadata["deletionGracePeriodSeconds"] = wanted.into();
        if location.resource == NAMESPACES {
            remove(metadata, "deletionGracePeriodSeconds");
            marked["status"]["phase"] = "Terminating".into();
        }
        Ok(self.commit(location, marked))
    }
}

fn check(location: &Location, wanted: &Preconditions, object: &Value) -> Result<(), Refusal> {
    let found = text(object, "uid");
    if let Some(uid) = wanted.uid.as_deref().filter(|uid| *uid != found) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({found}). The \
             object might have been deleted and then recreated"
        );
        return Err(refusal::conflict(location, &why));
    }
    let found = text(object, "resourceVersion");
    let version = wanted.resource_version.as_deref();
    if let Some(version) = version.filter(|version| *version != found) {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the \
             ResourceVersion in record ({found}). The object might have been modified"
        );
        return Err(refusal::conflict(location, &why));
    }
    Ok(())
}

fn seconds(number: u64) -> Duration {
    Duration::seconds(u32::try_from(number).unwrap_or(u32::MAX).into())
}

/// Returns the grace period of a pod in seconds. It is 0 for a pod that has no processes.
fn pod_grace(pod: &Value, wanted: Option<u64>) -> u64 {
    let is_scheduled = pod["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty());
    let has_ended = pod["status"]["phase"]
        .as_str()
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
    if !is_scheduled || has_ended {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
    wanted.or(own).unwrap_or(POD_GRACE_PERIOD)
}
