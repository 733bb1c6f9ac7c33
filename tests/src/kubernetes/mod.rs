//! A real Kubernetes control plane for one private host: etcd and kube-apiserver on loopback, RBAC on, every request in
//! an audit log.
//!
//! Nothing else runs: no controller, no scheduler, no kubelet. What those would write is written by the test, see
//! [`ApiServer::namespace`]. Servers of different hosts have the same addresses and never meet.
//!
//! ```no_run
//! use integration_tests::kubernetes::on_kubernetes;
//!
//! on_kubernetes(|_host, kubernetes| {
//!     let api = &kubernetes.api;
//!     let plugin = api.service_account("kube-system", "calico-cni-plugin").unwrap();
//!     let audit = api.audit().unwrap();
//!     plugin.client.get("/api/v1/nodes/node1").unwrap();
//!     assert_eq!(audit.lines().unwrap(), ["get nodes node1: 403"]);
//! });
//! ```

mod api_server;
mod audit;
mod certificates;
mod client;
mod cni_user;
mod definitions;
mod identity;
mod manifest;
mod objects;
mod programs;
mod role;
mod service_account;

use anyhow::Result;

use crate::etcd::{self, Etcd};
use crate::namespaces::{Host, isolated};
use crate::skip::skipped;

pub use api_server::{ADDRESS, ApiServer, ENDPOINT};
pub use audit::{Audit, Request, rounds, waves};
pub use client::{Answer, Client};
pub use definitions::define_machines;
pub use identity::Identity;
pub use objects::Objects;
pub(crate) use programs::cache;
pub use programs::program;
pub use role::{Permission, Role};
pub use service_account::{Access, ServiceAccount};

/// The servers of one private host. All die with it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Kubernetes {
    /// The API server. Stopped before its store.
    pub api: ApiServer,
    /// What the API server keeps its objects in, below `/registry`.
    pub etcd: Etcd,
}

impl Kubernetes {
    /// Starts both, empty, and waits until they answer.
    pub fn start(host: &Host) -> Result<Kubernetes> {
        let etcd = Etcd::start(host)?;
        Ok(Kubernetes { api: ApiServer::start(host)?, etcd })
    }
}

/// Runs a test on a private host with a control plane.
///
/// # Panics
/// With the test, or when its surroundings cannot be made.
pub fn on_kubernetes(test: impl FnOnce(&Host, &mut Kubernetes) + Send) {
    with_kubernetes(|host, mut kubernetes| test(host, &mut kubernetes));
}

/// The same for a test that takes the control plane apart.
///
/// # Panics
/// With the test, or when its surroundings cannot be made.
pub fn with_kubernetes(test: impl FnOnce(&Host, Kubernetes) + Send) {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    if let Err(missing) = program("kube-apiserver") {
        return skipped(&missing.to_string());
    }
    isolated(|host| test(host, Kubernetes::start(host).unwrap()));
}
