//! The IPv6 link-local address of the host end, which is the pod's gateway.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use libcalico::net::IpVersion;
use netlink_packet_route::link::In6AddrGenMode;

use crate::netlink::address::{self, IPV6_ADDRESS_EVENTS};
use crate::netlink::{KernelAddress, Link, NetlinkSocket};
use crate::{DataplaneError, EndpointPlan, MacAddr};

/// Maximum time for the kernel to generate the address.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The IPv6 link-local address of a host end, which the kernel has yet to generate.
pub(super) struct PendingLinkLocal {
    events: NetlinkSocket,
    /// A separate socket: a dump on the socket for events would discard events that arrive during
    /// the dump.
    reader: NetlinkSocket,
    link: Link,
}

impl PendingLinkLocal {
    /// Prepares to wait for the address. Returns `None` if the address can be computed, or if the
    /// pod has no IPv6 and needs none. Must be called before the host end goes up, so that no event
    /// is missed.
    pub(super) fn prepare(
        plan: &EndpointPlan,
        link: &Link,
        host_mac: MacAddr,
    ) -> Result<Option<Self>, DataplaneError> {
        let is_computable =
            host_mac == MacAddr::HOST_SIDE && link.addr_gen_mode == Some(In6AddrGenMode::Eui64);
        if is_computable || !plan.has_family(IpVersion::V6) {
            return Ok(None);
        }
        if link.addr_gen_mode == Some(In6AddrGenMode::None) {
            let hint = "net.ipv6.conf.default.addr_gen_mode is 1, which disables these addresses; \
                        set the sysctl to 0";
            return Err(DataplaneError::NoLinkLocal {
                ifname: link.name.clone(),
                waited: Duration::ZERO,
                hint,
            });
        }
        let events = NetlinkSocket::open_for_events(IPV6_ADDRESS_EVENTS)?;
        Ok(Some(PendingLinkLocal {
            events,
            reader: NetlinkSocket::open()?,
            link: link.clone(),
        }))
    }

    /// Waits for the address, at most for [`TIMEOUT`]. Both ends must be up.
    pub(super) fn wait(self) -> Result<Ipv6Addr, DataplaneError> {
        let PendingLinkLocal {
            mut events,
            mut reader,
            link,
        } = self;
        let of_link = |found: KernelAddress| match found.ip {
            IpAddr::V6(ip) if found.interface == link.index && ip.is_unicast_link_local() => {
                Some(ip)
            }
            _ => None,
        };
        if let Some(present) = address::list(&mut reader, &link)?
            .into_iter()
            .find_map(of_link)
        {
            return Ok(present);
        }
        let step = format!("wait for the link-local address of interface {}", link.name);
        let event = |object| KernelAddress::from_object(object).and_then(of_link);
        let found = events.wait_for(&step, Instant::now() + TIMEOUT, event)?;
        found.ok_or_else(|| DataplaneError::NoLinkLocal {
            ifname: link.name.clone(),
            waited: TIMEOUT,
            hint: "check the sysctls net.ipv6.conf.default.addr_gen_mode and stable_secret",
        })
    }
}
