//! [`FoundEndpoints`]: the endpoints of a container, as the DEL of one attachment sees them.

use libcalico::store::{EndpointForm, Store};
use libcalico::workload::Orchestrator;
use netconf::CniError;

use super::was_created_by_add;
use crate::cni_error::naming_error;
use crate::context::Context;
use crate::endpoint::{self, ExistingEndpoint, Listing};
use crate::interface::RecordedEndpoint;
use crate::world::World;

/// The endpoints that a DEL has found.
pub(super) struct FoundEndpoints {
    /// The endpoint of the attachment, if it belongs to this container.
    own: Option<ExistingEndpoint>,
    /// True if the endpoint of the attachment belongs to another container, such as a newer sandbox
    /// of the pod, which owns the addresses of its VMI.
    pub(super) is_superseded: bool,
    /// True if the container has another attachment, which uses the same handle.
    pub(super) is_shared: bool,
    /// The addresses that the endpoints list; `None` if an endpoint of this attachment may be
    /// unreadable.
    pub(super) listings: Option<Vec<Listing>>,
}

impl FoundEndpoints {
    /// Interprets the endpoints of the container or pod, of any interface, and their addresses.
    pub(super) fn new(
        cx: &Context<impl World>,
        endpoints: Vec<ExistingEndpoint>,
        mut listings: Option<Vec<Listing>>,
    ) -> Result<Self, CniError> {
        let key = cx.workload.key().map_err(|error| naming_error(&error))?;
        let (named, others): (Vec<_>, Vec<_>) = endpoints
            .into_iter()
            .partition(|entry| entry.key.name == key.name);
        let is_named = !named.is_empty();
        let is_shared = has_other_interface(cx, is_named, &others, listings.is_none())?;
        if is_shared {
            // The endpoint that cannot be read counts as that of the other interface.
            listings.get_or_insert_default();
        }
        let own = named
            .into_iter()
            .find(|entry| belongs_to_container(cx, entry));
        Ok(FoundEndpoints {
            is_superseded: is_named && own.is_none(),
            own,
            is_shared,
            listings,
        })
    }

    /// Returns what the endpoints prove about the interface to be removed.
    pub(super) fn recorded(&self) -> RecordedEndpoint<'_> {
        match (&self.own, &self.listings) {
            (Some(entry), _) => RecordedEndpoint::Found(&entry.value),
            (None, _) if self.is_shared => RecordedEndpoint::OtherInterface,
            (None, None) => RecordedEndpoint::Unknown,
            (None, Some(_)) => RecordedEndpoint::Missing,
        }
    }
}

/// Returns true if the endpoint is this container's. The endpoint of another container of the same
/// pod stays, because this is then a late DEL of an earlier sandbox (CNI-200). The endpoint of a
/// later pod of the same name whose ADD has not finished stays as well (CNI-262).
fn belongs_to_container(cx: &Context<impl World>, entry: &ExistingEndpoint) -> bool {
    let is_own = endpoint::is_of_container(&entry.value, &cx.call.container_id, Some(cx.pod_uid()));
    if !is_own {
        let holder = &entry.value.spec.container_id;
        tracing::warn!(
            endpoint = %entry.key, %holder,
            "keeping the endpoint, which belongs to another container or a later pod"
        );
    }
    is_own
}

/// Returns true if the container has an endpoint with another interface name, or, where the
/// endpoints do not show this, an interface with another name. The other interface uses the same
/// handle, so its addresses must stay; upstream releases them.
///
/// `is_named`: the interface to delete has an endpoint. `others`: the endpoints with other
/// interface names. `is_unread`: an endpoint of the container cannot be read.
fn has_other_interface(
    cx: &Context<impl World>,
    is_named: bool,
    others: &[ExistingEndpoint],
    is_unread: bool,
) -> Result<bool, CniError> {
    let is_own = |entry: &ExistingEndpoint| {
        endpoint::is_of_container(&entry.value, &cx.call.container_id, None)
    };
    let is_shared = match (&cx.workload.orchestrator, cx.store.endpoint_form()) {
        (Orchestrator::Cni(_), _) if !others.is_empty() => true,
        (Orchestrator::Cni(_), _) => {
            is_unread && cx.interface().is_of_another_interface(&cx.network)?
        }
        (Orchestrator::Kubernetes(_), EndpointForm::Object) if others.iter().any(is_own) => true,
        (Orchestrator::Kubernetes(_), _)
            if others.is_empty() && (is_named || was_created_by_add(cx) == Some(true)) =>
        {
            false
        }
        // The endpoint of a pod with annotations has the name of eth0 for any interface, and a
        // deleted pod has no endpoint.
        (Orchestrator::Kubernetes(_), EndpointForm::Object | EndpointForm::PodAnnotations) => {
            cx.interface().is_of_another_interface(&cx.network)?
        }
    };
    if is_shared {
        let other_endpoint = others.first().map(|entry| entry.key.to_string());
        tracing::warn!(
            other_endpoint,
            "the container has another attachment; keeping the addresses of calico-ipam"
        );
    }
    Ok(is_shared)
}
