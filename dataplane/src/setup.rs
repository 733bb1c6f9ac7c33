//! ADD: creates the network of a pod.
//!
//! The ordinary case takes three sends to the kernel: `create` sends the pair, `host_routes` the
//! host end with its routes, and this module the pod's end with its routes and addresses.

pub(crate) mod create;
pub(crate) mod host_routes;
mod link_local;

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use libcalico::names::InterfaceAlias;
use netconf::conf::DeviceType;
use os::lock::HostLock;

use super::host_access::HostAccess;
use super::netlink::{Link, NetlinkSocket, Request, address, link, route};
use super::plan::{Gateway, HOST_LINK_LOCAL, InterfaceEnd, Route};
use super::{
    DataplaneError, EndpointPlan, MacAddr, NetlinkError, NetnsFd, interfaces_lock, sysctl,
};
use create::NewPair;
use link_local::PendingLinkLocal;

/// The network of an endpoint as [`setup`] created it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfacePair {
    /// The interface in the host's namespace.
    pub host_ifname: String,
    /// Index of the host interface. A later interface of the same name has another index.
    pub host_index: u32,
    /// MAC address of the host interface.
    pub host_mac: MacAddr,
    /// The MAC address of the pod's interface.
    pub container_mac: MacAddr,
    /// The MTU of the pod's interface in bytes, as the kernel reports it.
    pub mtu: u32,
    /// The kind of the pair: veth if the plan requests netkit and the kernel does not support it.
    pub device: DeviceType,
    /// The duration of each stage, in order.
    pub stages: Vec<Stage>,
}

/// A stage of the setup, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Name of the stage.
    pub name: &'static str,
    /// Wall-clock duration.
    pub took: Duration,
}

/// Creates the network of an endpoint. On failure it deletes the new pair, unless the error is
/// [`DataplaneError::PairNotDeleted`] or the kernel does not return the new pair.
///
/// Deletes an existing host interface with the plan's name. If the ADD may not replace that
/// interface, fails without any change.
pub fn setup(plan: &EndpointPlan, netns: &NetnsFd) -> Result<InterfacePair, DataplaneError> {
    plan.validate().map_err(DataplaneError::Plan)?;
    let mut stages = StageTimer {
        list: Vec::with_capacity(4),
        since: Instant::now(),
    };
    let mut host = NetlinkSocket::open()?;
    let mut lock = interfaces_lock::share();
    let pair = create::create(&mut host, plan, netns, &mut lock)?;
    stages.end("create_pair");
    configure(&mut host, plan, netns, &pair, lock, stages).map_err(|error| {
        // The settings written to the pod's namespace remain, because the namespace belongs to the
        // pod.
        let deleted = link::delete(&mut host, &pair.host);
        after_rollback(&pair.host.name, error, deleted)
    })
}

fn configure(
    host: &mut NetlinkSocket,
    plan: &EndpointPlan,
    netns: &NetnsFd,
    pair: &NewPair,
    lock: Option<HostLock>,
    mut stages: StageTimer,
) -> Result<InterfacePair, DataplaneError> {
    let (host_end, container_end) = (plan.host_end(), plan.container_end());
    let host_mac = create::ensure_host_mac(host, &pair.host)?;
    for setting in &host_end.sysctls {
        sysctl::apply(setting)?;
    }
    stages.end("host_sysctls");

    let link_local = PendingLinkLocal::prepare(plan, &pair.host, host_mac)?;
    host_routes::bring_up_with_routes(host, pair, &host_end, plan)
        .inspect_err(host_routes::log_withheld)?;
    // The alias now shows the owner of the pair.
    drop(lock);
    stages.end("host_link");

    let container = netns.run_in(|| configure_container(&container_end, pair, link_local))?;
    stages.end("pod");
    Ok(InterfacePair {
        host_ifname: plan.host_ifname.clone(),
        host_index: pair.host.index,
        host_mac,
        container_mac: container
            .mac
            .ok_or_else(|| DataplaneError::NoMac(container.name.clone()))?,
        mtu: container.mtu,
        device: pair.device,
        stages: stages.list,
    })
}

