//! STATUS: whether an ADD could be served now (CNI-214).

use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::net::IpVersion;
use libcalico::store::{ReadBatch, Store};
use netconf::{CniError, Code};

use super::call::IpamCall;
use super::error::cni_error;
use crate::plan::FamilyPlan;
use crate::prelude::Prelude;

/// Whether the datastore answers and is ready, the node exists, and each wanted family has a pool for it. One read. A
/// pool being full is not looked for: it needs all blocks, and a DEL may change it any moment. `prepare` puts in what
/// an ADD would make.
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

/// The same from what an ADD reads first, for a caller that has read it and found the cluster ready.
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
