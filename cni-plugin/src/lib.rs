//! cni-plugin

pub mod dataplane;
