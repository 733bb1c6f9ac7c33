//! The mirroring controllers on a real API server and etcd.

mod endpoints;
mod mirrored_cluster;
mod names;
mod policies;
mod profiles;
mod recordings;
