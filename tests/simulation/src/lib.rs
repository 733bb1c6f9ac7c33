//! Runs the shipped operations of many nodes in one process, in orders that a seed determines.
//!
//! [`api_server::ApiServer`] is the API server of a simulated cluster.

pub mod api_server;
