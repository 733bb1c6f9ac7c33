//! The CNI operations ADD, DEL, CHECK, STATUS and GC. `calico-ipam` calls these functions as a
//! separate process, and `calico` in its own process. Rare futures are boxed, for the reason in
//! [`allocation::alloc`].

mod add;
mod call;
mod check;
mod del;
mod gc;
mod release;
mod status;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use self::add::{AddResult, add};
pub use self::call::{IpamRequest, Pod};
pub use self::check::{check, differences};
pub use self::del::{del, release_call, release_handles, release_ownership};
pub use self::gc::{GcResult, Leak, LeakedAddresses, gc, leaked};
pub use self::release::{Leaving, ReleaseStep};
pub use self::status::{status, status_of};
