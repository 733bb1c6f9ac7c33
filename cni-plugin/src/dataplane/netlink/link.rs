//! Interfaces: the requests about them, and what the kernel says of one.

use libcalico::names::InterfaceAlias;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoNetkit, InfoVeth, LinkAttribute, LinkExtentMask,
    LinkFlags, LinkInfo, LinkMessage, NetkitMode, NetkitPolicy, NetkitScrub,
};
use nix::errno::Errno;
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::{Answer, NetlinkError, NetlinkSocket, Request};
use crate::dataplane::mac::MacAddr;
use crate::dataplane::netns::NetnsFd;
use crate::dataplane::plan::{DeviceType, EndpointPlan};

/// An interface as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its number in its namespace.
    pub(crate) index: u32,
    /// Its name.
    pub(crate) name: String,
    /// Its Ethernet address, if it has one.
    pub(crate) mac: Option<MacAddr>,
    /// Its MTU in bytes.
    pub(crate) mtu: u32,
    /// Whether it is set up.
    pub(crate) up: bool,
    /// Whether it can carry packets: up, and for a pair its other end too.
    pub(crate) running: bool,
    /// Whether it is one end of a veth or netkit pair.
    pub(crate) paired: bool,
    /// The number of the other end, in the other end's namespace.
    pub(crate) peer_index: Option<u32>,
    /// The number by which its namespace knows the other end's; `None` when that is the same namespace.
    pub(crate) peer_netns_id: Option<i32>,
    /// How it makes its IPv6 link-local address; `None` when it has no IPv6.
    pub(crate) addr_gen_mode: Option<In6AddrGenMode>,
    /// The container and the pod that it was made for; `None` where no ADD of ours noted them.
    pub(crate) alias: Option<InterfaceAlias>,
}

impl Link {
    /// Returns true if this is, by its kind, its alias and its address, the host's end of a pod's interface.
    pub(crate) fn is_pods(&self) -> bool {
        self.paired && (self.alias.is_some() || self.mac == Some(MacAddr::HOST_SIDE))
    }
}

/// Creates the pair in place: the host end in the namespace of the socket, the other end in `netns`.
pub(crate) fn create_pair(plan: &EndpointPlan, device: DeviceType, netns: &NetnsFd) -> Request {
    let mut peer = LinkUnspec::new_with_name(&plan.container_ifname).setns_by_fd(netns.raw_fd());
    let mut host = match device {
        DeviceType::Veth => LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Veth),
        DeviceType::Netkit => LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Netkit),
    };
    // An address given at creation is one that udev's MACAddressPolicy leaves alone; one set later is not.
    host = host.name(plan.host_ifname.as_str()).address(MacAddr::HOST_SIDE.bytes().to_vec());
    if let Some(mac) = plan.container_mac {
        peer = peer.address(mac.bytes().to_vec());
    }
    if plan.mtu > 0 {
        // On both ends: a netkit peer does not take the MTU of the primary.
        (host, peer) = (host.mtu(plan.mtu), peer.mtu(plan.mtu));
    }
    host = with_queues(host, plan.num_queues);
    let data = match device {
        DeviceType::Veth => InfoData::Veth(InfoVeth::Peer(with_queues(peer, plan.num_queues).build())),
        // A netkit peer has one queue by design (CNI-163).
        DeviceType::Netkit => InfoData::Netkit(vec![
            InfoNetkit::Mode(NetkitMode::L2),
            InfoNetkit::Policy(NetkitPolicy::Pass),
            InfoNetkit::PeerPolicy(NetkitPolicy::Pass),
            InfoNetkit::Scrub(NetkitScrub::None),
            InfoNetkit::PeerScrub(NetkitScrub::None),
            InfoNetkit::Peer(peer.build()),
        ]),
    };
    let step = format!("create {device} pair {}/{}", plan.container_ifname, plan.host_ifname);
    let message = RouteNetlinkMessage::NewLink(host.set_info_data(data).build());
    Request::new(step, message, NLM_F_CREATE | NLM_F_EXCL)
}

/// Looks an interface up by name.
pub(crate) fn get(name: &str) -> Request {
    let link = LinkUnspec::new_with_name(name).append_extra_attribute(without_statistics()).build();
    Request::new(format!("look up interface {name}"), RouteNetlinkMessage::GetLink(link), 0)
}

/// Looks an interface up by number.
fn get_by_index(index: u32) -> Request {
    let link = LinkUnspec::new_with_index(index).append_extra_attribute(without_statistics()).build();
    Request::new(format!("look up interface number {index}"), RouteNetlinkMessage::GetLink(link), 0)
}

