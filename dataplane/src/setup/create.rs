//! Creates the interface pair, and deletes an existing interface of the same name that the ADD may
//! replace.

use netconf::conf::DeviceType;
use nix::errno::Errno;
use os::lock::HostLock;

use crate::host_access::HostAccess;
use crate::netlink::{KernelRoute, Link, NetlinkSocket, link, route};
use crate::{
    DataplaneError, EndpointPlan, MacAddr, NetlinkError, NetnsError, NetnsFd, existing,
    interfaces_lock,
};

/// A new pair. Both ends are down.
#[derive(Debug)]
pub(crate) struct NewPair {
    pub(crate) host: Link,
    pub(crate) device: DeviceType,
    /// The routes to addresses of the pod that the host already had.
    pub(crate) routes_before: Vec<KernelRoute>,
}

impl NewPair {
    /// Returns the pod's end. If the kernel reported its index with the host end, only the index
    /// and the name of the result are valid.
    pub(super) fn container(
        &self,
        socket: &mut NetlinkSocket,
        ifname: &str,
    ) -> Result<Link, NetlinkError> {
        match self.host.peer_index {
            Some(index) => Ok(Link {
                index,
                name: ifname.to_owned(),
                ..self.host.clone()
            }),
            None => link::find(socket, ifname)?.ok_or_else(|| missing_interface(ifname)),
        }
    }
}

/// Creates the pair that the plan requests; a veth pair if the kernel does not support netkit.
pub(super) fn create(
    host: &mut NetlinkSocket,
    plan: &EndpointPlan,
    netns: &NetnsFd,
    lock: &mut Option<HostLock>,
) -> Result<NewPair, DataplaneError> {
    match create_as_planned(host, plan, netns, lock) {
        Err(DataplaneError::Netlink(error))
            if plan.device == DeviceType::Netkit && error.errno() == Some(Errno::EOPNOTSUPP) =>
        {
            tracing::info!(%error, "the kernel does not support netkit; creating a veth pair");
            let veth = EndpointPlan {
                device: DeviceType::Veth,
                ..plan.clone()
            };
            create_as_planned(host, &veth, netns, lock)
        }
        outcome => outcome,
    }
}

/// Creates the pair. Examines an existing interface of the same name only after the kernel rejected
/// the request, so that the ordinary ADD is fast.
fn create_as_planned(
    host: &mut NetlinkSocket,
    plan: &EndpointPlan,
    netns: &NetnsFd,
    lock: &mut Option<HostLock>,
) -> Result<NewPair, DataplaneError> {
    let created = match create_once(host, plan, netns) {
        Err(error) if error.errno() == Some(Errno::EEXIST) => {
            *lock = None;
            *lock = interfaces_lock::acquire(&plan.host_ifname)?;
            remove_stale(host, plan, netns)?;
            create_once(host, plan, netns)
        }
        // EINVAL has many causes. The runtime is responsible for one of them: CNI_NETNS is a
        // namespace of another type. Entering that namespace returns a clear error.
        Err(error) if error.errno() == Some(Errno::EINVAL) => {
            netns.run_in(|| Ok::<_, NetnsError>(()))?;
            Err(error)
        }
        outcome => outcome,
    };
    created.map_err(DataplaneError::from)
}

fn create_once(
    host: &mut NetlinkSocket,
    plan: &EndpointPlan,
    netns: &NetnsFd,
) -> Result<NewPair, NetlinkError> {
    let destinations: Vec<_> = plan.host_destinations().collect();
    let mut requests = vec![link::create_pair(plan, netns), link::get(&plan.host_ifname)];
    requests.extend(destinations.iter().copied().map(route::find));
    let mut answers = host.exchange(requests)?.into_iter();
    answers.next().unwrap_or(Ok(None))?;
    let looked_up = answers.next().unwrap_or(Ok(None));
    match looked_up.map(Link::from_answer) {
        Ok(Some(host)) => {
            let routes = answers.filter_map(|answer| KernelRoute::from_answer(answer.ok()??));
            let routes_before = routes
                .filter(|route| destinations.contains(&route.destination))
                .collect();
            Ok(NewPair {
                host,
                device: plan.device,
                routes_before,
            })
        }
        // Do not delete the pair: by now its name may belong to another interface. A later ADD or
        // DEL may delete it.
        outcome => Err(outcome
            .err()
            .unwrap_or_else(|| missing_interface(&plan.host_ifname))),
    }
}

/// Deletes the host interface with the same name, and its other end. Fails if the ADD may not
/// replace the interface.
pub(crate) fn remove_stale<H: HostAccess>(
    host: &mut H,
    plan: &EndpointPlan,
    netns: &H::Netns,
) -> Result<(), DataplaneError> {
    let Some(stale) = existing::replaceable(host, &plan.desired_interface(), netns)? else {
        return Ok(());
    };
    tracing::info!(
        interface = stale.name,
        "deleting an earlier host interface of the same name"
    );
    // The kernel may delete the interface first, together with the namespace of the earlier
    // sandbox.
    Ok(host.delete_link(&stale)?)
}

/// Sets [`MacAddr::HOST_SIDE`] on the host end if necessary, and returns the address of the host
/// end. If the kernel refuses the address, the host end keeps the kernel's choice (CNI-165).
pub(super) fn ensure_host_mac(
    host: &mut NetlinkSocket,
    link: &Link,
) -> Result<MacAddr, DataplaneError> {
    let expected = MacAddr::HOST_SIDE;
    if link.mac == Some(expected) {
        return Ok(expected);
    }
    let mut answers = host
        .exchange(vec![link::set_mac(link, expected), link::get(&link.name)])?
        .into_iter();
    let set = answers.next().unwrap_or(Ok(None));
    let found = answers
        .next()
        .unwrap_or(Ok(None))
        .map(Link::from_answer)?
        .and_then(|link| link.mac);
    match (set, found) {
        (Ok(_), Some(mac)) if mac == expected => Ok(mac),
        (Err(error), Some(mac)) => {
            tracing::warn!(
                interface = link.name, %error, %mac,
                "cannot set the MAC address of the host interface"
            );
            Ok(mac)
        }
        (_, found) => Err(DataplaneError::HostMac {
            ifname: link.name.clone(),
            expected,
            found: found.map_or_else(|| "none".to_owned(), |mac| mac.to_string()),
        }),
    }
}

fn missing_interface(ifname: &str) -> NetlinkError {
    NetlinkError::Refused {
        step: format!("look up interface {ifname}"),
        errno: Errno::ENODEV,
        detail: None,
    }
}
