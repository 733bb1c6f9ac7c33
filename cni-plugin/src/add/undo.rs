//! Taking back what an ADD that failed has done, in the reverse order.

use netconf::CniError;

use crate::attach::Attachment;
use crate::endpoint::WriteFailure;
use crate::ipam::{self, Lease};
use crate::session::Session;

/// The endpoint could not be written.
pub(super) async fn detach(
    session: &Session,
    lease: &Lease,
    attachment: &Attachment,
    failure: WriteFailure,
) -> CniError {
    const STEP: &str = "writing the WorkloadEndpoint";
    let undone = attachment.undo(session).await;
    let error = with_undo(failure.error, &undone);
    if failure.perhaps_written {
        return leave(STEP, "WorkloadEndpoint", error);
    }
    if undone.is_err() {
        return leave(STEP, "interface", error);
    }
    give_back(session, lease, STEP, error).await
}

/// Returns the error of an ADD whose interface or endpoint (`what`) may be left: the addresses stay, for another pod could get them
/// while the endpoint lists them or the interface answers for them.
pub(super) fn leave(step: &str, what: &str, error: CniError) -> CniError {
    with_detail(error, &format!("failed while {step}; the {what} may be there, DEL will release its addresses"))
}

/// Takes the interface away.
pub(super) async fn undo(session: &Session, attachment: &Attachment, error: CniError) -> CniError {
    with_undo(error, &attachment.undo(session).await)
}

fn with_undo(error: CniError, undone: &Result<(), CniError>) -> CniError {
    match undone {
        Ok(()) => error,
        Err(left) => with_detail(error, &format!("the interface could not be removed: {left}")),
    }
}

/// Takes back the endpoint, if it was written, and then the addresses.
pub(super) async fn give_back(session: &Session, lease: &Lease, step: &str, error: CniError) -> CniError {
    let outcome = match ipam::give_back(session, lease).await {
        Ok(()) => format!("failed while {step}; the addresses were released"),
        Err(left) => {
            format!("failed while {step}; the addresses could not be released ({left}); DEL will release them")
        }
    };
    with_detail(error, &outcome)
}

fn with_detail(error: CniError, more: &str) -> CniError {
    let details = if error.details.is_empty() { more.to_owned() } else { format!("{}; {more}", error.details) };
    error.with_details(details)
}
