//! STATUS: reports if an ADD could be served now.

use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::net::IpVersion;
use libcalico::store::{ReadBatch, Store};
use netconf::{CniError, Code};

use super::call::IpamCall;
use super::error::cni_error;
use crate::plan::FamilyPlan;
use crate::prelude::Prelude;

/// Verifies that the datastore is reachable and ready, that the node exists, and that each requested family has a pool.
/// This takes one read. Full pools are not detected: that needs all blocks, and any DEL may change the outcome.
/// `prepare` adds the objects that an ADD would create.
pub async fn status<S: Store>(store: &S, call: &IpamCall, prepare: impl FnOnce(&mut Prelude)) -> Result<(), CniError> {
    let mut batch = ReadBatch::new();
    let cluster = batch.get::<ClusterInformation>(&ObjectKey::global("default"));
    let tickets = Prelude::ask(&mut batch, &call.prelude_query());
    let answers = store.read(&batch).await.map_err(|error| unavailable(&cni_error(&error.into())))?;
    let ready =
        answers.get(&cluster).ok().flatten().is_some_and(|entry| entry.value.spec.datastore_ready == Some(true));
    if !ready {
        let error = CniError::new(Code::NOT_AVAILABLE, "Calico is currently not ready to process requests");
        return Err(error.with_details("ClusterInformation default is missing or its datastoreReady is not true"));
    }
    let prelude = Prelude::from_answers(&answers, &tickets);
    let mut prelude = prelude.map_err(|error| unavailable(&cni_error(&error.into())))?;
    prepare(&mut prelude);
    status_of(call, &prelude)
}

/// Verifies the same on a prelude, for a caller that has read it and found the cluster ready.
pub fn status_of(call: &IpamCall, prelude: &Prelude) -> Result<(), CniError> {
    let request = call.assign_request(time::OffsetDateTime::UNIX_EPOCH);
    for version in [IpVersion::V4, IpVersion::V6].into_iter().filter(|version| request.wanted(*version) > 0) {
        FamilyPlan::new(&request, prelude, version).map_err(|error| unavailable(&cni_error(&error)))?;
    }
    Ok(())
}

fn unavailable(error: &CniError) -> CniError {
    CniError::new(Code::NOT_AVAILABLE, error.msg.clone()).with_details(error.details.clone())
}
