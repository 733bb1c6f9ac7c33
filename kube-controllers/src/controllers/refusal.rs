//! What the API server refuses, as a [`Failure`].

use crate::runtime::Failure;

/// An object that is invalid stays invalid; all else may pass.
pub(super) fn failure(what: &str, error: &kube::Error) -> Failure {
    let text = format!("{what}: {error}");
    match error {
        kube::Error::Api(status) if status.code == 422 => Failure::Permanent(text),
        _ => Failure::Retry(text),
    }
}

/// Whether the object is not there.
pub(super) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
