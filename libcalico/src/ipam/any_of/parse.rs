//! [`AnyOf::parse`]: the addresses of a fixed list, in its order.

use std::collections::BTreeSet;
use std::net::IpAddr;

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

/// The reason why a list is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnyOfError {
    /// The list has no entry.
    #[error("annotation \"{}\" specified but empty", ANY_OF)]
    Empty,
    /// The list has too many entries.
    #[error(
        "annotation \"{}\" has {found} entries; at most {}",
        ANY_OF,
        MAX_ENTRIES
    )]
    Entries {
        /// The number of entries.
        found: usize,
    },
    /// An entry is neither an address nor a CIDR.
    #[error("invalid IP format: {entry}")]
    Format {
        /// The entry, cut to 100 characters.
        entry: String,
    },
    /// The list has too many addresses of a family.
    #[error(
        "annotation \"{}\" names {found} addresses; at most {} of a family",
        ANY_OF,
        MAX_ADDRESSES
    )]
    Addresses {
        /// The number of addresses.
        found: usize,
    },
    /// A single entry has too many addresses.
    #[error(
        "annotation \"{}\" names {range}, which has more than {} addresses",
        ANY_OF,
        MAX_ADDRESSES
    )]
    Range {
        /// The range of the entry.
        range: Cidr,
    },
    /// The addresses of a family are in too many blocks.
    #[error(
        "annotation \"{}\" names addresses in {found} blocks; at most {} of a family",
        ANY_OF,
        MAX_BLOCKS
    )]
    Blocks {
        /// The number of blocks.
        found: usize,
    },
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
    pub fn parse(texts: &[String]) -> Result<Self, AnyOfError> {
        match texts.len() {
            0 => return Err(AnyOfError::Empty),
            found if found > MAX_ENTRIES => return Err(AnyOfError::Entries { found }),
            _ => {}
        }
        let (mut list, mut seen) = (AnyOf::default(), BTreeSet::new());
        for text in texts {
            let range = range_of(text).ok_or_else(|| AnyOfError::Format {
                entry: text.chars().take(SHOWN).collect(),
            })?;
            if range.size() > MAX_ADDRESSES as u128 {
                return Err(AnyOfError::Range { range });
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
            found if found > MAX_ADDRESSES => Err(AnyOfError::Addresses { found }),
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
