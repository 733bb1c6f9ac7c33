//! The refusals of requests, with the texts of a kube-apiserver.

use libcalico::kubernetes::{Location, Status, StatusCause, StatusDetails};

use super::Refusal;

fn status(code: u16, reason: &str, message: String, name: &str) -> Refusal {
    Box::new(Status {
        kind: "Status".into(),
        code,
        reason: reason.into(),
        message,
        details: StatusDetails {
            name: name.into(),
            ..StatusDetails::default()
        },
    })
}

/// Returns the plural, with the group behind it, and the name of an object.
fn qualified(location: &Location) -> String {
    let plural = location.resource.plural;
    match location.resource.api_version.split_once('/') {
        Some((group, _)) => format!("{plural}.{group} {:?}", location.name),
        None => format!("{plural} {:?}", location.name),
    }
}

pub(super) fn not_found(location: &Location) -> Refusal {
    let message = format!("{} not found", qualified(location));
    status(404, "NotFound", message, &location.name)
}

pub(super) fn already_exists(location: &Location) -> Refusal {
    let message = format!("{} already exists", qualified(location));
    status(409, "AlreadyExists", message, &location.name)
}

/// Returns the refusal of a write for the reason `why`.
pub(super) fn conflict(location: &Location, why: &str) -> Refusal {
    let message = format!(
        "Operation cannot be fulfilled on {}: {why}",
        qualified(location)
    );
    status(409, "Conflict", message, &location.name)
}

pub(super) fn modified(location: &Location) -> Refusal {
    conflict(
        location,
        "the object has been modified; please apply your changes to the latest version and try \
         again",
    )
}

/// Returns the refusal of an object whose field `field` is invalid.
pub(super) fn invalid(location: &Location, field: &str, why: &str) -> Refusal {
    let resource = &location.resource;
    let message = format!(
        "{} {:?} is invalid: {field}: {why}",
        resource.kind, location.name
    );
    let mut refusal = status(422, "Invalid", message, &location.name);
    refusal.details.causes = vec![StatusCause {
        reason: "FieldValueInvalid".into(),
        field: field.into(),
    }];
    refusal
}

pub(super) fn terminating(location: &Location, namespace: &str) -> Refusal {
    let message = format!(
        "{} is forbidden: unable to create new content in namespace {namespace} because it is \
         being terminated",
        qualified(location)
    );
    status(403, "Forbidden", message, &location.name)
}

pub(super) fn bad_request(message: String) -> Refusal {
    status(400, "BadRequest", message, "")
}
