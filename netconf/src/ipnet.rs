//! An address with a prefix length, in the strict text form of the CNI specification.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// An address with a prefix length. Unlike in a CIDR, host bits may be set and are kept: `10.65.0.5/26`.
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
    /// The description of the allowed values in errors.
    pub(crate) const WANT: &str = "an address with prefix length, such as \"10.0.0.1/24\"";

    /// Creates an address, or returns `None` if `prefix_len` exceeds the length of the family's addresses.
    pub fn new(addr: IpAddr, prefix_len: u8) -> Option<IpNet> {
        (prefix_len <= bits(addr)).then_some(IpNet { addr, prefix_len })
    }

    /// Creates the address alone, with prefix length 32 or 128.
    pub fn host(addr: IpAddr) -> IpNet {
        IpNet { addr, prefix_len: bits(addr) }
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
        let decimal = !prefix_len.is_empty() && prefix_len.bytes().all(|b| b.is_ascii_digit());
        let addr = addr.parse().map_err(|_| invalid())?;
        let prefix_len = prefix_len.parse().ok().filter(|_| decimal).ok_or_else(invalid)?;
        IpNet::new(addr, prefix_len).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_with_host_bits() {
        for text in ["10.65.0.5/26", "0.0.0.0/0", "10.0.0.1/32", "fd00:65::c11:b42f:f17e:a680/122", "::/0", "::1/128"] {
            assert_eq!(text.parse::<IpNet>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
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
            assert_eq!(text.parse::<IpNet>(), Err(IpNetParseError(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn host_is_full_length() {
        assert_eq!(IpNet::host("10.0.0.1".parse().unwrap()).to_string(), "10.0.0.1/32");
        assert_eq!(IpNet::host("fd00::1".parse().unwrap()).to_string(), "fd00::1/128");
    }
}
