//! A real Kubernetes control plane for one private host: etcd and kube-apiserver on loopback, with
//! RBAC and an audit log of the requests.
//!
//! No controller, scheduler or kubelet runs: the test writes their objects. Servers of different
//! hosts have the same addresses but cannot reach each other.
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
pub mod node_restriction;
mod objects;
mod programs;
mod role;
mod service_account;
mod shared;

use anyhow::Result;

use crate::etcd::{self, Etcd};
use crate::namespaces::{Host, isolated};
use crate::skip::skipped;

pub use api_server::{ADDRESS, ApiServer, ENDPOINT};
pub use audit::{Audit, Request, rounds, waves};
pub use client::{Answer, Client};
pub use identity::Identity;
pub use objects::Objects;
pub use programs::{oldest_version, program};
pub use role::{Permission, Role};
pub use service_account::{Access, ServiceAccount, token_in, token_path, token_request};
pub use shared::{on_prepared_kubernetes, on_shared_kubernetes};

/// The servers of one private host. They end with the host.
#[derive(Debug)]
#[non_exhaustive]
pub struct Kubernetes {
    /// The API server. Declared first so that it stops before its etcd.
    pub api: ApiServer,
    /// The etcd with the API server's objects, below `/registry`.
    pub etcd: Etcd,
}

impl Kubernetes {
    /// Starts both servers, empty, and waits until they respond.
    pub fn start(host: &Host) -> Result<Kubernetes> {
        let etcd = Etcd::start(host)?;
        Ok(Kubernetes {
            api: ApiServer::start(host)?,
            etcd,
        })
    }
}

/// Runs a test on a private host with a control plane of its own. Most tests need none, see
/// [`on_shared_kubernetes`].
pub fn on_kubernetes(test: impl FnOnce(&Host, Kubernetes) + Send) {
    if installed() {
        isolated(|host| test(host, Kubernetes::start(host).unwrap()));
    }
}

/// Returns true if etcd and the API server of the oldest supported version are installed. Skips the
/// calling test otherwise.
pub fn is_oldest_installed() -> bool {
    let missing = match programs::oldest_api_server() {
        _ if !Etcd::installed() => etcd::REQUIRES.to_owned(),
        Ok(_) => return true,
        Err(missing) => missing.to_string(),
    };
    skipped(&missing);
    false
}

/// Returns true if both servers are installed. Skips the calling test otherwise.
fn installed() -> bool {
    let missing = match program("kube-apiserver") {
        _ if !Etcd::installed() => etcd::REQUIRES.to_owned(),
        Err(missing) => missing.to_string(),
        Ok(_) => return true,
    };
    skipped(&missing);
    false
}