/// Notes on an interface the container and the pod that it was made for. The message that creates a pair cannot: the kernel
/// ignores the attribute there.
pub(crate) fn set_alias(link: &Link, alias: &InterfaceAlias) -> Request {
    let attribute = LinkAttribute::IfAlias(alias.to_string());
    let message = LinkUnspec::new_with_index(link.index).append_extra_attribute(attribute).build();
    Request::new(format!("set alias of interface {}", link.name), RouteNetlinkMessage::SetLink(message), 0)
}

/// Sets an interface up.
pub(crate) fn set_up(link: &Link) -> Request {
    let message = LinkUnspec::new_with_index(link.index).up().build();
    Request::new(format!("set interface {} up", link.name), RouteNetlinkMessage::SetLink(message), 0)
}

/// Sets an interface down: no packet passes any more, in either direction.
pub(crate) fn set_down(link: &Link) -> Request {
    let message = LinkUnspec::new_with_index(link.index).down().build();
    Request::new(format!("set interface {} down", link.name), RouteNetlinkMessage::SetLink(message), 0)
}

/// Gives an interface an Ethernet address.
pub(crate) fn set_mac(link: &Link, mac: MacAddr) -> Request {
    let message = LinkUnspec::new_with_index(link.index).address(mac.bytes().to_vec()).build();
    Request::new(format!("set MAC address of interface {}", link.name), RouteNetlinkMessage::SetLink(message), 0)
}

/// Deletes an interface and the other end of its pair.
pub(crate) fn delete(link: &Link) -> Request {
    let message = LinkUnspec::new_with_index(link.index).build();
    Request::new(format!("delete interface {}", link.name), RouteNetlinkMessage::DelLink(message), 0)
}

impl Link {
    /// Whether `other`, found in the namespace known here as `netns_id`, is the other end of this pair.
    pub(crate) fn is_peer_of(&self, other: &Link, netns_id: Option<i32>) -> bool {
        self.paired
            && self.peer_index == Some(other.index)
            && other.peer_index == Some(self.index)
            && netns_id.is_some()
            && self.peer_netns_id == netns_id
    }

    /// Reads an answer to [`get`].
    pub(crate) fn from_answer(answer: Option<RouteNetlinkMessage>) -> Option<Self> {
        match answer? {
            RouteNetlinkMessage::NewLink(message) => Some(Link::from_message(message)),
            _ => None,
        }
    }

    fn from_message(message: LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Link {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: flags.contains(LinkFlags::Up),
            running: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            paired: false,
            peer_index: None,
            peer_netns_id: None,
            addr_gen_mode: None,
            alias: None,
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(bytes) => link.mac = MacAddr::try_from(bytes.as_slice()).ok(),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::IfAlias(text) => link.alias = InterfaceAlias::parse(&text),
                LinkAttribute::Link(index) => link.peer_index = Some(index),
                LinkAttribute::LinkNetNsId(id) => link.peer_netns_id = Some(id),
                LinkAttribute::LinkInfo(infos) => link.paired = infos.iter().any(is_pair),
                LinkAttribute::AfSpecUnspec(families) => link.addr_gen_mode = families.iter().find_map(addr_gen_mode),
                _ => {}
            }
        }
        link
    }
}

fn with_queues(link: LinkMessageBuilder<LinkUnspec>, queues: u32) -> LinkMessageBuilder<LinkUnspec> {
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
    let AfSpecUnspec::Inet6(settings) = family else { return None };
    settings.iter().find_map(|setting| match setting {
        AfSpecInet6::AddrGenMode(mode) => Some(*mode),
        _ => None,
    })
}

/// The interface of that name in the socket's namespace, if there is one.
pub(crate) fn find(socket: &mut NetlinkSocket, name: &str) -> Result<Option<Link>, NetlinkError> {
    found(socket.ask(get(name)))
}

/// All interfaces in the socket's namespace.
pub(crate) fn list(socket: &mut NetlinkSocket) -> Result<Vec<Link>, NetlinkError> {
    let mut message = LinkMessage::default();
    message.attributes.push(without_statistics());
    let objects = socket.dump(&Request::new("list interfaces", RouteNetlinkMessage::GetLink(message), 0))?;
    Ok(objects.into_iter().filter_map(|object| Link::from_answer(Some(object))).collect())
}

/// The interface of that number in the socket's namespace, if there is one.
pub(crate) fn find_by_index(socket: &mut NetlinkSocket, index: u32) -> Result<Option<Link>, NetlinkError> {
    found(socket.ask(get_by_index(index)))
}

fn found(answer: Answer) -> Result<Option<Link>, NetlinkError> {
    match answer {
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
        answer => answer.map(Link::from_answer),
    }
}
