//! ipam-plugin

pub mod logging;
