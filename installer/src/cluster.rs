//! What a cluster without calico-node lacks: the ClusterInformation, without which no plugin works (INST-61), and on
//! request the first pools (INST-62). In Kubernetes by the account of the pod, as the plugins' own may do neither; in
//! an etcd by the plugins' way in, which is the only one, and there the Node as well, without which IPAM gives no
//! address: in Kubernetes kubelet makes it.

use std::sync::Arc;
use std::time::Duration;

use datastore::first_use::{FirstPoolError, ensure_first_pool, ensure_node};
use datastore::{Datastore, Kubernetes, KubernetesConfig};
use ipam_plugin::{node_name, process};
use libcalico::api::{IpPool, Node, NodeSpec, OrchRef};
use libcalico::kubernetes::ApiGroup;
use libcalico::store::StoreError;
use netconf::NetConf;
use netconf::conf::{self, DatastoreType};

use crate::node_conf;
use crate::service_account::{ServiceAccount, ServiceAccountError};
use crate::settings::Settings;

/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why the cluster stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The pod's own account.
    #[error(transparent)]
    Account(#[from] ServiceAccountError),
    /// The way into etcd.
    #[error("etcd: {0}")]
    Etcd(String),
    /// An etcd that does not answer, in which nobody else may make the Node.
    #[error(
        "{0}; correct ETCD_ENDPOINTS or look for what is in the way (`etcdctl endpoint health`): there this run makes the Node, \
         without which no pod gets an address"
    )]
    Silent(StoreError),
    /// The ClusterInformation.
    #[error(
        "ClusterInformation default cannot be looked for and made: {source}; let {who} get and create \
         clusterinformations, or start kube-controllers"
    )]
    Information {
        /// Who tried.
        who: &'static str,
        /// Why.
        source: StoreError,
    },
    /// The Node.
    #[error(
        "Node {name} cannot be looked for and made: {source}; let {who} get and create nodes, or run \
         `calico-ipam init --node {name}`"
    )]
    Node {
        /// Its name.
        name: String,
        /// Who tried.
        who: &'static str,
        /// Why.
        source: StoreError,
    },
    /// A pool.
    #[error("the first pool cannot be made: {source}; let {who} list and create ippools, or apply one")]
    Pool {
        /// Who tried.
        who: &'static str,
        /// Why.
        source: Box<FirstPoolError>,
    },
}

impl ClusterError {
    /// Whether the same may work a little later.
    pub fn is_silence(&self) -> bool {
        matches!(self, ClusterError::Silent(_))
    }

    /// The same of an etcd: one that does not answer is another matter than one that refuses.
    fn of_etcd(self) -> ClusterError {
        match self {
            ClusterError::Information { source, .. } | ClusterError::Node { source, .. } if source.is_unavailable() => {
                ClusterError::Silent(source)
            }
            ClusterError::Pool { who, source } => match *source {
                FirstPoolError::Store(source) if source.is_unavailable() => ClusterError::Silent(source),
                source => ClusterError::Pool { who, source: Box::new(source) },
            },
            error => error,
        }
    }
}

/// Adds what is missing where `conf`, which Calico's plugin reads, says that Calico's objects are; says what it leaves
/// out. Outside of a pod there is no `account`, and an etcd needs none.
///
/// # Errors
/// The datastore is out of reach, or refuses.
pub fn ensure(
    conf: Option<&NetConf>,
    account: Option<&ServiceAccount>,
    settings: &Settings,
) -> Result<(), ClusterError> {
    let Some(conf) = conf else {
        leave_out(settings, "Calico's plugin is not in the configuration, so that its datastore is not known");
        return Ok(());
    };
    let (store, who) = match conf.datastore.kind() {
        DatastoreType::Kubernetes => {
            let Some(account) = account else {
                leave_out(settings, "outside of a pod there is no account to make it with: apply it");
                return Ok(());
            };
            let access = KubernetesConfig { group: group_of(conf), ..account.access(DEADLINE)? };
            (Datastore::Kubernetes(Arc::new(Kubernetes::lasting(&access))), "this pod's service account")
        }
        DatastoreType::Etcdv3 => {
            let (_, store) = node_conf::datastore(conf, DEADLINE).map_err(ClusterError::Etcd)?;
            (store, "the configuration's user of etcd")
        }
        DatastoreType::Local => {
            leave_out(settings, "the datastore is a file of this node alone: run `calico-ipam init`");
            return Ok(());
        }
    };
    let done = process::block_on(add_missing(&store, who, conf, settings));
    done.map_err(|error| if conf.datastore.kind() == DatastoreType::Etcdv3 { error.of_etcd() } else { error })
}

