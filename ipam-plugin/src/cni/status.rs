//! STATUS: verifies conditions of an ADD.

use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::net::IpVersion;
use libcalico::store::{ReadBatch, Store};
use netconf::{CniError, Code};

use super::call::IpamRequest;
use crate::alloc::inputs::AllocationInputs;
use crate::alloc::planner::FamilyPlanner;
use crate::error::{IpamError, cni_error};

/// Verifies that the datastore is reachable and ready, that the node exists, and that each requested family has a pool.
/// Full pools are not detected, because that needs all blocks. `prepare` adds the objects that an ADD would create.
pub async fn status<S: Store>(
    store: &S,
    call: &IpamRequest,
    prepare: impl FnOnce(&mut AllocationInputs),
) -> Result<(), CniError> {
    let mut batch = ReadBatch::new();
    let cluster = batch.get::<ClusterInformation>(&ObjectKey::global("default"));
    let tickets = AllocationInputs::add_to(&mut batch, &call.inputs_query());
    let answers = store.read(&batch).await.map_err(unavailable)?;
    let ready =
        answers.get(&cluster).ok().flatten().is_some_and(|entry| entry.value.spec.datastore_ready == Some(true));
    if !ready {
        let error = CniError::new(Code::NOT_AVAILABLE, "Calico is currently not ready to process requests");
        return Err(error.with_details("ClusterInformation default is missing or its datastoreReady is not true"));
    }
    let mut inputs = AllocationInputs::from_answers(&answers, &tickets).map_err(unavailable)?;
    prepare(&mut inputs);
    status_of(call, &inputs)
}

/// Verifies that the node exists and that each requested family has a pool, for a caller that found the datastore
/// ready.
pub fn status_of(call: &IpamRequest, inputs: &AllocationInputs) -> Result<(), CniError> {
    let request = call.assign_request(time::OffsetDateTime::UNIX_EPOCH);
    for version in [IpVersion::V4, IpVersion::V6].into_iter().filter(|version| request.wanted(*version) > 0) {
        FamilyPlanner::new(&request, inputs, version).map_err(unavailable)?;
    }
    Ok(())
}

fn unavailable(error: impl Into<IpamError>) -> CniError {
    let error = cni_error(&error.into());
    CniError::new(Code::NOT_AVAILABLE, error.msg).with_details(error.details)
}
