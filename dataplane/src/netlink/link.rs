use libcalico::names::InterfaceAlias;
use netconf::conf::DeviceType;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoNetkit, InfoVeth,
    LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage, NetkitMode, NetkitPolicy,
    NetkitScrub,
};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use nix::errno::Errno;
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::{Answer, NetlinkError, NetlinkSocket, Request};
use crate::{EndpointPlan, MacAddr, NetnsFd};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Index of the interface, which is unique in its namespace.
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) mtu: u32,
    pub(crate) is_up: bool,
    /// True if the interface can carry packets. One end of a pair can if both ends are up.
    pub(crate) has_carrier: bool,
    pub(crate) is_paired: bool,
    /// The index of the other end, in the other end's namespace; `None` if the kernel reports no
    /// other end.
    pub(crate) peer_index: Option<u32>,
    /// The ID of the other end's namespace in the interface's own namespace; `None` if both ends
    /// are in the same namespace, or if the kernel reports no other end.
    pub(crate) peer_netns_id: Option<i32>,
    /// The mode in which the kernel generates the IPv6 link-local address; `None` if the interface
    /// has no IPv6.
    pub(crate) addr_gen_mode: Option<In6AddrGenMode>,
    /// The container and the pod that the interface was created for; `None` if no ADD of this
    /// plugin set an alias.
    pub(crate) alias: Option<InterfaceAlias>,
}

/// Returns the request that creates both ends of the pair in their namespaces: the host end in the
/// namespace of the socket, the other end in `netns`.
pub(crate) fn create_pair(plan: &EndpointPlan, netns: &NetnsFd) -> Request {
    let mut peer = LinkUnspec::new_with_name(&plan.container_ifname).setns_by_fd(netns.raw_fd());
    let kind = match plan.device {
        DeviceType::Veth => InfoKind::Veth,
        DeviceType::Netkit => InfoKind::Netkit,
    };
    let step = format!(
        "create {kind} pair {}/{}",
        plan.container_ifname, plan.host_ifname
    );
    let mut host = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(kind);
    // udev's MACAddressPolicy keeps an address that is set at creation, but not one that is set
    // later.
    host = host
        .name(plan.host_ifname.as_str())
        .address(MacAddr::HOST_SIDE.bytes().to_vec());
    if let Some(mac) = plan.container_mac {
        peer = peer.address(mac.bytes().to_vec());
    }
    if plan.mtu > 0 {
        // Both ends need the MTU: a netkit peer does not inherit the MTU of the primary.
        (host, peer) = (host.mtu(plan.mtu), peer.mtu(plan.mtu));
    }
    host = with_queues(host, plan.num_queues);
    let data = match plan.device {
        DeviceType::Veth => {
            InfoData::Veth(InfoVeth::Peer(with_queues(peer, plan.num_queues).build()))
        }
        // A netkit peer has one queue by design, so the request has no queue counts for it
        // (CNI-163).
        DeviceType::Netkit => InfoData::Netkit(vec![
            InfoNetkit::Mode(NetkitMode::L2),
            InfoNetkit::Policy(NetkitPolicy::Pass),
            InfoNetkit::PeerPolicy(NetkitPolicy::Pass),
            InfoNetkit::Scrub(NetkitScrub::None),
            InfoNetkit::PeerScrub(NetkitScrub::None),
            InfoNetkit::Peer(peer.build()),
        ]),
    };
    let message = RouteNetlinkMessage::NewLink(host.set_info_data(data).build());
    Request::new(step, message, NLM_F_CREATE | NLM_F_EXCL)
}

pub(crate) fn get(name: &str) -> Request {
    let link = LinkUnspec::new_with_name(name)
        .append_extra_attribute(without_statistics())
        .build();
    Request::new(
        format!("look up interface {name}"),
        RouteNetlinkMessage::GetLink(link),
        0,
    )
}

/// Returns the request that sets the alias of an interface. The request that creates the pair
/// cannot set the alias, because the kernel ignores the attribute there.
pub(crate) fn set_alias(link: &Link, alias: &InterfaceAlias) -> Request {
    let alias = LinkAttribute::IfAlias(alias.to_string());
    let message = LinkUnspec::new_with_index(link.index).append_extra_attribute(alias);
    change(format!("set alias of interface {}", link.name), message)
}

pub(crate) fn set_up(link: &Link) -> Request {
    change(
        format!("set interface {} up", link.name),
        LinkUnspec::new_with_index(link.index).up(),
    )
}

/// Returns the request that sets an interface down. No packet passes afterwards, in either
/// direction.
pub(crate) fn set_down(link: &Link) -> Request {
    change(
        format!("set interface {} down", link.name),
        LinkUnspec::new_with_index(link.index).down(),
    )
}

pub(crate) fn set_mac(link: &Link, mac: MacAddr) -> Request {
    let message = LinkUnspec::new_with_index(link.index).address(mac.bytes().to_vec());
    change(
        format!("set MAC address of interface {}", link.name),
        message,
    )
}

fn change(step: String, link: LinkMessageBuilder<LinkUnspec>) -> Request {
    Request::new(step, RouteNetlinkMessage::SetLink(link.build()), 0)
}

