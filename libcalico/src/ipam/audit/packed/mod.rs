//! Objects as the audit keeps them. A large cluster has as many handles and endpoints as addresses, and decoded objects
//! would take several times the memory of their JSON.

mod block;
mod endpoint;
mod handle;
#[cfg(test)]
mod tests;
mod texts;

pub use self::block::{PackedAllocation, PackedBlock};
pub use self::endpoint::PackedEndpoint;
pub use self::handle::PackedHandle;
