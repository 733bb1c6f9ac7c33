//! The objects of one kind on the API server, listed page by page and then watched.
//!
//! Each object of a page or event is decoded separately, so that an unreadable object does not
//! affect others.

mod calico;
mod events;
mod source;

pub use calico::CalicoObjects;
pub use source::{ApiSource, CollectionError, Decode};

#[cfg(test)]
mod tests;
