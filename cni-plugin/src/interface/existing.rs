//! Handles an existing interface that has the name of the host's end.

use datastore::Datastore;
use ipam_plugin::reads::attributes_of;
use libcalico::ipam::{Attribute, HandleId, OwnerSlot};
use libcalico::workload::Orchestrator;
use netconf::{Call, CniError};

use super::config::InterfaceConfig;
use crate::cni_error::dataplane_error;
use crate::dataplane::{
    ConflictReason, ConflictingInterface, DataplaneError, DesiredInterface, ExistingInterface, NetnsFd, PriorInterface,
    existing_interface,
};

const ADVICE: &str = "delete the pod of the interface; if no pod uses the interface, run `ip link delete`";

impl InterfaceConfig<'_> {
    /// Returns the interface that has the name of the host's end; unknown for a gRPC dataplane or without a namespace.
    /// `prior` is the interface found by an earlier call.
    pub fn find_existing(&self, prior: PriorInterface, netns: Option<&NetnsFd>) -> Result<ExistingInterface, CniError> {
        let Some(netns) = netns.filter(|_| self.grpc_socket().is_none()) else {
            return Ok(ExistingInterface::Replaceable(PriorInterface::Unknown));
        };
        let (host_ifname, container_ifname, alias) = (&self.host_ifname(), &self.call.ifname, &self.alias());
        existing_interface(DesiredInterface { host_ifname, container_ifname, alias, prior }, netns)
            .map_err(dataplane_error)
    }

    /// Returns the interface that the ADD may replace. It may replace an interface with [`ConflictReason::Unproven`] if
    /// one of the addresses that the host routes through the interface is allocated to the pod or container of this
    /// call.
    pub async fn replaceable(&self, store: &Datastore, found: ExistingInterface) -> Result<PriorInterface, CniError> {
        let conflicting = match found {
            ExistingInterface::Replaceable(prior) => return Ok(prior),
            ExistingInterface::Conflicting(conflicting) => conflicting,
        };
        let (attributes, lookup_error) = if self.call.conf.ipam.is_calico() && !conflicting.addresses.is_empty() {
            match attributes_of(store, &conflicting.addresses).await {
                Ok(attributes) => (attributes, None),
                Err(error) => {
                    let failure = "cannot read from IPAM to whom the addresses behind the host interface are allocated";
                    (Vec::new(), Some(format!("{failure}: {error}")))
                }
            }
        } else {
            (Vec::new(), None)
        };
        let is_own = attributes.iter().any(|attribute| self.is_of_same_pod(attribute));
        if is_own && conflicting.reason == ConflictReason::Unproven {
            return Ok(PriorInterface::Present { index: conflicting.index, is_proven: true });
        }
        let owner = describe_owner(&self.call.conf.name, &conflicting, &attributes);
        let details = lookup_error.into_iter().chain([ADVICE.to_owned()]).collect::<Vec<_>>().join("; ");
        let CniError { code, msg, .. } = dataplane_error(DataplaneError::HostInterfaceConflict(Box::new(conflicting)));
        Err(CniError::new(code, format!("{msg}{owner}")).with_details(details))
    }

    /// Fails if the ADD may not replace the interface that has the name of the host's end now, usually because another
    /// ADD of this pod created it since this ADD began.
    pub fn ensure_not_overtaken(&self, prior: PriorInterface, netns: Option<&NetnsFd>) -> Result<(), CniError> {
        let ExistingInterface::Conflicting(found) = self.find_existing(prior, netns)? else { return Ok(()) };
        Err(dataplane_error(DataplaneError::HostInterfaceConflict(Box::new(found))))
    }

    /// Returns true if an address that the host routes through the interface is allocated to the pod or container of
    /// this call. Returns false for another IPAM plugin, and if the allocations cannot be read.
    pub async fn is_allocated_to_pod(&self, store: &Datastore, found: &ConflictingInterface) -> bool {
        if !self.call.conf.ipam.is_calico() {
            return false;
        }
        let attributes = attributes_of(store, &found.addresses).await.unwrap_or_else(|error| {
            tracing::warn!(
                %error, interface = found.ifname,
                "cannot read from IPAM to whom the addresses behind the host interface are allocated; this DEL keeps \
                 the interface"
            );
            Vec::new()
        });
        let is_own = attributes.iter().any(|attribute| self.is_of_same_pod(attribute));
        if !is_own {
            tracing::warn!(
                interface = found.ifname,
                "this DEL keeps the host interface: no address that the host routes through the interface is known \
                 to be allocated to this pod or container"
            );
        }
        is_own
    }

    /// Returns true if an allocation belongs to the pod or container of the call. A tenant cannot write the attributes
    /// of an allocation.
    fn is_of_same_pod(&self, attribute: &Attribute) -> bool {
        let Call { conf, container_id, .. } = self.call;
        match &self.workload.orchestrator {
            Orchestrator::Kubernetes(pod) => pods(attribute).any(|named| named == (&pod.namespace, &pod.name)),
            Orchestrator::Cni(_) => attribute.handle() == Some(HandleId::for_container(&conf.name, container_id)),
        }
    }
}

/// Returns namespace and name of the pods that an allocation names: two while a VMI migrates.
fn pods(attribute: &Attribute) -> impl Iterator<Item = (&String, &String)> {
    let slots = [OwnerSlot::Active, OwnerSlot::Alternate].into_iter();
    slots.filter_map(|slot| {
        let owner = attribute.owner(slot);
        owner.get("namespace").zip(owner.get("pod"))
    })
}

/// Returns the owner of an interface, as far as it is known: ` (container …, pod …)`, or an empty text.
fn describe_owner(network: &str, conflicting: &ConflictingInterface, attributes: &[Attribute]) -> String {
    let network = format!("{network}.");
    let by_handle = || attributes.iter().find_map(|attribute| attribute.handle_id.as_deref()?.strip_prefix(&network));
    let container = conflicting.container.as_deref().or_else(by_handle).map(|id| format!("container {id}"));
    let pod = attributes.iter().flat_map(pods).next().map(|(namespace, name)| format!("pod {namespace}/{name}"));
    match Vec::from_iter(container.into_iter().chain(pod)) {
        owner if owner.is_empty() => String::new(),
        owner => format!(" ({})", owner.join(", ")),
    }
}
