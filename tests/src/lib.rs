//! The harness of the integration suites: private hosts, real datastores, the shipped binaries and what they leave
//! behind.
//!
//! A suite in `tests/tests/` asks [`namespaces::isolated`] for a private host, starts a datastore in it
//! ([`etcd`] or the embedded one, see [`store`]), calls the plugins by exec ([`plugin`]) and looks at the kernel
//! ([`kernel`]) and the datastore. [`golden`] replays recordings of upstream. What this machine lacks is skipped
//! through [`skip`] alone, which refuses to skip in CI.

pub mod accounts;
pub mod clock;
pub mod cluster;
pub mod command;
pub mod content;
pub mod controllers;
pub mod etcd;
pub mod golden;
pub mod images;
pub mod installation;
pub mod kernel;
pub mod kubernetes;
pub mod machine;
pub mod manifests;
pub mod namespaces;
pub mod neighbours;
pub mod node;
pub mod node_pod;
pub mod plugin;
pub mod proxy;
pub mod seeds;
mod server_process;
pub mod skip;
pub mod store;
