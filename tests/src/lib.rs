//! The harness of the integration suites: private hosts, real datastores, the built programs and
//! inspection of the state that they leave.
//!
//! Three fixtures give a test its world:
//!
//! | fixture | a test gets |
//! |---|---|
//! | [`namespaces::isolated`] | a private host: network namespaces and files of its own |
//! | [`cluster::on()`] | a host with an uplink, the plugins and a datastore, and pods |
//! | [`controllers::on`](fn@controllers::on) | running kube-controllers, and a cluster for them |
//!
//! The attribute [`on`](macro@on) runs a test on each of several datastores. A test executes the
//! plugins ([`plugin`]), and inspects the kernel ([`kernel`]) and the datastore ([`store`]).
//! [`golden`] replays recordings of upstream. A test that needs a missing program calls [`skip`].

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
pub mod place;
pub mod plugin;
pub mod proxy;
pub mod runtime;
pub mod seeds;
pub mod server_process;
pub mod shared_files;
pub mod store;

pub use ::on::on;
pub use place::Place;
pub use repository::{PROGRAM_CRATES, installed, skip};
