//! What a cluster without calico-node lacks: the ClusterInformation, without which no plugin works (INST-61), and on request
//! the first pools (INST-62). By the account of the pod, as the plugins' own may do neither.

use std::sync::Arc;
use std::time::Duration;

use datastore::first_use::{FirstPoolError, ensure_first_pool};
use datastore::{Datastore, Kubernetes, KubernetesConfig};
use ipam_plugin::process;
use libcalico::api::IpPool;
use libcalico::kubernetes::ApiGroup;
use libcalico::store::StoreError;
use netconf::list::calico_plugin;
use serde_json::{Map, Value};

use crate::service_account::{ServiceAccount, ServiceAccountError};
use crate::settings::PoolRequest;

/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why the cluster stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The pod's own account.
    #[error(transparent)]
    Account(#[from] ServiceAccountError),
    /// The ClusterInformation.
    #[error(
        "ClusterInformation default cannot be looked for and made: {0}; let this pod's service account get and create \
         clusterinformations, or start kube-controllers"
    )]
    Information(#[source] StoreError),
    /// A pool.
    #[error("the first pool cannot be made: {0}; let this pod's service account list and create ippools, or apply one")]
    Pool(#[source] FirstPoolError),
}

/// Adds what is missing, if `conf` says that the API server is the datastore.
///
/// # Errors
/// The API server is out of reach, or refuses.
pub fn ensure(conf: &Map<String, Value>, account: &ServiceAccount, pools: &[PoolRequest]) -> Result<(), ClusterError> {
    let Some(group) = group_of(conf) else { return Ok(()) };
    let access = KubernetesConfig { group, ..account.access(DEADLINE)? };
    let store = Datastore::Kubernetes(Arc::new(Kubernetes::lasting(&access)));
    process::block_on(async {
        if store.ensure_cluster_information().await.map_err(ClusterError::Information)? {
            tracing::info!("made ClusterInformation default");
        }
        for PoolRequest { name, spec } in pools {
            let pool = IpPool::new(*name, spec.clone());
            if ensure_first_pool(&store, pool).await.map_err(ClusterError::Pool)? {
                tracing::info!("made IPPool {name}, {}", spec.cidr);
            }
        }
        Ok(())
    })
}

/// The API group that Calico's objects are in, `Some(None)` when it has to be asked for; `None` when they are in another
/// datastore.
fn group_of(conf: &Map<String, Value>) -> Option<Option<ApiGroup>> {
    let plugin = calico_plugin(Value::Object(conf.clone())).ok()?;
    let text = |key: &str| plugin.get(key).and_then(Value::as_str).unwrap_or_default();
    (text("datastore_type") == "kubernetes").then(|| ApiGroup::from_config(text("calico_api_group")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::parse;

    #[test]
    fn the_configuration_tells_where_calicos_objects_are() {
        let group = |text: &str| group_of(&parse(text).unwrap());
        let v1 = r#"{"plugins": [{"type": "calico", "datastore_type": "kubernetes",
            "calico_api_group": "crd.projectcalico.org/v1"}]}"#;
        assert_eq!(group(v1), Some(Some(ApiGroup::CrdV1)));
        assert_eq!(group(r#"{"type": "calico", "datastore_type": "kubernetes"}"#), Some(None));
        for elsewhere in ["{}", r#"{"type": "calico"}"#, r#"{"type": "calico", "datastore_type": "etcdv3"}"#] {
            assert_eq!(group(elsewhere), None, "{elsewhere}");
        }
    }
}
