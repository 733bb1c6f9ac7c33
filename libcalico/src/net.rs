//! [`Cidr`]: a network in canonical, masked form, as Calico's keys and blocks contain it.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The two address families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Returns the number of bits in an address of this family.
    pub fn bits(self) -> u8 {
        if self == IpVersion::V4 { 32 } else { 128 }
    }

    /// Returns the family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() {
            IpVersion::V4
        } else {
            IpVersion::V6
        }
    }
}

impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == IpVersion::V4 { "4" } else { "6" })
    }
}

/// A text that is not a CIDR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid CIDR address: {0}")]
pub struct CidrParseError(pub String);

/// A network, masked to its prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr(IpNetwork);

impl Cidr {
    /// Returns the network of length `prefix` that contains `ip`; `None` if the prefix is longer
    /// than the address.
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Self> {
        let network = IpNetwork::new(ip, prefix).ok()?.network();
        IpNetwork::new(network, prefix).ok().map(Cidr)
    }

    /// Returns the single address `ip` as a /32 or /128.
    pub fn host(ip: IpAddr) -> Self {
        Cidr(IpNetwork::from(ip))
    }

    /// Parses a network, or an address without a prefix length as the network of that address
    /// alone.
    pub fn parse_or_host(text: &str) -> Option<Self> {
        let text = text.trim();
        text.parse()
            .map(Cidr::host)
            .ok()
            .or_else(|| text.parse().ok())
    }

    /// Parses a CIDR, and returns also the address as written.
    pub fn parse_with_address(text: &str) -> Result<(Self, IpAddr), CidrParseError> {
        let parse_error = || CidrParseError(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(parse_error)?;
        // Go's ParseCIDR accepts decimal digits only.
        let is_padded = prefix.len() > 1 && prefix.starts_with('0');
        if is_padded
            || prefix.is_empty()
            || prefix.len() > 3
            || !prefix.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(parse_error());
        }
        let ip: IpAddr = address.parse().map_err(|_| parse_error())?;
        let prefix: u8 = prefix.parse().map_err(|_| parse_error())?;
        Ok((Cidr::new(ip, prefix).ok_or_else(parse_error)?, ip))
    }

    /// Returns the network address.
    pub fn network(&self) -> IpAddr {
        self.0.ip()
    }

    /// Returns the prefix length in bits.
    pub fn prefix(&self) -> u8 {
        self.0.prefix()
    }

    /// Returns the address family.
    pub fn version(&self) -> IpVersion {
        IpVersion::of(self.network())
    }

    /// Returns true if `ip` is in this network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(ip)
    }

    /// Returns true if every address of `other` is in this network.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.version() == other.version()
            && self.prefix() <= other.prefix()
            && self.contains(other.network())
    }

    /// Returns the range of multicast or loopback that this network overlaps, if any. The kernel
    /// drops packets from such an address, and gives no interface an address of multicast in IPv6.
    pub fn unassignable(&self) -> Option<Cidr> {
        let special = [
            (Ipv4Addr::new(224, 0, 0, 0).into(), 4),
            (Ipv4Addr::new(127, 0, 0, 0).into(), 8),
            (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
        ];
        special
            .into_iter()
            .filter_map(|(ip, prefix)| Cidr::new(ip, prefix))
            .find(|range| range.overlaps(self))
    }

    /// Returns true if the two networks share an address.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Returns true if blocks of these two networks cannot both exist.
    pub fn conflicts_with(&self, other: &Cidr) -> bool {
        self != other && self.overlaps(other)
    }

    /// Returns the number of addresses, saturating at `u128::MAX` for `::/0`.
    pub fn size(&self) -> u128 {
        1u128
            .checked_shl(u32::from(self.version().bits() - self.prefix()))
            .unwrap_or(u128::MAX)
    }

    /// Returns the address `offset` above the network address; `None` if that address is outside
    /// the network.
    pub fn nth(&self, offset: u128) -> Option<IpAddr> {
        if offset >= self.size() {
            return None;
        }
        Some(match self.network() {
            IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) + u32::try_from(offset).ok()?).into(),
            IpAddr::V6(a) => Ipv6Addr::from(u128::from(a) + offset).into(),
        })
    }

    /// Returns the offset of `ip` from the network address; `None` if `ip` is outside the network.
    pub fn offset_of(&self, ip: IpAddr) -> Option<u128> {
        if !self.contains(ip) {
            return None;
        }
        match (self.network(), ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => Some(u128::from(u32::from(ip) - u32::from(base))),
            (IpAddr::V6(base), IpAddr::V6(ip)) => Some(u128::from(ip) - u128::from(base)),
            _ => None,
        }
    }
}

impl FromStr for Cidr {
    type Err = CidrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Cidr::parse_with_address(text).map(|(cidr, _)| cidr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network(), self.prefix())
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Ord for Cidr {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.version(), self.network(), self.prefix()).cmp(&(
            other.version(),
            other.network(),
            other.prefix(),
        ))
    }
}

impl PartialOrd for Cidr {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Returns two of the networks that overlap, or are the same. Returns `None` if no address is in
/// two networks.
pub fn first_overlap(networks: impl IntoIterator<Item = Cidr>) -> Option<(Cidr, Cidr)> {
    let mut networks: Vec<Cidr> = networks.into_iter().collect();
    // Of two networks that overlap, the larger one comes first, and contains the networks between
    // the two.
    networks.sort();
    networks
        .windows(2)
        .find(|pair| pair[0].overlaps(&pair[1]))
        .map(|pair| (pair[0], pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_blocks_of_different_sizes_clash() {
        let clash = |a: &str, b: &str| {
            a.parse::<Cidr>()
                .unwrap()
                .conflicts_with(&b.parse().unwrap())
        };
        assert!(clash("10.0.0.0/26", "10.0.0.32/28") && clash("10.0.0.32/28", "10.0.0.0/26"));
        assert!(!clash("10.0.0.0/26", "10.0.0.0/26"));
        assert!(!clash("10.0.0.0/26", "10.0.0.64/26") && !clash("10.0.0.0/8", "fd00::/8"));
    }

    #[test]
    fn overlapping_networks_are_found_in_any_order() {
        let overlap = |networks: &[&str]| {
            let found = first_overlap(networks.iter().map(|network| network.parse().unwrap()));
            found.map(|(first, second)| format!("{first} {second}"))
        };
        assert_eq!(
            overlap(&["10.0.0.0/28", "10.0.0.16/28", "fd00::/124", "10.0.1.0/24"]),
            None
        );
        let nested = overlap(&["10.0.0.64/28", "10.0.0.0/24", "10.1.0.0/24"]);
        assert_eq!(nested.as_deref(), Some("10.0.0.0/24 10.0.0.64/28"));
        assert_eq!(
            overlap(&["fd00::10/124", "fd00::/120"]).as_deref(),
            Some("fd00::/120 fd00::10/124")
        );
        assert_eq!(
            overlap(&["10.0.0.0/28", "10.0.0.0/28"]).as_deref(),
            Some("10.0.0.0/28 10.0.0.0/28")
        );
        assert_eq!(overlap(&[]), None);
    }
}
