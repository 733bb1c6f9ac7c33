//! The CNI face: calls of the plugin, and its verbs.

mod call;

pub use call::{IpamCall, Pod};
