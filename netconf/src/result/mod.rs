//! The result of an ADD, in memory in the 1.1.0 form.

mod decode;
mod encode;
mod types;

pub use types::{CniResult, Dns, Interface, IpConfig, Route};

pub use crate::ipnet::{IpNet, IpNetParseError};

#[cfg(test)]
mod tests;
