//! The harness of the integration suites: private hosts, real datastores, the built programs and
//! inspection of the state that they leave.
//!
//! Most suites in `tests/tests/` get a private host from [`namespaces::isolated`], start a
//! datastore in it ([`store`]), execute the plugins ([`plugin`]) and inspect the kernel
//! ([`kernel`]) and the datastore. [`golden`] replays recordings of upstream. A test that needs a
//! missing program calls [`skip`].

pub mod accounts;
pub mod clock;
pub mod cluster;
pub mod command;
pub mod content;
pub mod controllers;
pub mod etcd;
pub mod forward_proxy;
pub mod golden;
pub mod images;
pub mod installation;
pub mod journal;
pub mod kernel;
pub mod kubernetes;
pub mod machine;
pub mod manifests;
pub mod memo;
pub mod migration;
pub mod namespaces;
pub mod neighbours;
pub mod node;
pub mod node_pod;
pub mod plugin;
pub mod proxy;
pub mod runtime;
pub mod seeds;
pub mod server_process;
pub mod shared_files;
pub mod skip;
pub mod store;

/// The crates of the programs, each a folder of the workspace.
pub const PROGRAM_CRATES: [&str; 15] = [
    "netconf",
    "libcalico",
    "os",
    "node-process",
    "datastore",
    "dataplane",
    "allocation",
    "ipam-plugin",
    "installation",
    "installer",
    "node-agent",
    "doctor",
    "node-commands",
    "cni-plugin",
    "kube-controllers",
];
