//! The types of a result. Their encoding is that of version 1.0.0 of the CNI specification and
//! later.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The result of an ADD, which the runtime passes to later calls as `prevResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniResult {
    /// The created interfaces, host side and container side.
    pub interfaces: Vec<Interface>,
    /// The assigned addresses.
    pub ips: Vec<IpConfig>,
    /// The routes as the IPAM plugin returned them, not the routes that the plugin programs
    /// (CNI-41).
    pub routes: Vec<Route>,
    /// Resolver settings, as the IPAM plugin returned them.
    pub dns: Dns,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The hardware address in text form; empty if not given.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The MTU in bytes; 0 if not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Path of the interface's network namespace; empty on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// Path of the socket of a vhost-user device; empty for others.
    #[serde(rename = "socketPath", skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// PCI address of a passed-through device; empty for others.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// An assigned address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IpConfig {
    /// The interface that has the address, as an index into [`CniResult::interfaces`]; `None` if
    /// not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// The address with its prefix length.
    pub address: IpNet,
    /// The gateway of the address's subnet; `None` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The destination; host bits may be set and are kept.
    pub dst: IpNet,
    /// The next hop; `None` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// MTU of the path in bytes; 0 if not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Advertised maximum segment size in bytes; 0 if not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub advmss: u32,
    /// Metric; 0 if not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// Number of the routing table; `None` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope, in the kernel's numbering; `None` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// Creates a route that has only a destination.
    pub fn to(dst: IpNet) -> Route {
        Route {
            dst,
            gw: None,
            mtu: 0,
            advmss: 0,
            priority: 0,
            table: None,
            scope: None,
        }
    }
}

/// Resolver settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dns {
    /// Name servers in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain; empty if not given.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search domains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Returns true if no setting is given.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// An address with a prefix length. Unlike in a CIDR, host bits may be set and are kept:
/// `10.65.0.5/26`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpNet {
    addr: IpAddr,
    prefix_len: u8,
}

/// The error for a text that is not an [`IpNet`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid CIDR address: {0}")]
pub struct IpNetParseError(pub String);

impl IpNet {
    pub(crate) const WANT: &str = "an address with prefix length, such as \"10.0.0.1/24\"";

    /// Creates an address, or returns `None` if `prefix_len` exceeds 32 for IPv4 or 128 for IPv6.
    pub fn new(addr: IpAddr, prefix_len: u8) -> Option<IpNet> {
        (prefix_len <= bits(addr)).then_some(IpNet { addr, prefix_len })
    }

    /// Creates an address with the full prefix length: 32 for IPv4, 128 for IPv6.
    pub fn host(addr: IpAddr) -> IpNet {
        IpNet {
            addr,
            prefix_len: bits(addr),
        }
    }

    /// Returns the address, with its host bits.
    pub fn addr(self) -> IpAddr {
        self.addr
    }

    /// Returns the length of the network's prefix in bits.
    pub fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// Returns true if the address is an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.addr.is_ipv4()
    }
}

fn bits(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix_len)
    }
}

impl Serialize for IpNet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for IpNet {
    type Err = IpNetParseError;

    fn from_str(text: &str) -> Result<IpNet, IpNetParseError> {
        let invalid = || IpNetParseError(text.to_owned());
        let (addr, prefix_len) = text.split_once('/').ok_or_else(invalid)?;
        let is_decimal = !prefix_len.is_empty() && prefix_len.bytes().all(|b| b.is_ascii_digit());
        let addr = addr.parse().map_err(|_| invalid())?;
        let prefix_len = prefix_len
            .parse()
            .ok()
            .filter(|_| is_decimal)
            .ok_or_else(invalid)?;
        IpNet::new(addr, prefix_len).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_text_round_trips_with_host_bits() {
        for text in [
            "10.65.0.5/26",
            "0.0.0.0/0",
            "10.0.0.1/32",
            "fd00:65::c11:b42f:f17e:a680/122",
            "::/0",
            "::1/128",
        ] {
            assert_eq!(text.parse::<IpNet>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn addresses_that_go_rejects_are_rejected() {
        for text in [
            "",
            "10.0.0.1",
            "10.0.0.1/33",
            "::1/129",
            "10.0.0.1/",
            "10.0.0.1/+8",
            "10.0.0.0/255.0.0.0",
            "010.0.0.1/8",
            "/8",
        ] {
            assert_eq!(
                text.parse::<IpNet>(),
                Err(IpNetParseError(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn host_network_has_the_full_prefix_length() {
        assert_eq!(
            IpNet::host("10.0.0.1".parse().unwrap()).to_string(),
            "10.0.0.1/32"
        );
        assert_eq!(
            IpNet::host("fd00::1".parse().unwrap()).to_string(),
            "fd00::1/128"
        );
    }
}
