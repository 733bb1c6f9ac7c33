//! Policies, profiles and endpoints in etcd follow Kubernetes: the mirroring controllers at work on a real API server and
//! etcd, and what upstream's controllers were recorded to write.

mod endpoints;
mod names;
mod policies;
mod profiles;
mod recordings;
mod scene;
