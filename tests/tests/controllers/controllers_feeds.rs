//! Watches on real servers with injected faults: subscribers reach the state of the server.

mod etcd;
mod kubernetes;
mod relay;
mod reported;