/// Configures the pod's end, inside the pod's namespace. With `link_local`, first sets the link up
/// and waits for the host end's link-local address, which is the gateway of the IPv6 routes.
fn configure_container(
    end: &InterfaceEnd,
    pair: &NewPair,
    link_local: Option<PendingLinkLocal>,
) -> Result<Link, DataplaneError> {
    let mut socket = NetlinkSocket::open()?;
    for setting in &end.sysctls {
        sysctl::apply(setting)?;
    }
    let link = pair.container(&mut socket, &end.ifname)?;
    let gateway = match link_local {
        None => HOST_LINK_LOCAL,
        Some(pending) => {
            // The kernel generates the address once both ends are up.
            socket.exchange_one(link::set_up(&link))?;
            pending.wait()?
        }
    };
    let mut requests = vec![link::get(&link.name), link::set_up(&link)];
    // Routes come before addresses, as in upstream (CNI-175): the kernel then gives the routes no
    // preferred source address.
    requests.extend(
        end.routes
            .iter()
            .map(|route| add_route(route, &link, gateway)),
    );
    requests.extend(
        end.addresses
            .iter()
            .map(|host| address::add(&link, host.network())),
    );
    let mut answers = socket
        .exchange(requests)?
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Link::from_answer(answers.swap_remove(0)).unwrap_or(link))
}

fn add_route(route: &Route, link: &Link, link_local: Ipv6Addr) -> Request {
    let gateway = route.gateway.map(|gateway| match gateway {
        Gateway::Address(address) => IpAddr::V4(address),
        Gateway::HostLinkLocal => IpAddr::V6(link_local),
    });
    let step = format!("add route {route} to interface {} in the pod", link.name);
    route::add(step, route.destination, gateway, link.index)
}

/// Returns the error of a failed setup after the attempt to delete its pair. A pair that still
/// exists uses its addresses, so the error has to state that the pair exists.
pub(super) fn after_rollback(
    ifname: &str,
    error: DataplaneError,
    deleted: Result<(), NetlinkError>,
) -> DataplaneError {
    let Err(deletion) = link::ignore_missing(deleted) else {
        return error;
    };
    DataplaneError::PairNotDeleted {
        ifname: ifname.to_owned(),
        failure: Box::new(error),
        deletion,
    }
}

/// Deletes the pair of a completed [`setup`] if it still exists. Finds the pair by index, because
/// the name may belong to a later ADD by now. Keeps an interface that does not have this alias.
pub fn remove(host_index: u32, alias: &InterfaceAlias) -> Result<(), DataplaneError> {
    remove_from(&mut NetlinkSocket::open()?, host_index, alias)
}

/// Deletes the pair from `host`; see [`remove`].
pub(super) fn remove_from(
    host: &mut impl HostAccess,
    host_index: u32,
    alias: &InterfaceAlias,
) -> Result<(), DataplaneError> {
    let Some(link) = host.link_by_index(host_index)? else {
        return Ok(());
    };
    if link.alias.as_ref() != Some(alias) {
        tracing::warn!(
            interface = link.name,
            "the failed ADD keeps the host interface, which has another alias"
        );
        return Ok(());
    }
    Ok(host.delete_link(&link)?)
}

struct StageTimer {
    list: Vec<Stage>,
    since: Instant,
}

impl StageTimer {
    fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        self.list.push(Stage {
            name,
            took: now - self.since,
        });
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    fn rolled_back(errno: Option<Errno>) -> DataplaneError {
        let refused = |errno| NetlinkError::Refused {
            step: "delete interface cali1".into(),
            errno,
            detail: None,
        };
        let failure = DataplaneError::NoMac("eth0".into());
        after_rollback(
            "cali1",
            failure,
            errno.map_or(Ok(()), |errno| Err(refused(errno))),
        )
    }

    #[test]
    fn failed_setup_reports_a_pair_that_cannot_be_deleted() {
        let error = rolled_back(Some(Errno::EBUSY));
        assert!(
            matches!(error, DataplaneError::PairNotDeleted { .. }),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            "interface eth0 in the pod has no MAC address; interface cali1 could not be removed: \
             delete interface cali1: Device or resource busy"
        );
    }

    #[test]
    fn failed_setup_with_a_removed_pair_returns_the_original_error() {
        for errno in [None, Some(Errno::ENODEV)] {
            assert!(
                matches!(rolled_back(errno), DataplaneError::NoMac(_)),
                "{errno:?}"
            );
        }
    }
}
