//! Real datastores for the tests of this crate: etcd servers, and SQLite files in temporary
//! directories.

pub mod certificates;
pub mod etcd;
pub mod port;
pub mod proxy;

use std::future::Future;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use datastore::config::{EtcdConfig, LocalConfig};
use datastore::{Datastore, DatastoreConfig};
use libcalico::api::{IpPool, IpPoolSpec, ObjectKey};
use tempfile::TempDir;

use etcd::EtcdServer;

pub const DEADLINE: Duration = Duration::from_secs(20);

/// A datastore that can be opened many times.
pub struct Fixture {
    pub config: DatastoreConfig,
    _directory: Option<TempDir>,
    _server: Option<EtcdServer>,
}

impl Fixture {
    /// Returns the etcd server that the tests of this process share. Each test must use its own
    /// object names.
    pub fn etcd() -> Self {
        static SERVER: OnceLock<EtcdServer> = OnceLock::new();
        let server = SERVER.get_or_init(EtcdServer::start);
        Fixture {
            config: etcd_config(&[&server.url]),
            _directory: None,
            _server: None,
        }
    }

    /// Starts an etcd server without objects of other tests.
    pub fn own_etcd() -> Self {
        let server = EtcdServer::start();
        Fixture {
            config: etcd_config(&[&server.url]),
            _directory: None,
            _server: Some(server),
        }
    }

    /// Returns the path of a SQLite file in a new directory. The first request creates the file.
    pub fn local() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = local_config(directory.path().join("calico.db"));
        Fixture {
            config,
            _directory: Some(directory),
            _server: None,
        }
    }

    pub fn open(&self) -> Datastore {
        Datastore::open(&self.config).unwrap()
    }
}

/// Returns the arguments that make this test program run the `#[ignore]`d test `worker` of the
/// module `path`, a `module_path!()`.
pub fn worker_arguments(path: &str, worker: &str) -> [String; 4] {
    let module = path.split_once("::").map_or("", |(_, module)| module);
    let test = format!("{module}::{worker}");
    ["--exact", &test, "--ignored", "--nocapture"].map(str::to_owned)
}

pub fn etcd_config(endpoints: &[&str]) -> DatastoreConfig {
    let endpoints = endpoints.iter().map(|e| (*e).to_owned()).collect();
    DatastoreConfig::Etcd(Box::new(EtcdConfig {
        endpoints,
        tls: None,
        credentials: None,
        deadline: DEADLINE,
    }))
}

pub fn local_config(path: PathBuf) -> DatastoreConfig {
    DatastoreConfig::Local(LocalConfig {
        path,
        deadline: DEADLINE,
    })
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Returns a pool with the unknown field `marker`.
pub fn pool(name: &str, marker: &str) -> (ObjectKey, IpPool) {
    let mut spec = IpPoolSpec::default();
    spec.unknown.insert("marker".into(), marker.into());
    (ObjectKey::global(name), IpPool::new(name, spec))
}

pub fn marker(pool: &IpPool) -> &str {
    pool.spec.unknown["marker"].as_str().unwrap()
}
