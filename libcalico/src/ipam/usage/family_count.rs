//! [`FamilyCount`]: a number of addresses of each family. The form of large numbers and of families
//! in documents.

use serde::{Serialize, Serializer};

use crate::net::IpVersion;

/// A number of addresses of each family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FamilyCount {
    /// IPv4 addresses.
    pub ipv4: u64,
    /// IPv6 addresses.
    pub ipv6: u64,
}

impl FamilyCount {
    /// Returns the number of addresses of both families.
    pub fn sum(&self) -> u64 {
        self.ipv4 + self.ipv6
    }

    pub(super) fn add(&mut self, version: IpVersion, addresses: u64) {
        match version {
            IpVersion::V4 => self.ipv4 += addresses,
            IpVersion::V6 => self.ipv6 += addresses,
        }
    }
}

/// Serializes a number of addresses. Numbers beyond 64 bits become text, because JSON readers would
/// round them.
pub fn exact_number<S: Serializer>(number: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    match u64::try_from(*number) {
        Ok(number) => serializer.serialize_u64(number),
        Err(_) => serializer.collect_str(number),
    }
}

/// Serializes a family as 4 or 6.
pub(super) fn family_number<S: Serializer>(
    version: &IpVersion,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(if *version == IpVersion::V4 { 4 } else { 6 })
}
