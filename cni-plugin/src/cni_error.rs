//! Conversions of other crates' and modules' errors to [`CniError`], with the code that a runtime
//! acts on.

use allocation::journal::JournalError;
use libcalico::store::StoreError;
use libcalico::validation_error::ValidationError;
use netconf::{CniError, Code};
use os::lock::LockError;

use dataplane::{DataplaneError, NetnsError};

/// Converts an error of the datastore. `doing` completes "cannot …".
pub fn store_error(doing: &str, error: &StoreError) -> CniError {
    let msg = format!("cannot {doing}: {error}");
    match error {
        StoreError::Unavailable { .. }
        | StoreError::ForeignAnswer { .. }
        | StoreError::Conflict { .. } => CniError::new(Code::TRY_AGAIN, msg),
        StoreError::DiskFull { .. } => CniError::new(Code::IO, msg),
        _ => CniError::internal(msg),
    }
}

/// Returns the error of requests that take longer than the call may.
pub fn time_limit_error() -> CniError {
    CniError::new(
        Code::TRY_AGAIN,
        "the requests to the datastore did not finish within the time limit of this call",
    )
}

/// Converts an error about an identifier that cannot be part of a WorkloadEndpoint's name.
pub fn naming_error(reason: &ValidationError) -> CniError {
    CniError::new(
        Code::INVALID_ENVIRONMENT,
        format!("error constructing WorkloadEndpoint name: {reason}"),
    )
    .with_details("a node, pod, container id or interface name may not begin or end with '-'")
}

/// Formats invalid fields without line breaks: a runtime prints those of upstream's text as `\n`.
pub fn on_one_line(error: &ValidationError) -> String {
    let fields: Vec<String> = error.fields().map(ToString::to_string).collect();
    match &*fields {
        [field] => format!("error with field {field}"),
        _ => format!("error with the following fields: {}", fields.join("; ")),
    }
}

/// Converts an error of the kernel's dataplane.
pub fn dataplane_error(error: DataplaneError) -> CniError {
    match error {
        DataplaneError::Netns(error) => netns_error(error),
        DataplaneError::Plan(error) => CniError::new(Code::INVALID_CONFIG, error.to_string()),
        other => CniError::internal(other.to_string()),
    }
}

/// Converts an error about a network namespace that cannot be used.
pub fn netns_error(error: NetnsError) -> CniError {
    let text = error.to_string();
    let (code, msg, details) = match error {
        // Upstream's text, which people search for.
        NetnsError::NotFound { path } => (
            Code::INVALID_ENVIRONMENT,
            format!("failed to Statfs {path:?}: no such file or directory"),
            "CNI_NETNS: the network namespace does not exist",
        ),
        NetnsError::NotANamespace { .. } => (
            Code::INVALID_ENVIRONMENT,
            text,
            "CNI_NETNS must be the path of a network namespace",
        ),
        NetnsError::SameNamespace { .. } => (Code::SAME_NETNS, text, ""),
        NetnsError::Io { .. } => (Code::INTERNAL, text, ""),
    };
    CniError::new(code, msg).with_details(details)
}

/// Converts an error of the journal of deferred DELs.
pub fn journal_error(error: JournalError) -> CniError {
    let code = match &error {
        JournalError::Lock(LockError::Busy { .. }) => Code::TRY_AGAIN,
        _ => Code::IO,
    };
    CniError::new(code, error.to_string())
}
