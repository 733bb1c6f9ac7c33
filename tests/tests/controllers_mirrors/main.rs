//! The mirroring controllers on a real API server and etcd.

mod endpoints;
mod names;
mod policies;
mod profiles;
mod recordings;
mod scene;
