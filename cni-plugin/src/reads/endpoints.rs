//! The endpoints of the call's container or pod.

use libcalico::api::WorkloadEndpoint;
use libcalico::store::ListTicket;

use super::call_batch::{CallAnswers, CallBatch};
use crate::context::Context;
use crate::endpoint::ExistingEndpoint;
use crate::world::World;

/// The pending read of the endpoints; `None` if the names of the workload are invalid, so that it
/// can have no endpoint.
pub(super) struct PendingEndpoints(Option<ListTicket<WorkloadEndpoint>>);

/// Endpoints of one container or pod on this node, of any interface.
#[derive(Debug)]
pub(super) struct OwnEndpoints {
    /// The endpoints that could be decoded.
    pub(super) readable: Vec<ExistingEndpoint>,
    /// True if an endpoint could not be decoded.
    pub(super) has_unreadable: bool,
}

impl PendingEndpoints {
    pub(super) fn add_to(batch: &mut CallBatch<'_, impl World>, cx: &Context<impl World>) -> Self {
        let select = cx.workload.endpoint_select().ok();
        PendingEndpoints(select.map(|select| batch.datastore.list(&select)))
    }

    pub(super) fn resolve(
        &self,
        answers: &CallAnswers<'_, impl World>,
        cx: &Context<impl World>,
    ) -> OwnEndpoints {
        let listed = self.0.iter();
        let (readable, unreadable): (Vec<_>, Vec<_>) = listed
            .flat_map(|ticket| answers.datastore.each(ticket))
            .filter(|(key, _)| cx.workload.is_endpoint_name(&key.name))
            .map(|(_, endpoint)| endpoint)
            .partition(Result::is_ok);
        OwnEndpoints {
            readable: readable.into_iter().flatten().collect(),
            has_unreadable: !unreadable.is_empty(),
        }
    }
}
