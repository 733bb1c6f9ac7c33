//! Policies, profiles and endpoints in etcd follow Kubernetes: the mirroring controllers on a real API server and etcd,
//! and a comparison with recorded writes of upstream's controllers.

mod endpoints;
mod names;
mod policies;
mod profiles;
mod recordings;
mod scene;
