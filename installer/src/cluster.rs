//! Creates the ClusterInformation, without which Calico's plugins do not work (INST-61), and on
//! request the first pools (INST-62) and the settings of IPAM.
//!
//! - On an API server the pod's account creates them, because the plugins' account may not.
//! - On etcd only the plugins' credentials are available. The Node is created as well, because IPAM
//!   needs it; on an API server kubelet creates it.
//! - In the embedded datastore nothing is created.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use datastore::bootstrap::{FirstPoolError, ensure_first_pool, ensure_ipam_config, ensure_node};
use datastore::{Datastore, Kubernetes, KubernetesConfig};
use libcalico::api::{IpPool, Node, NodeSpec, OrchRef};
use libcalico::failure::{Failure, OrFail};
use libcalico::ipam::IpamConfig;
use libcalico::kubernetes::ApiGroup;
use libcalico::store::StoreError;
use netconf::NetConf;
use netconf::conf::{self, DatastoreType};
use node_process::{node_name, process};

use installation::node_conf;
use installation::service_account::ServiceAccount;
use installation::settings::{PoolRequest, Settings};

/// Time limit for one request.
const DEADLINE: Duration = Duration::from_secs(10);

/// Reasons why the objects cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Another reason.
    #[error("{0}")]
    Failure(Failure),
    /// etcd does not respond.
    #[error(
        "{0}; this run cannot create the Node in etcd, without which no pod gets an address; \
         correct ETCD_ENDPOINTS, or find the cause with `etcdctl endpoint health`"
    )]
    EtcdUnreachable(StoreError),
}

impl From<Failure> for ClusterError {
    fn from(failure: Failure) -> Self {
        ClusterError::Failure(failure)
    }
}

impl ClusterError {
    /// Returns true if etcd did not respond, so that a retry may succeed.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, ClusterError::EtcdUnreachable(_))
    }

    /// Returns the error of an operation on `store`. The way out is not for an unreachable etcd.
    fn of(store: &Datastore, operation: impl Display, source: StoreError, way_out: String) -> Self {
        match store {
            Datastore::Etcd(_) if source.is_unavailable() => ClusterError::EtcdUnreachable(source),
            Datastore::Etcd(_) | Datastore::Kubernetes(_) | Datastore::Local(_) => {
                let failure = Failure::new(operation).because(source);
                ClusterError::Failure(failure.way_out(way_out))
            }
        }
    }
}

/// Creates the missing ones of these objects in the datastore of `conf`, the configuration of
/// Calico's plugin: the ClusterInformation, the requested pools and settings of IPAM, and on etcd
/// the Node. `pod` is the account of this pod, `None` outside of a pod.
///
/// Creates nothing if `conf` is `None`, if the datastore is a file, or if it is an API server and
/// `pod` is `None`.
pub fn ensure(
    conf: Option<&NetConf>,
    pod: Option<&ServiceAccount>,
    settings: &Settings,
) -> Result<(), ClusterError> {
    let Some(conf) = conf else {
        warn_skipped(
            settings,
            "Calico's plugin is not in the configuration, so its datastore is unknown",
        );
        return Ok(());
    };
    let (store, requester) = match conf.datastore.kind() {
        DatastoreType::Kubernetes => {
            let Some(pod) = pod else {
                warn_skipped(
                    settings,
                    "there is no service account outside of a pod; create it with kubectl",
                );
                return Ok(());
            };
            let access = KubernetesConfig {
                group: configured_group(conf),
                ..pod.access(DEADLINE)?
            };
            (
                Datastore::Kubernetes(Arc::new(Kubernetes::long_running(&access))),
                "this pod's service account",
            )
        }
        DatastoreType::Etcdv3 => {
            let (_, store) = node_conf::datastore(conf, DEADLINE).or_fail("etcd")?;
            (store, "the configuration's user of etcd")
        }
        DatastoreType::Local => {
            warn_skipped(
                settings,
                "the datastore is a file of this node; use `calico-ipam init` and `apply`",
            );
            return Ok(());
        }
    };
    process::block_on(create_missing(&store, requester, conf, settings))
}

