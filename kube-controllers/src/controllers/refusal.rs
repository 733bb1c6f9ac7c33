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

/// Returns whether the API server says that the object is not there. A proxy on the way says 404 in its own words.
pub(super) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound")
}
