//! What tests of controllers have in common.

use std::sync::Arc;

use datastore::config::{DEFAULT_DEADLINE, LocalConfig};
use datastore::{Datastore, DatastoreConfig};

use crate::context::Mode;
use crate::settings::{Environment, Settings, default_configuration, merge};

/// An embedded datastore in a directory that goes with it. It has transactions, as etcd has.
pub(super) fn embedded() -> (tempfile::TempDir, Arc<Datastore>) {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalConfig { path: dir.path().join("calico.db"), deadline: DEFAULT_DEADLINE };
    let store = Datastore::open(&DatastoreConfig::Local(local)).unwrap();
    (dir, Arc::new(store))
}

/// What is in force where nobody says anything.
pub(crate) fn settings() -> Settings {
    let environment = Environment::read(|_| None).unwrap();
    merge(&environment, &default_configuration(), Mode::Etcd).settings
}

/// An API server that answers every request for a path with this JSON.
pub(super) fn kubernetes(
    answer: impl Fn(&hyper::Uri) -> serde_json::Value + Clone + Send + Sync + 'static,
) -> kube::Client {
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let body = answer(request.uri()).to_string().into_bytes();
        async move { Ok::<_, std::convert::Infallible>(hyper::Response::new(kube::client::Body::from(body))) }
    });
    kube::Client::new(service, "default")
}
