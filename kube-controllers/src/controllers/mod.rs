//! The controllers.

pub mod host_endpoints;
pub mod node_deletion;
pub mod node_labels;
mod orchestrated;
mod rounds;
#[cfg(test)]
mod testing;
