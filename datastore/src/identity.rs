//! The identity of a datastore, which does not depend on the configured endpoints or paths.

use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::kubernetes::Namespace;
use libcalico::store::{Store, StoreError};

use crate::Datastore;

/// A namespace that every cluster has from its creation and never deletes.
const FIRST_NAMESPACE: &str = "kube-system";

impl Datastore {
    /// Reads the identity of the datastore with one request: the UID of the namespace `kube-system`, the `clusterGUID`
    /// of etcd's ClusterInformation, or the ID in the embedded datastore's file. Returns `None` if the datastore has no
    /// identity yet.
    ///
    /// # Errors
    /// The datastore is unreachable, or rejects the request.
    pub async fn identity(&self) -> Result<Option<String>, StoreError> {
        let (kind, id) = match self {
            Datastore::Kubernetes(api) => {
                let namespace = api.get::<Namespace>(&ObjectKey::global(FIRST_NAMESPACE)).await?;
                ("kubernetes", namespace.value.metadata.uid)
            }
            Datastore::Etcd(etcd) => {
                let cluster = etcd.get::<ClusterInformation>(&ObjectKey::global("default")).await?;
                ("etcd", cluster.value.spec.cluster_guid)
            }
            Datastore::Local(local) => ("local", local.identity()?),
        };
        Ok((!id.is_empty()).then(|| format!("{kind} {id}")))
    }
}
