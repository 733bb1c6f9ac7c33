use allocation::alloc::inputs::AllocationInputs;
use allocation::cluster_state::first_read_error;
use allocation::own_node;
use ipam_plugin::cni::IpamRequest;
use netconf::CniError;

use super::call_batch::CallBatch;
use super::cluster::{ClusterState, in_present_group};
use crate::context::Context;
use crate::world::World;

/// Reads the objects that a STATUS needs: the inputs of an allocation by `request`, without a
/// container.
pub async fn for_status(
    cx: &Context<impl World>,
    request: &IpamRequest,
) -> Result<AllocationInputs, CniError> {
    let query = request.inputs_query().for_first_read(&cx.store);
    let read = async || {
        let mut batch = CallBatch::new(cx);
        let pending = AllocationInputs::add_to(&mut batch.datastore, &query);
        let answers = batch.read().await?;
        let state = ClusterState::of(&answers)?;
        let inputs = AllocationInputs::from_answers(&answers.datastore, &pending)?;
        Ok((state, inputs))
    };
    let (ready, mut inputs) = in_present_group(cx, read)
        .await
        .map_err(|error| first_read_error(&error))?;
    ready?;
    own_node::assume(&cx.store, &cx.workload.node, &mut inputs);
    Ok(inputs)
}
