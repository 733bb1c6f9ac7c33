//! ipam-plugin
