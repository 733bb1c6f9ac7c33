//! The result of an ADD, in memory in the 1.1.0 form.

mod decode;
mod encode;
mod types;

pub use types::{CniResult, Dns, Interface, IpConfig, IpNet, IpNetParseError, Route};

#[cfg(test)]
mod tests;
