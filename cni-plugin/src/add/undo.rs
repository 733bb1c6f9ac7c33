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
    let error = undo(session, attachment, failure.error).await;
    if failure.perhaps_written {
        return leave(STEP, error);
    }
    give_back(session, lease, STEP, error).await
}

/// The endpoint may be there, and nobody can be asked: its addresses stay. Given back, they could be another's while an
/// endpoint still claims them.
pub(super) fn leave(step: &str, error: CniError) -> CniError {
    with_detail(
        error,
        &format!("failed while {step}; the WorkloadEndpoint may be there, DEL will release its addresses"),
    )
}

/// Takes the interface away.
pub(super) async fn undo(session: &Session, attachment: &Attachment, error: CniError) -> CniError {
    match attachment.undo(session).await {
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
