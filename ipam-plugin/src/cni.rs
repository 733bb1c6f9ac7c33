//! The CNI face: calls of the plugin, and its verbs. `calico-ipam` by itself and `calico` in process run the same
//! functions on what they read in one batch with their own.

mod add;
mod call;
mod check;
mod del;
mod error;
mod gc;
mod status;
#[cfg(test)]
mod tests;

pub use self::add::{Given, add};
pub use self::call::{IpamCall, Pod};
pub use self::check::{check, differences};
pub use self::del::{del, release_call, release_handles};
pub use self::error::cni_error;
pub use self::gc::{Collected, Leaked, gc, leaked};
pub use self::status::{status, status_of};
pub use crate::read_blocks::attributes_of;
