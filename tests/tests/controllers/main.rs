//! kube-controllers beside real servers.

mod controllers_faults;
mod controllers_feeds;
mod controllers_gc;
mod controllers_leader;
mod controllers_mirrors;
mod controllers_nodes;
mod controllers_rbac;
mod controllers_start;
