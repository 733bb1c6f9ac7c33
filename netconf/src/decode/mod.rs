//! JSON to types: strict about types, with the JSON path in every error.
//!
//! Keys are found exactly, else in any letter case, as Go finds them (CNI-63); `null` is the same as an absent key. Unlike Go,
//! a key that is given twice is an error.

mod document;
mod error;
mod node;
mod scalar;

pub use document::MAX_INPUT;
pub(crate) use document::{Malformed, parse};
pub use error::DecodeError;
pub(crate) use node::{FromNode, Node, Object};

#[cfg(test)]
mod tests;
