//! Blocking routing netlink with pipelining: one send contains several requests, and answers are
//! matched by sequence number.

pub(super) mod address;
mod error;
pub(super) mod link;
pub(super) mod route;
mod socket;

pub(super) use address::{KernelAddress, PermanentNeighbour};
pub use error::NetlinkError;
pub(super) use link::Link;
pub(super) use route::KernelRoute;
pub(super) use socket::{Answer, NetlinkSocket, Request};
