//! The plugins of a network configuration, both ours and those that other programs added. The merge
//! is pure.
//!
//! "Foreign" means added by another program or a person. Read `chain`, `rendering` and `merged` in
//! this order.

mod chain;
mod entry;
mod merged;
mod rendering;

pub use self::chain::{Chain, read_chain};
pub use self::entry::{Entry, EntryRelation, Verbatim, kind};
pub use self::merged::{Merged, Rendered};
pub use self::rendering::Rendering;

#[cfg(test)]
mod tests;
