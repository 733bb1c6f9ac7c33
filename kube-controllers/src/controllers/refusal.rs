//! Conversion of the API server's errors to [`Failure`].

use crate::runtime::Failure;

/// Converts an error. A rejection as invalid is permanent, and any other error is retried.
pub(super) fn failure(what: &str, error: &kube::Error) -> Failure {
    let text = format!("{what}: {error}");
    match error {
        kube::Error::Api(status) if status.code == 422 => Failure::Permanent(text),
        _ => Failure::Retry(text),
    }
}

/// Returns true if the API server reports the object as missing. A 404 of a proxy has another format and does not
/// count.
pub(super) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound")
}
