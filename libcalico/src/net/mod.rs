//! Addresses and ranges.

mod cidr;

pub use cidr::{Cidr, CidrParseError, IpVersion};
