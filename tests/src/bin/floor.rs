//! The floor that an ADD is measured against: the cost of the kernel alone.
//!
//! `floor NETNS HOST-INTERFACE IPV4-ADDRESS` sends the netlink messages of an ADD of one IPv4 pod
//! in pipelined batches. It sets kernel settings only with `--sysctls` as the first argument. It
//! shares no code with the plugin.

use std::env;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::thread;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkMessage};
use netlink_packet_route::route::{RouteProtocol, RouteScope};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use nix::sched::{CloneFlags, setns};
use rtnetlink::{AddressMessageBuilder, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const HOST_MAC: [u8; 6] = [0xee; 6];
const POD_INTERFACE: &str = "eth0";

fn main() -> Result<()> {
    let mut args: Vec<String> = env::args().skip(1).collect();
    let sysctls = args.first().is_some_and(|arg| arg == "--sysctls");
    args.drain(..usize::from(sysctls));
    let [netns, host_interface, address] = args.as_slice() else {
        bail!("usage: floor [--sysctls] NETNS HOST-INTERFACE IPV4-ADDRESS");
    };
    let address: Ipv4Addr = address.parse()?;
    let netns = File::open(netns).with_context(|| netns.clone())?;

    let mut host = Batch::open()?;
    host.add(
        create_pair(host_interface, &netns),
        NLM_F_CREATE | NLM_F_EXCL,
    );
    host.add(look_up(host_interface), 0);
    let (host_index, pod_index) = host
        .send()?
        .context("the kernel did not describe the pair")?;

    if sysctls {
        set_host_sysctls(host_interface)?;
    }
    thread::scope(|scope| {
        scope
            .spawn(|| set_up_pod(&netns, pod_index, address, sysctls))
            .join()
    })
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;

    host.add(set_up(host_index), 0);
    host.add(
        route(address, 32, None, host_index),
        NLM_F_CREATE | NLM_F_REPLACE,
    );
    host.send().map(|_| ())
}

fn set_up_pod(netns: &File, index: u32, address: Ipv4Addr, sysctls: bool) -> Result<()> {
    setns(netns, CloneFlags::CLONE_NEWNET)?;
    if sysctls {
        fs::write("/proc/sys/net/ipv4/ip_forward", "0")?;
    }
    let mut pod = Batch::open()?;
    pod.add(set_up(index), 0);
    let own = AddressMessageBuilder::<Ipv4Addr>::new()
        .index(index)
        .address(address, 32)
        .build();
    pod.add(
        RouteNetlinkMessage::NewAddress(own),
        NLM_F_CREATE | NLM_F_EXCL,
    );
    pod.add(route(GATEWAY, 32, None, index), NLM_F_CREATE | NLM_F_EXCL);
    pod.add(
        route(Ipv4Addr::UNSPECIFIED, 0, Some(GATEWAY), index),
        NLM_F_CREATE | NLM_F_EXCL,
    );
    pod.send().map(|_| ())
}

fn set_host_sysctls(interface: &str) -> Result<()> {
    for (setting, value) in [
        (format!("ipv4/conf/{interface}/route_localnet"), "1"),
        (format!("ipv4/neigh/{interface}/proxy_delay"), "0"),
        (format!("ipv4/conf/{interface}/proxy_arp"), "1"),
        (format!("ipv4/conf/{interface}/forwarding"), "1"),
        (format!("ipv6/conf/{interface}/accept_ra"), "0"),
    ] {
        fs::write(format!("/proc/sys/net/{setting}"), value).with_context(|| setting)?;
    }
    Ok(())
}

fn create_pair(host_interface: &str, netns: &File) -> RouteNetlinkMessage {
    let peer = LinkUnspec::new_with_name(POD_INTERFACE)
        .setns_by_fd(netns.as_raw_fd())
        .build();
    let host = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Veth)
        .name(host_interface)
        .address(HOST_MAC.to_vec())
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)));
    RouteNetlinkMessage::NewLink(host.build())
}

fn look_up(interface: &str) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(LinkUnspec::new_with_name(interface).build())
}

fn set_up(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::SetLink(LinkUnspec::new_with_index(index).up().build())
}

fn route(
    destination: Ipv4Addr,
    prefix: u8,
    gateway: Option<Ipv4Addr>,
    index: u32,
) -> RouteNetlinkMessage {
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(destination, prefix)
        .output_interface(index)
        .protocol(RouteProtocol::Boot);
    RouteNetlinkMessage::NewRoute(match gateway {
        Some(gateway) => route.gateway(gateway).build(),
        None => route.scope(RouteScope::Link).build(),
    })
}

/// Requests that go to the kernel in one send. The kernel acknowledges only the last one, but
/// reports every rejection.
struct Batch {
    socket: Socket,
    requests: Vec<NetlinkMessage<RouteNetlinkMessage>>,
}

impl Batch {
    fn open() -> Result<Self> {
        Ok(Self {
            socket: Socket::new(NETLINK_ROUTE)?,
            requests: Vec::new(),
        })
    }

    fn add(&mut self, message: RouteNetlinkMessage, flags: u16) {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        self.requests.push(request);
    }

    /// Sends the added requests and waits until the kernel has executed all of them. Returns the
    /// indexes of the link that a request looked up and of its peer.
    fn send(&mut self) -> Result<Option<(u32, u32)>> {
        if let Some(last) = self.requests.last_mut() {
            last.header.flags |= NLM_F_ACK;
        }
        let mut bytes = Vec::with_capacity(1024);
        let last = self.requests.len() as u32;
        for (mut request, number) in self.requests.drain(..).zip(1..) {
            request.header.sequence_number = number;
            request.finalize();
            let start = bytes.len();
            bytes.resize(start + request.buffer_len(), 0);
            request.serialize(&mut bytes[start..]);
        }
        self.socket.send(&bytes, 0)?;

        let mut link = None;
        let mut answer = Vec::with_capacity(32 * 1024);
        loop {
            answer.clear();
            self.socket.recv(&mut answer, 0)?;
            let mut rest = answer.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)?;
                match &message.payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        bail!("the kernel refused: {error}")
                    }
                    NetlinkPayload::Error(_) if message.header.sequence_number == last => {
                        return Ok(link);
                    }
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(found)) => {
                        link = both_ends(found)
                    }
                    _ => {}
                }
                rest = &rest[(message.header.length as usize)
                    .next_multiple_of(4)
                    .min(rest.len())..];
            }
        }
    }
}

fn both_ends(found: &LinkMessage) -> Option<(u32, u32)> {
    found
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Link(peer) => Some((found.header.index, *peer)),
            _ => None,
        })
}
