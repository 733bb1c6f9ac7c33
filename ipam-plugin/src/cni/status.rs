//! STATUS: verifies conditions of an ADD.

use datastore::ClusterStore;
use netconf::{CniError, Code};

use super::call::IpamRequest;
use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::verify_pools;
use allocation::cluster_state;
use allocation::error::cni_error;
use allocation::own_node;

/// Verifies that the datastore is reachable and ready, that the node exists, and that each
/// requested family has a pool. Full pools are not detected, because that needs all blocks. A Node
/// that an ADD would create counts as existing.
///
/// # Errors
/// Each error has the code for "no ADD can be served now".
pub async fn status(store: &impl ClusterStore, call: &IpamRequest) -> Result<(), CniError> {
    let query = call.inputs_query();
    let read = async || {
        AllocationInputs::read(store, &query)
            .await
            .map_err(|error| cni_error(&error.into()))
    };
    let mut inputs = cluster_state::read_ready(store, read)
        .await
        .map_err(not_available)?;
    own_node::assume(store, &call.node, &mut inputs);
    status_of(call, &inputs)
}

/// Verifies that the node exists and that each requested family has a pool, for a caller that found
/// the datastore ready.
///
/// # Errors
/// The same as those of [`status`].
pub fn status_of(call: &IpamRequest, inputs: &AllocationInputs) -> Result<(), CniError> {
    let request = call.assign_request(time::OffsetDateTime::UNIX_EPOCH);
    verify_pools(&request, inputs).map_err(|error| not_available(cni_error(&error)))
}

fn not_available(error: CniError) -> CniError {
    CniError {
        code: Code::NOT_AVAILABLE,
        ..error
    }
}
