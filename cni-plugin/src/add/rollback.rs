//! Undoes the steps of a failed ADD in the reverse order.

use netconf::CniError;

use super::interface_of;
use crate::context::Context;
use crate::endpoint::WriteFailure;
use crate::interface::CreatedInterface;
use crate::ipam::{self, AssignedAddresses};
use crate::reads::WorkloadRequest;

/// Undoes an ADD that could not write its endpoint, and returns the error of the ADD.
pub(super) async fn after_failed_write(
    cx: &Context,
    request: &WorkloadRequest,
    assigned: &AssignedAddresses,
    created: &CreatedInterface,
    failure: WriteFailure,
) -> CniError {
    const STEP: &str = "writing the WorkloadEndpoint";
    let removed = created.remove(interface_of(cx, request)).await;
    let error = with_removal(failure.error, &removed);
    if failure.perhaps_written {
        return keep_for_del(STEP, "WorkloadEndpoint", error);
    }
    if removed.is_err() {
        return keep_for_del(STEP, "interface", error);
    }
    give_back(cx, request, assigned, STEP, error).await
}

/// Returns the error of an ADD whose interface or endpoint (`what`) may still exist. The addresses stay allocated,
/// because another pod must not get them while the endpoint lists them or the interface uses them.
pub(super) fn keep_for_del(step: &str, what: &str, error: CniError) -> CniError {
    with_detail(error, &format!("failed while {step}; the {what} may be there, DEL will release its addresses"))
}

/// Returns the error of an ADD after the removal of its interface.
pub(super) fn with_removal(error: CniError, removed: &Result<(), CniError>) -> CniError {
    match removed {
        Ok(()) => error,
        Err(left) => with_detail(error, &format!("the interface could not be removed: {left}")),
    }
}

/// Deletes the endpoint, if it was written, then releases the addresses, and returns the error of the ADD.
pub(super) async fn give_back(
    cx: &Context,
    request: &WorkloadRequest,
    assigned: &AssignedAddresses,
    step: &str,
    error: CniError,
) -> CniError {
    let in_pods = cx.is_on_kubernetes();
    let outcome = match ipam::give_back(&cx.store, in_pods, &cx.call, &request.workload, assigned).await {
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
