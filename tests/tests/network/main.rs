//! The network of a pod: interfaces, routes, other plugins and runtimes.

mod busy_addresses;
mod chained_plugins;
mod cnitool;
mod connection_test;
mod dataplane;
mod foreign_ipam;
mod grpc_dataplane;
mod host_interfaces;
mod kernel_model;
mod leaves_no_trace;
mod podman;
