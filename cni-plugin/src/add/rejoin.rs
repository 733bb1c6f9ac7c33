use ipam_plugin::cni;
use libcalico::api::{Profile, WorkloadEndpoint};
use netconf::{CniError, CniResult, Code};
use node_process::stage;
use tracing::Instrument as _;

use super::attach_and_record::{with_interface, with_removal_outcome};
use super::attachment::Attachment;
use super::{result, validate};
use crate::cni_error::store_error;
use crate::context::Context;
use crate::endpoint::{EndpointWrite, ExistingEndpoint};
use crate::interface::CreatedInterface;
use crate::world::{Netns, World};

/// Serves an ADD of a plain container that has an endpoint: the container keeps its interface and
/// addresses, and gets the network's profile (CNI-149). Creates a missing interface again.
pub(super) async fn rejoin<W: World>(
    attachment: &Attachment<'_, W>,
    existing: ExistingEndpoint,
    profile: Option<Profile>,
) -> Result<CniResult, CniError> {
    let Attachment { cx, request, .. } = attachment;
    validate::ensure_same_interface(&cx.call, &existing.value)?;
    let key = &existing.key;
    tracing::info!(
        endpoint = %key, "the container already has an endpoint; assigning no new addresses",
    );
    let config = attachment.interface();
    let updated = request.workload.update(existing.value.clone(), &[]);
    let restored = match &attachment.netns {
        Some(netns) if config.is_missing(&cx.network, netns, &updated)? => {
            let restored = restore(attachment, netns, &updated);
            Some(restored.instrument(stage!("dataplane")).await?)
        }
        _ => None,
    };
    let updated = match &restored {
        Some(created) => with_interface(updated, created),
        None => updated,
    };
    let write = EndpointWrite {
        endpoint: updated,
        existing: Some(existing),
        profile,
    };
    let written = write
        .apply(&cx.store, &cx.clock)
        .instrument(stage!("write"))
        .await;
    let endpoint = match (written, &restored) {
        (Ok(endpoint), _) => endpoint,
        (Err(failure), None) => return Err(failure.error),
        (Err(failure), Some(new)) => {
            return Err(with_removal_outcome(
                failure.error,
                &new.remove(&cx.network, config).await,
            ));
        }
    };
    result::from_endpoint(&endpoint, &cx.call)
}

/// Creates the interface of an endpoint again. Fails if an address of the endpoint is no longer
/// allocated to the container: a DEL that was killed may have released it.
async fn restore<W: World>(
    attachment: &Attachment<'_, W>,
    netns: &Netns<W>,
    endpoint: &WorkloadEndpoint,
) -> Result<CreatedInterface, CniError> {
    let missing = missing_addresses(attachment.cx, endpoint).await?;
    if missing.is_empty() {
        return Ok(attachment.interface().restore(
            &attachment.cx.network,
            netns,
            endpoint,
            attachment.mtu,
            attachment.prior,
        )?);
    }
    let (name, missing) = (&endpoint.metadata.name, missing.join("; "));
    let msg = format!(
        "the interface of WorkloadEndpoint {name} is missing, and its addresses are no longer \
         allocated: {missing}"
    );
    let advice = "call DEL to remove the endpoint, and then ADD to assign new addresses";
    Err(CniError::new(Code::TRY_AGAIN, msg).with_details(advice))
}

/// Returns the addresses of an endpoint that are no longer allocated to the container. Returns none
/// for another IPAM plugin: many plugins do not implement CHECK.
async fn missing_addresses(
    cx: &Context<impl World>,
    endpoint: &WorkloadEndpoint,
) -> Result<Vec<String>, CniError> {
    let Some(mut request) = cx.ipam_request() else {
        return Ok(Vec::new());
    };
    // The network in the first profile assigned the addresses, so their handle contains the name of
    // that network.
    if let Some(first) = endpoint.spec.profiles.first() {
        request.network.clone_from(first);
    }
    let (_, addresses) = endpoint.spec.host_link();
    let differences = cni::differences(&cx.store, &request, &addresses).await;
    differences.map_err(|error| store_error("read the address blocks", &error))
}