/// Deletes an interface and the other end of its pair. A missing interface is no failure.
pub(crate) fn delete(socket: &mut NetlinkSocket, link: &Link) -> Result<(), NetlinkError> {
    let message = LinkUnspec::new_with_index(link.index).build();
    let step = format!("delete interface {}", link.name);
    ignore_missing(
        socket
            .exchange_one(Request::new(step, RouteNetlinkMessage::DelLink(message), 0))
            .map(drop),
    )
}

/// Treats a missing interface as success: another process may delete its other end or its namespace
/// at any time.
pub(crate) fn ignore_missing(outcome: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match outcome {
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(()),
        outcome => outcome,
    }
}

impl Link {
    /// Returns true if the interface is the host end of a pod's or plain container's interface: it
    /// is a pair with an alias of this plugin or with the MAC address of Calico's host ends.
    pub(crate) fn is_of_pod(&self) -> bool {
        self.is_paired && (self.alias.is_some() || self.mac == Some(MacAddr::HOST_SIDE))
    }

    /// Returns true if `other`, found in the namespace with the ID `netns_id`, is the other end of
    /// this pair.
    pub(crate) fn is_peer_of(&self, other: &Link, netns_id: Option<i32>) -> bool {
        self.is_paired
            && self.peer_index == Some(other.index)
            && other.peer_index == Some(self.index)
            && netns_id.is_some()
            && self.peer_netns_id == netns_id
    }

    pub(crate) fn from_answer(answer: Option<RouteNetlinkMessage>) -> Option<Self> {
        let Some(RouteNetlinkMessage::NewLink(message)) = answer else {
            return None;
        };
        let flags = message.header.flags;
        let mut link = Link {
            index: message.header.index,
            is_up: flags.contains(LinkFlags::Up),
            has_carrier: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            ..Link::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(bytes) => link.mac = MacAddr::from_slice(&bytes),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::IfAlias(text) => link.alias = InterfaceAlias::parse(&text),
                LinkAttribute::Link(index) => link.peer_index = Some(index),
                LinkAttribute::LinkNetNsId(id) => link.peer_netns_id = Some(id),
                LinkAttribute::LinkInfo(infos) => link.is_paired = infos.iter().any(is_pair),
                LinkAttribute::AfSpecUnspec(families) => {
                    link.addr_gen_mode = families.iter().find_map(addr_gen_mode)
                }
                _ => {}
            }
        }
        Some(link)
    }
}

fn with_queues(
    link: LinkMessageBuilder<LinkUnspec>,
    queues: u32,
) -> LinkMessageBuilder<LinkUnspec> {
    link.append_extra_attribute(LinkAttribute::NumTxQueues(queues))
        .append_extra_attribute(LinkAttribute::NumRxQueues(queues))
}

fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

fn is_pair(info: &LinkInfo) -> bool {
    matches!(info, LinkInfo::Kind(InfoKind::Veth | InfoKind::Netkit))
}

fn addr_gen_mode(family: &AfSpecUnspec) -> Option<In6AddrGenMode> {
    let AfSpecUnspec::Inet6(settings) = family else {
        return None;
    };
    settings.iter().find_map(|setting| match setting {
        AfSpecInet6::AddrGenMode(mode) => Some(*mode),
        _ => None,
    })
}

pub(crate) fn find(socket: &mut NetlinkSocket, name: &str) -> Result<Option<Link>, NetlinkError> {
    into_link(socket.exchange_one(get(name)))
}

pub(crate) fn list(socket: &mut NetlinkSocket) -> Result<Vec<Link>, NetlinkError> {
    let mut message = LinkMessage::default();
    message.attributes.push(without_statistics());
    let objects = socket.dump(&Request::new(
        "list interfaces",
        RouteNetlinkMessage::GetLink(message),
        0,
    ))?;
    Ok(objects
        .into_iter()
        .filter_map(|object| Link::from_answer(Some(object)))
        .collect())
}

pub(crate) fn find_by_index(
    socket: &mut NetlinkSocket,
    index: u32,
) -> Result<Option<Link>, NetlinkError> {
    let link = LinkUnspec::new_with_index(index)
        .append_extra_attribute(without_statistics())
        .build();
    let step = format!("look up interface number {index}");
    into_link(socket.exchange_one(Request::new(step, RouteNetlinkMessage::GetLink(link), 0)))
}

fn into_link(answer: Answer) -> Result<Option<Link>, NetlinkError> {
    match answer {
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
        answer => answer.map(Link::from_answer),
    }
}

/// Returns the ID of `netns` in the socket's namespace, if it has one. It has one if a pair spans
/// the two namespaces.
pub(crate) fn netns_id_of(
    socket: &mut NetlinkSocket,
    netns: &NetnsFd,
) -> Result<Option<i32>, NetlinkError> {
    let mut message = NsidMessage::default();
    message
        .attributes
        .push(NsidAttribute::Fd(netns.raw_fd().unsigned_abs()));
    let step = format!(
        "look up the id of network namespace {}",
        netns.path().display()
    );
    let answer =
        socket.exchange_one(Request::new(step, RouteNetlinkMessage::GetNsId(message), 0))?;
    let Some(RouteNetlinkMessage::NewNsId(answer)) = answer else {
        return Ok(None);
    };
    Ok(answer
        .attributes
        .into_iter()
        .find_map(|attribute| match attribute {
            NsidAttribute::Id(id) if id >= 0 => Some(id),
            _ => None,
        }))
}