async fn add_missing(
    store: &Datastore,
    who: &'static str,
    conf: &NetConf,
    settings: &Settings,
) -> Result<(), ClusterError> {
    let made = store.ensure_cluster_information().await;
    if made.map_err(|source| ClusterError::Information { who, source })? {
        tracing::info!("made ClusterInformation default");
    }
    if let Some(node) = node(conf, settings) {
        let name = node.metadata.name.clone();
        match ensure_node(store, node).await {
            Ok(true) => tracing::info!("made Node {name}"),
            Ok(false) => {}
            Err(source) => return Err(ClusterError::Node { name, who, source }),
        }
    }
    for request in &settings.pools {
        let pool = IpPool::new(request.name, request.spec.clone());
        let made = ensure_first_pool(store, pool).await;
        if made.map_err(|source| ClusterError::Pool { who, source: Box::new(source) })? {
            tracing::info!("made IPPool {}, {}", request.name, request.spec.cidr);
        }
    }
    Ok(())
}

/// Nobody may think that it was made.
fn leave_out(settings: &Settings, reason: &str) {
    for request in &settings.pools {
        tracing::warn!("IPPool {}, {}, is not made: {reason}", request.name, request.spec.cidr);
    }
}

/// The API group that Calico's objects are in; `None` when it has to be asked for.
pub(crate) fn group_of(conf: &NetConf) -> Option<ApiGroup> {
    conf.datastore.calico_api_group.map(|group| match group {
        conf::ApiGroup::CrdV1 => ApiGroup::CrdV1,
        conf::ApiGroup::V3 => ApiGroup::V3,
    })
}

/// The Node that has to be in etcd, by the name that the plugins go by. It refers to the node of Kubernetes, so that
/// kube-controllers removes it with that; a node of which this environment does not tell the name is nobody's to
/// remove.
fn node(conf: &NetConf, settings: &Settings) -> Option<Node> {
    let kubernetes = settings.node_name.as_ref().filter(|_| conf.datastore.kind() == DatastoreType::Etcdv3)?;
    let name = node_name::of(conf).ok()?;
    let reference = OrchRef { node_name: kubernetes.clone(), orchestrator: "k8s".into(), ..OrchRef::default() };
    Some(Node::new(&name, NodeSpec { orch_refs: vec![reference], ..NodeSpec::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> NetConf {
        NetConf::parse(text.as_bytes()).unwrap()
    }

    fn settings(variables: &[(&str, &str)]) -> Settings {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::from_environment(&lookup, "host").unwrap()
    }

    #[test]
    fn the_configuration_tells_the_group_of_calicos_objects() {
        let v1 =
            r#"{"type": "calico", "Datastore_Type": "kubernetes", "calico_api_group": "crd.projectcalico.org/v1"}"#;
        assert_eq!(group_of(&conf(v1)), Some(ApiGroup::CrdV1));
        assert_eq!(group_of(&conf(r#"{"type": "calico"}"#)), None);
    }

    #[test]
    fn the_node_in_etcd_has_the_plugins_name_and_refers_to_kubernetes() {
        let etcd = r#"{"type": "calico", "etcd_endpoints": "https://etcd:2379", "nodename": "calicos",
            "nodename_file": "/no/such/file"}"#;
        let named = settings(&[("KUBERNETES_NODE_NAME", "kubernetes")]);
        let made = node(&conf(etcd), &named).unwrap();
        assert_eq!((made.metadata.name.as_str(), made.spec.kubernetes_name()), ("calicos", Some("kubernetes")));
        assert_eq!(node(&conf(etcd), &settings(&[])), None);
        assert_eq!(node(&conf(r#"{"type": "calico", "nodename": "n"}"#), &named), None);
    }
}
