//! Decodes JSON into types. Every [`DecodeError`] has the JSON path of the value.
//!
//! Keys match in any letter case, as in Go (CNI-63), and `null` means an absent key. Unlike in Go,
//! a key that is given twice is an error.

mod document;
mod node;
mod scalar;

pub use document::{DecodeError, MAX_INPUT};
pub(crate) use document::{Malformed, parse};
pub(crate) use node::{FromNode, FromObject, Node, Object, read_fields};

#[cfg(test)]
mod tests;
