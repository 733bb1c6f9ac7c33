//! The name of the host's end, when an interface has it already: IPAM may prove that interface to be the pod's own, and tells
//! whose it is otherwise.

use ipam_plugin::cni;
use libcalico::conversion::Orchestrator;
use libcalico::ipam::{Attribute, HandleId, OwnerSlot};
use netconf::CniError;

use crate::dataplane::{Before, DataplaneError, Holder, NetnsFd, Occupant, Reason, Wanted, occupant};
use crate::endpoint_plan::dataplane_error;
use crate::session::Session;

const WAY_OUT: &str = "delete the pod that has it; an interface that no pod has any more goes with: ip link delete";

/// Returns the interface that has the name of this call's own; `None` where the kernel is not asked. To be called before anything
/// is written, and once more before the endpoint is: another ADD of this pod may have made an interface meanwhile.
pub fn in_the_way(session: &Session, netns: Option<&NetnsFd>) -> Result<Option<Occupant>, CniError> {
    let Some(netns) = netns.filter(|_| session.call.conf.dataplane_options.grpc_socket().is_none()) else {
        return Ok(None);
    };
    let (host_ifname, alias) = (session.host_ifname(), session.interface_alias());
    let wanted = Wanted {
        host_ifname: &host_ifname,
        container_ifname: &session.call.ifname,
        alias: &alias,
        before: session.before,
    };
    occupant(&wanted, netns).map(Some).map_err(dataplane_error)
}

/// Returns what the ADD may replace. Fails for an interface that stays.
pub async fn before(session: &Session, occupant: Option<Occupant>) -> Result<Before, CniError> {
    Ok(match occupant {
        None => Before::Unknown,
        Some(Occupant::Nothing) => Before::Nothing,
        Some(Occupant::Replaceable(index)) => Before::Interface { index, is_proven: false },
        Some(Occupant::Holder(holder)) => Before::Interface { index: prove(session, holder).await?, is_proven: true },
    })
}

/// Fails if another ADD of this pod has made an interface since this one began: the endpoint is that one's, too.
pub fn ensure_not_overtaken(session: &Session, netns: Option<&NetnsFd>) -> Result<(), CniError> {
    match in_the_way(session, netns)? {
        Some(Occupant::Holder(holder)) => Err(dataplane_error(DataplaneError::HostInterfaceTaken(Box::new(holder)))),
        _ => Ok(()),
    }
}

/// Returns the number of `holder`, which may be replaced: one of its addresses is allocated to this pod. Else the error, with all
/// that is known of the owner.
async fn prove(session: &Session, holder: Holder) -> Result<u32, CniError> {
    let (noted, doubt) = match session.call.conf.ipam.is_calico() && !holder.addresses.is_empty() {
        true => match cni::attributes_of(&session.store, &holder.addresses).await {
            Ok(noted) => (noted, None),
            Err(error) => (Vec::new(), Some(format!("IPAM cannot tell whose it is: {error}"))),
        },
        false => (Vec::new(), None),
    };
    if holder.reason == Reason::Unproven && noted.iter().any(|attribute| is_this_pods(session, attribute)) {
        return Ok(holder.index);
    }
    let owner = Owner::of(session, &holder, &noted);
    let details = doubt.into_iter().chain([WAY_OUT.to_owned()]).collect::<Vec<_>>().join("; ");
    let CniError { code, msg, .. } = dataplane_error(DataplaneError::HostInterfaceTaken(Box::new(holder)));
    Err(CniError::new(code, format!("{msg}{}", owner.words())).with_details(details))
}

/// Returns true if an address that the host has a route to through the interface is allocated to this pod.
pub async fn is_proven(session: &Session, holder: &Holder) -> bool {
    if !session.call.conf.ipam.is_calico() {
        return false;
    }
    let noted = cni::attributes_of(&session.store, &holder.addresses).await.unwrap_or_else(|error| {
        tracing::warn!(%error, interface = holder.ifname, "cannot find out whose the interface is");
        Vec::new()
    });
    let is_ours = noted.iter().any(|attribute| is_this_pods(session, attribute));
    if !is_ours {
        tracing::warn!(
            interface = holder.ifname,
            "host interface left alone: IPAM does not prove that it is this pod's"
        );
    }
    is_ours
}

/// By what the allocation itself notes: nothing that a pod writes is in it.
fn is_this_pods(session: &Session, attribute: &Attribute) -> bool {
    match &session.facts.orchestrator {
        Orchestrator::Kubernetes(pod) => pods(attribute).any(|noted| noted == (&pod.namespace, &pod.name)),
        Orchestrator::Cni(_) => {
            let call = &session.call;
            attribute.handle() == Some(HandleId::for_container(&call.conf.name, &call.container_id))
        }
    }
}

/// Namespace and name of the pods that an allocation notes: two while a virtual machine moves.
fn pods(attribute: &Attribute) -> impl Iterator<Item = (&String, &String)> {
    let slots = [OwnerSlot::Active, OwnerSlot::Alternate].into_iter();
    slots.filter_map(|slot| {
        let owner = attribute.owner(slot);
        owner.get("namespace").zip(owner.get("pod"))
    })
}

/// Whose an interface is, as far as is known.
struct Owner {
    container: Option<String>,
    pod: Option<String>,
}

impl Owner {
    /// The alias names the container; of an interface without one the handle does.
    fn of(session: &Session, holder: &Holder, noted: &[Attribute]) -> Owner {
        let network = format!("{}.", session.call.conf.name);
        let by_handle = || {
            let handles = noted.iter().filter_map(|attribute| attribute.handle_id.as_deref());
            handles.filter_map(|handle| handle.strip_prefix(&network)).map(str::to_owned).next()
        };
        let pod = noted.iter().flat_map(pods).map(|(namespace, name)| format!("{namespace}/{name}")).next();
        Owner { container: holder.container.clone().or_else(by_handle), pod }
    }

    fn words(&self) -> String {
        let container = self.container.as_ref().map(|id| format!("container {id}"));
        let pod = self.pod.as_ref().map(|pod| format!("pod {pod}"));
        match container.into_iter().chain(pod).collect::<Vec<_>>() {
            words if words.is_empty() => String::new(),
            words => format!(" ({})", words.join(", ")),
        }
    }
}
