//! [`AnyOf::parse`]: the addresses of a fixed list, in its order.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::failure::Failure;
use crate::net::{Cidr, IpVersion};

/// The annotation of a pod that contains a fixed list.
pub const ANY_OF: &str = "cni.projectcalico.org/ipAddrsAnyOf";

/// Maximum number of entries of a list.
pub(super) const MAX_ENTRIES: usize = 64;

/// Maximum number of addresses of a family.
pub(super) const MAX_ADDRESSES: usize = 256;

/// Maximum number of blocks that contain the addresses of a family.
pub(super) const MAX_BLOCKS: usize = 64;

/// Maximum number of characters of an entry in an error.
const SHOWN: usize = 100;

/// The addresses of a fixed list, in its order and without repetitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnyOf {
    /// The IPv4 addresses.
    pub v4: Vec<IpAddr>,
    /// The IPv6 addresses.
    pub v6: Vec<IpAddr>,
}

/// Returns the range of an entry. An IPv4 address in the form of IPv6 counts as IPv4.
fn range_of(text: &str) -> Option<Cidr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(Cidr::host(ip.to_canonical()));
    }
    let (range, address) = Cidr::parse_with_address(text).ok()?;
    match address.to_canonical() {
        ip @ IpAddr::V4(_) if address.is_ipv6() => Cidr::new(ip, range.prefix().checked_sub(96)?),
        _ => Some(range),
    }
}

impl AnyOf {
    /// Parses the entries of a list: addresses, and CIDRs that stand for all their addresses.
    pub fn parse(texts: &[String]) -> Result<Self, Failure> {
        match texts.len() {
            0 => {
                return Err(Failure::new(format_args!(
                    "annotation \"{ANY_OF}\" specified but empty"
                )));
            }
            found if found > MAX_ENTRIES => {
                return Err(Failure::new(format_args!(
                    "annotation \"{ANY_OF}\" has {found} entries"
                ))
                .way_out(format!("at most {MAX_ENTRIES}")));
            }
            _ => {}
        }
        let (mut list, mut seen) = (AnyOf::default(), BTreeSet::new());
        for text in texts {
            let range = range_of(text).ok_or_else(|| {
                let entry: String = text.chars().take(SHOWN).collect();
                Failure::new("invalid IP format").because(entry)
            })?;
            if range.size() > MAX_ADDRESSES as u128 {
                return Err(Failure::new(format_args!(
                    "annotation \"{ANY_OF}\" names {range}, which has more than {MAX_ADDRESSES} \
                     addresses"
                )));
            }
            let family = if range.version() == IpVersion::V4 {
                &mut list.v4
            } else {
                &mut list.v6
            };
            family.extend(
                (0..range.size())
                    .filter_map(|offset| range.nth(offset))
                    .filter(|ip| seen.insert(*ip)),
            );
        }
        match list.v4.len().max(list.v6.len()) {
            found if found > MAX_ADDRESSES => Err(Failure::new(format_args!(
                "annotation \"{ANY_OF}\" names {found} addresses"
            ))
            .way_out(format!("at most {MAX_ADDRESSES} of a family"))),
            _ => Ok(list),
        }
    }

    /// Returns the addresses of a family.
    pub fn of(&self, version: IpVersion) -> &[IpAddr] {
        match version {
            IpVersion::V4 => &self.v4,
            IpVersion::V6 => &self.v6,
        }
    }

    /// Returns the families of which the list has an address.
    pub fn families(&self) -> impl Iterator<Item = IpVersion> {
        [IpVersion::V4, IpVersion::V6]
            .into_iter()
            .filter(|version| !self.of(*version).is_empty())
    }
}