async fn create_missing(
    store: &Datastore,
    requester: &'static str,
    conf: &NetConf,
    settings: &Settings,
) -> Result<(), ClusterError> {
    let is_created = store.ensure_cluster_information().await.map_err(|source| {
        let way_out = format!(
            "if the request is forbidden, allow {requester} to get and create \
             clusterinformations, or start kube-controllers"
        );
        let operation = "cannot get or create ClusterInformation default";
        ClusterError::of(store, operation, source, way_out)
    })?;
    if is_created {
        tracing::info!("created ClusterInformation default");
    }
    if let Some(node) = node(conf, settings) {
        let name = node.metadata.name.clone();
        let is_created = ensure_node(store, node).await.map_err(|source| {
            let way_out = format!(
                "if the request is forbidden, allow {requester} to get and create nodes, or run \
                 `calico-ipam init --node {name}`"
            );
            let operation = format_args!("cannot get or create Node {name}");
            ClusterError::of(store, operation, source, way_out)
        })?;
        if is_created {
            tracing::info!("created Node {name}");
        }
    }
    if settings.strict_affinity {
        let config = IpamConfig {
            strict_affinity: true,
            ..IpamConfig::absent()
        };
        let existing = ensure_ipam_config(store, &config).await.map_err(|source| {
            let way_out = format!(
                "if the request is forbidden, allow {requester} to get and create ipamconfigs \
                 (ipamconfigurations in projectcalico.org), or set \
                 CALICO_IPAM_STRICT_AFFINITY=false"
            );
            let operation = "cannot get or create IPAMConfig default";
            ClusterError::of(store, operation, source, way_out)
        })?;
        match existing {
            None => tracing::info!("created IPAMConfig default, with strictAffinity"),
            Some(existing) if !existing.strict_affinity => {
                tracing::warn!(
                    hint = "kubectl patch it, or on etcd: calicoctl ipam configure --strictaffinity=true",
                    "the existing IPAMConfig has strictAffinity: false and stays"
                );
            }
            Some(_) => {}
        }
    }
    for request in &settings.pools {
        let pool = IpPool::new(request.name, request.spec.clone());
        let is_created = ensure_first_pool(store, pool).await.map_err(|error| {
            let way_out = format!(
                "if a request is forbidden, allow {requester} to list and create ippools, or \
                 apply an IPPool"
            );
            let operation = "cannot create the first IPPool";
            match error {
                FirstPoolError::Store(source) => {
                    ClusterError::of(store, operation, source, way_out)
                }
                error => Failure::new(operation)
                    .because(error)
                    .way_out(way_out)
                    .into(),
            }
        })?;
        if is_created {
            tracing::info!("created IPPool {}, {}", request.name, request.spec.cidr);
        }
    }
    Ok(())
}

fn warn_skipped(settings: &Settings, reason: &str) {
    for object in requested(settings) {
        tracing::warn!("{object}, is not created: {reason}");
    }
}

/// Returns descriptions of the objects that the settings request.
fn requested(settings: &Settings) -> Vec<String> {
    let pool = |request: &PoolRequest| format!("IPPool {}, {}", request.name, request.spec.cidr);
    let config = settings
        .strict_affinity
        .then(|| "IPAMConfig default, with strictAffinity".to_owned());
    settings.pools.iter().map(pool).chain(config).collect()
}

/// Returns the API group that the configuration names, or `None` if the group must be discovered.
pub fn configured_group(conf: &NetConf) -> Option<ApiGroup> {
    conf.datastore.calico_api_group.map(|group| match group {
        conf::ApiGroup::CrdV1 => ApiGroup::CrdV1,
        conf::ApiGroup::V3 => ApiGroup::V3,
    })
}

/// Returns the Node to create in etcd. It refers to the Kubernetes node: without this reference
/// kube-controllers would never delete the Node. Returns `None` for another datastore, or if the
/// name of the Node or of the Kubernetes node is unknown.
fn node(conf: &NetConf, settings: &Settings) -> Option<Node> {
    let kubernetes_node = match conf.datastore.kind() {
        DatastoreType::Etcdv3 => settings.node_name.as_ref()?,
        DatastoreType::Kubernetes | DatastoreType::Local => return None,
    };
    let name = node_name::from_conf(conf).ok()?;
    let reference = OrchRef {
        node_name: kubernetes_node.clone(),
        orchestrator: "k8s".into(),
        ..OrchRef::default()
    };
    Some(Node::new(
        &name,
        NodeSpec {
            orch_refs: vec![reference],
            ..NodeSpec::default()
        },
    ))
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;

    use super::*;

    fn conf(text: &str) -> NetConf {
        NetConf::parse(text.as_bytes()).unwrap()
    }

    fn settings(variables: &[(&str, &str)]) -> Settings {
        let lookup = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Settings::from_environment(Variables::new(&lookup), "host").unwrap()
    }

    #[test]
    fn api_group_is_read_from_the_configuration() {
        let v1 = r#"{"type": "calico", "Datastore_Type": "kubernetes", "calico_api_group": "crd.projectcalico.org/v1"}"#;
        assert_eq!(configured_group(&conf(v1)), Some(ApiGroup::CrdV1));
        assert_eq!(configured_group(&conf(r#"{"type": "calico"}"#)), None);
    }

    #[test]
    fn objects_that_the_settings_request_are_listed_for_the_warning() {
        assert_eq!(requested(&settings(&[])), [""; 0]);
        let pool = ("CALICO_IPV4POOL_CIDR", "10.65.0.0/16");
        assert_eq!(
            requested(&settings(&[pool, ("CALICO_IPAM_STRICT_AFFINITY", "true")])),
            [
                "IPPool default-ipv4-ippool, 10.65.0.0/16",
                "IPAMConfig default, with strictAffinity"
            ]
        );
    }

    #[test]
    fn etcd_node_has_the_plugins_node_name_and_a_kubernetes_reference() {
        let etcd = r#"{"type": "calico", "etcd_endpoints": "https://etcd:2379", "nodename": "calicos",
            "nodename_file": "/no/such/file"}"#;
        let named = settings(&[("KUBERNETES_NODE_NAME", "kubernetes")]);
        let created = node(&conf(etcd), &named).unwrap();
        assert_eq!(
            (
                created.metadata.name.as_str(),
                created.spec.kubernetes_name()
            ),
            ("calicos", Some("kubernetes"))
        );
        assert_eq!(node(&conf(etcd), &settings(&[])), None);
        assert_eq!(
            node(&conf(r#"{"type": "calico", "nodename": "n"}"#), &named),
            None
        );
    }
}
