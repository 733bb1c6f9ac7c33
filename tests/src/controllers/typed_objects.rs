//! [`TypedObjects`]: Calico's objects by their types.

use std::path::PathBuf;
use std::time::Duration;

use datastore::Datastore;
use libcalico::kubernetes::ApiGroup;
use libcalico::store::{Entry, Kind, Store, StoreError};
use tokio::runtime::Runtime;

use super::running::calico;

/// Timeout of a request. A test does not repeat a request without a response.
const DEADLINE: Duration = Duration::from_secs(90);

/// A client that reads and writes Calico's objects by their types. Its methods panic if the server
/// refuses a request.
#[allow(missing_debug_implementations, reason = "a part has none")]
pub struct TypedObjects {
    /// The datastore, for other requests than those of the methods.
    pub store: Datastore,
    runtime: Runtime,
}

impl TypedObjects {
    /// Returns a client with the rights of a kubeconfig. `group` is `None` if Calico's objects are
    /// in etcd.
    pub fn new(group: Option<ApiGroup>, kubeconfig: PathBuf) -> TypedObjects {
        TypedObjects {
            store: Datastore::open(&calico(group, kubeconfig, DEADLINE)).unwrap(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
        }
    }

    /// Waits for an operation.
    pub fn wait_on<T>(&self, operation: impl Future<Output = T>) -> T {
        self.runtime.block_on(operation)
    }

    /// Reads an object; `None` if it is missing.
    pub fn get<K: Kind>(&self, key: &K::Key) -> Option<Entry<K>> {
        match self.wait_on(self.store.get::<K>(key)) {
            Err(StoreError::NotFound { .. }) => None,
            found => Some(found.unwrap()),
        }
    }

    /// Reads the objects of a selection.
    pub fn list<K: Kind>(&self, select: &K::Select) -> Vec<Entry<K>> {
        self.wait_on(self.store.list::<K>(select)).unwrap()
    }

    /// Creates an object.
    pub fn create<K: Kind>(&self, key: &K::Key, value: &K) {
        self.wait_on(self.store.create(key, value)).unwrap();
    }

    /// Replaces an object at the revision that was read.
    pub fn update<K: Kind>(&self, found: &Entry<K>) {
        self.wait_on(self.store.update(&found.key, &found.value, &found.revision))
            .unwrap();
    }

    /// Deletes an object.
    pub fn delete<K: Kind>(&self, key: &K::Key) {
        self.wait_on(self.store.delete::<K>(key, None)).unwrap();
    }
}
