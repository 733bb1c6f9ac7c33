//! Handles an existing interface that has the name of the host's end.

use allocation::reads::attributes_of;
use libcalico::ipam::{Attribute, HandleId, Holder, OwnerSlot};
use libcalico::store::Store;
use libcalico::workload::Orchestrator;
use netconf::{Call, CniError};

use super::config::InterfaceConfig;
use crate::cni_error::dataplane_error;
use dataplane::{
    ConflictReason, ConflictingInterface, DataplaneError, DesiredInterface, ExistingInterface,
    PodNetwork, PriorInterface,
};

const ADVICE: &str =
    "delete the pod of the interface; if no pod uses the interface, run `ip link delete`";
const OWNER_IN_LOG: &str = "the plugin's log on the node names the owner";
const OTHER_NAMESPACE: &str = "pod of another namespace";

impl InterfaceConfig<'_> {
    /// Returns the interface that has the name of the host's end; unknown for a gRPC dataplane or
    /// without a namespace. `prior` is the interface found by an earlier call.
    pub fn find_existing<N: PodNetwork>(
        &self,
        network: &N,
        prior: PriorInterface,
        netns: Option<&N::Netns>,
    ) -> Result<ExistingInterface, CniError> {
        let Some(netns) = netns.filter(|_| self.grpc_socket().is_none()) else {
            return Ok(ExistingInterface::Replaceable(PriorInterface::Unknown));
        };
        let (host_ifname, container_ifname, alias) =
            (&self.host_ifname(), &self.call.ifname, &self.alias());
        let desired = DesiredInterface {
            host_ifname,
            container_ifname,
            alias,
            prior,
        };
        network
            .existing_interface(desired, netns)
            .map_err(dataplane_error)
    }

    /// Returns the interface that the ADD may replace. It may replace an interface with
    /// [`ConflictReason::Unproven`] if one of the addresses that the host routes through the
    /// interface is allocated to the pod or container of this call.
    pub async fn replaceable(
        &self,
        store: &impl Store,
        found: ExistingInterface,
    ) -> Result<PriorInterface, CniError> {
        let conflicting = match found {
            ExistingInterface::Replaceable(prior) => return Ok(prior),
            ExistingInterface::Conflicting(conflicting) => conflicting,
        };
        let (attributes, lookup_error) =
            if self.call.conf.ipam.is_calico() && !conflicting.addresses.is_empty() {
                match attributes_of(store, &conflicting.addresses).await {
                    Ok(attributes) => (attributes, None),
                    Err(error) => {
                        let failure = "cannot read from IPAM to whom the addresses behind the host \
                                       interface are allocated";
                        (Vec::new(), Some(format!("{failure}: {error}")))
                    }
                }
            } else {
                (Vec::new(), None)
            };
        let is_own = attributes
            .iter()
            .any(|attribute| self.is_of_same_pod(attribute));
        if is_own && conflicting.reason == ConflictReason::Unproven {
            return Ok(PriorInterface::Present {
                index: conflicting.index,
                is_proven: true,
            });
        }
        let caller = match &self.workload.orchestrator {
            Orchestrator::Kubernetes(pod) => Some(pod.namespace.as_str()),
            Orchestrator::Cni(_) => None,
        };
        let owner = owner_of(
            &self.call.conf.name,
            caller,
            conflicting.container.as_deref(),
            &attributes,
        );
        let mut details = Vec::from_iter(lookup_error);
        if owner.is_withheld() {
            let (interface, owner) = (&conflicting.ifname, &owner.whole);
            tracing::warn!(
                interface,
                owner,
                "the host interface belongs to another owner; the ADD fails"
            );
            details.push(OWNER_IN_LOG.into());
        }
        details.push(ADVICE.into());
        let owner = if owner.for_caller.is_empty() {
            String::new()
        } else {
            format!(" ({})", owner.for_caller)
        };
        let CniError { code, msg, .. } =
            dataplane_error(DataplaneError::HostInterfaceConflict(Box::new(conflicting)));
        Err(CniError::new(code, format!("{msg}{owner}")).with_details(details.join("; ")))
    }

    /// Fails if the ADD may not replace the interface that has the name of the host's end now,
    /// usually because another ADD of this pod created it since this ADD began.
    pub fn ensure_not_overtaken<N: PodNetwork>(
        &self,
        network: &N,
        prior: PriorInterface,
        netns: Option<&N::Netns>,
    ) -> Result<(), CniError> {
        let ExistingInterface::Conflicting(found) = self.find_existing(network, prior, netns)?
        else {
            return Ok(());
        };
        Err(dataplane_error(DataplaneError::HostInterfaceConflict(
            Box::new(found),
        )))
    }

    /// Returns true if an address that the host routes through the interface is allocated to the
    /// pod or container of this call. Returns false for another IPAM plugin, and if the allocations
    /// cannot be read.
    pub async fn is_allocated_to_pod(
        &self,
        store: &impl Store,
        found: &ConflictingInterface,
    ) -> bool {
        if !self.call.conf.ipam.is_calico() {
            return false;
        }
        let attributes = attributes_of(store, &found.addresses)
            .await
            .unwrap_or_else(|error| {
                tracing::warn!(
                    %error, interface = found.ifname,
                    hint = "this DEL keeps the interface",
                    "cannot read from IPAM who has the addresses behind the host interface"
                );
                Vec::new()
            });
        let is_own = attributes
            .iter()
            .any(|attribute| self.is_of_same_pod(attribute));
        if !is_own {
            tracing::warn!(
                interface = found.ifname,
                reason = "none of its addresses is known to be this container's",
                "keeping the host interface"
            );
        }
        is_own
    }

    /// Returns true if an allocation belongs to the pod or container of the call. A tenant cannot
    /// write the attributes of an allocation.
    fn is_of_same_pod(&self, attribute: &Attribute) -> bool {
        let Call {
            conf, container_id, ..
        } = self.call;
        match &self.workload.orchestrator {
            Orchestrator::Kubernetes(pod) => {
                pods(attribute).any(|named| named == (&pod.namespace, &pod.name))
            }
            Orchestrator::Cni(_) => {
                attribute.handle() == Some(HandleId::for_container(&conf.name, container_id))
            }
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

/// Returns the owner of an interface, as far as it is known: `container …, pod …`, or an empty
/// text. `aliased` is the container in the alias of the interface, and `caller` the namespace of
/// the pod to be added. For a pod, the description has only names of an allocation in the pod's
/// namespace, because an alias does not show the namespace.
fn owner_of(
    network: &str,
    caller: Option<&str>,
    aliased: Option<&str>,
    attributes: &[Attribute],
) -> Holder {
    let whole = describe_owner(network, aliased, attributes.iter());
    let for_caller = match caller {
        None => whole.clone(),
        Some(namespace) => {
            let is_near = |attribute: &&Attribute| attribute.is_of_namespace(namespace);
            let near = describe_owner(network, None, attributes.iter().filter(is_near));
            if near.is_empty() && !attributes.is_empty() {
                OTHER_NAMESPACE.to_owned()
            } else {
                near
            }
        }
    };
    Holder { whole, for_caller }
}

/// Returns the first container and the first pod that the alias or an allocation names, or else the
/// first handle.
fn describe_owner<'a>(
    network: &str,
    aliased: Option<&str>,
    attributes: impl Iterator<Item = &'a Attribute> + Clone,
) -> String {
    let network = format!("{network}.");
    let handles = attributes
        .clone()
        .filter_map(|attribute| attribute.handle_id.as_deref());
    let by_handle = handles
        .clone()
        .find_map(|handle| handle.strip_prefix(&network));
    let container = aliased.or(by_handle).map(|id| format!("container {id}"));
    let pod = attributes
        .flat_map(pods)
        .next()
        .map(|(namespace, name)| format!("pod {namespace}/{name}"));
    let named = Vec::from_iter(container.into_iter().chain(pod));
    if named.is_empty() {
        return handles
            .map(|handle| format!("handle {handle}"))
            .next()
            .unwrap_or_default();
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(handle: &str, owner: &[(&str, &str)]) -> Attribute {
        let active_owner = owner
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        Attribute {
            handle_id: Some(handle.into()),
            active_owner,
            ..Attribute::default()
        }
    }

    fn of_pod(namespace: &str, container: &str) -> Attribute {
        allocation(
            &format!("net.{container}"),
            &[("namespace", namespace), ("pod", "web")],
        )
    }

    #[test]
    fn interface_owner_is_named_in_its_namespace_only() {
        let attributes = [of_pod("shop", "c1")];
        let named = "container c1, pod shop/web".to_owned();
        for (caller, told) in [
            (None, &*named),
            (Some("shop"), &*named),
            (Some("bank"), OTHER_NAMESPACE),
        ] {
            let owner = owner_of("net", caller, Some("c1"), &attributes);
            assert_eq!(
                owner,
                Holder {
                    whole: named.clone(),
                    for_caller: told.to_owned()
                },
                "{caller:?}"
            );
        }
    }

    #[test]
    fn container_of_an_alias_is_not_named_without_an_allocation_in_the_namespace() {
        let stranger = of_pod("bank", "c1");
        for (attributes, told) in [
            (vec![], ""),
            (vec![stranger.clone()], OTHER_NAMESPACE),
            (
                vec![stranger, of_pod("shop", "c2")],
                "container c2, pod shop/web",
            ),
            (
                vec![allocation(
                    "vxlan-tunnel-addr-n1",
                    &[("type", "vxlanTunnelAddress")],
                )],
                OTHER_NAMESPACE,
            ),
        ] {
            let owner = owner_of("net", Some("shop"), Some("c1"), &attributes);
            assert_eq!(
                (owner.for_caller.as_str(), owner.is_withheld()),
                (told, true),
                "{attributes:?}"
            );
        }
    }

    #[test]
    fn interface_of_a_tunnels_address_is_described_by_its_handle() {
        let tunnel = [allocation(
            "vxlan-tunnel-addr-n1",
            &[("type", "vxlanTunnelAddress")],
        )];
        assert_eq!(
            owner_of("net", None, None, &tunnel).for_caller,
            "handle vxlan-tunnel-addr-n1"
        );
        assert_eq!(owner_of("net", None, None, &[]).for_caller, "");
    }
}
