//! Queries the datastore and the API server with the plugins' credentials. Nothing is written: permissions to write are
//! tested by transactions whose condition never holds.

use std::time::{Duration, Instant};

use datastore::config::EtcdConfig;
use datastore::{Datastore, DatastoreConfig};
use ipam_plugin::{datastore_settings, kubernetes_api};
use libcalico::api::{AllowedUse, ClusterInformation, IpPool, IpPoolSpec, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{AffinitySelect, AffinityState, BlockAffinity, Labels, Owner};
use libcalico::kubernetes::ApiGroup;
use libcalico::selector::Selector;
use libcalico::store::{Store, StoreError};
use netconf::NetConf;

use super::api_server::{self, ApiAnswers};
use super::interfaces::{self, NAMELESS};
use super::{busy, etcd};
use crate::doctor::role::Scope;
use crate::doctor::snapshot::{BlockCount, Cluster, DatastoreKind, Observed, Pool, Unobserved};
use crate::host_network::HostNetwork;
use crate::{mtu, node_conf};

/// Time limit for one request. A person is waiting.
const DEADLINE: Duration = Duration::from_secs(5);

/// Queries the servers that `conf` names.
pub(super) async fn query(conf: &NetConf, node: &str, network: &dyn HostNetwork) -> Cluster {
    let tls = etcd::tls_files(conf);
    let (config, store) = match node_conf::datastore(conf, DEADLINE) {
        Ok(opened) => opened,
        Err(reason) => {
            let kind = DatastoreKind::from(conf.datastore.kind());
            return Cluster { tls, ..Cluster::unreached(kind, "the configuration".into(), reason.into()) };
        }
    };
    let api = query_api_server(conf, &config).await;
    let cluster = match &config {
        // Opening the datastore would create the file.
        DatastoreConfig::Local(local) if !local.path.exists() => {
            let reason = "there is no such file".into();
            Cluster::unreached(DatastoreKind::Local, local.path.display().to_string(), reason)
        }
        config => query_datastore(conf, config, &store, node, network).await,
    };
    let mut cluster = Cluster { tls, ..cluster };
    if let Some(ApiAnswers { place, reached, refused, granted }) = api {
        (cluster.refused, cluster.granted) = (refused, granted);
        cluster.api_beside = (cluster.kind != DatastoreKind::Kubernetes).then_some((place, reached));
    }
    cluster
}

async fn query_datastore(
    conf: &NetConf,
    config: &DatastoreConfig,
    store: &Datastore,
    node: &str,
    network: &dyn HostNetwork,
) -> Cluster {
    let (kind, place) = describe(config);
    let begun = Instant::now();
    let ready = store.get::<ClusterInformation>(&ObjectKey::global("default")).await;
    match &ready {
        Err(StoreError::Unavailable { datastore, reason, .. }) => {
            return Cluster::unreached(kind, datastore.clone(), Unobserved::new(reason));
        }
        Err(StoreError::Unauthorized { reason }) if kind == DatastoreKind::Etcd && !etcd::is_answer(reason) => {
            return Cluster::unreached(kind, place, Unobserved::new(reason));
        }
        // Any other error is a response.
        _ => {}
    }
    let after = begun.elapsed();
    let (silent, granted_by_etcd) = match config {
        DatastoreConfig::Etcd(config) => (find_silent_members(config).await, etcd::test_permissions(store, node).await),
        DatastoreConfig::Local(_) | DatastoreConfig::Kubernetes(_) => Default::default(),
    };
    let (node_exists, labels) = match store.get::<Node>(&ObjectKey::global(node)).await {
        _ if node.is_empty() => (None, Err(NAMELESS.into())),
        Ok(entry) => (Some(Ok(true)), Ok(entry.value.metadata.labels)),
        Err(StoreError::NotFound { .. }) => (Some(Ok(false)), Err(Unobserved::new(format!("there is no Node {node}")))),
        Err(error) => (Some(Err(Unobserved::new(&error))), Err(Unobserved::new(&error))),
    };
    Cluster {
        kind,
        place,
        reached: Ok(after),
        silent,
        tls: Vec::new(),
        refused: None,
        granted: Vec::new(),
        granted_by_etcd,
        api_beside: None,
        ready: match ready {
            Ok(entry) => Ok(Some(entry.value.spec.datastore_ready)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(Unobserved::new(format!("ClusterInformation: {error}"))),
        },
        pools: read_pools(store, &labels).await,
        blocks: count_blocks(store, node).await,
        node_exists,
        interfaces: interfaces::read_pod_interfaces(conf, store, node, network).await,
        busy: busy::find_routed(store, network).await,
    }
}

fn describe(config: &DatastoreConfig) -> (DatastoreKind, String) {
    match config {
        DatastoreConfig::Etcd(etcd) => (DatastoreKind::Etcd, etcd.endpoints.join(",")),
        DatastoreConfig::Local(local) => (DatastoreKind::Local, local.path.display().to_string()),
        DatastoreConfig::Kubernetes(kubernetes) => {
            (DatastoreKind::Kubernetes, format!("the API server of {kubernetes}"))
        }
    }
}

/// Returns the members of etcd that do not respond. The client uses the first member that responds, so each member is
/// queried alone.
async fn find_silent_members(config: &EtcdConfig) -> Vec<(String, String)> {
    let mut silent = Vec::new();
    for endpoint in config.endpoints.iter().filter(|_| config.endpoints.len() > 1) {
        let alone = EtcdConfig { endpoints: vec![endpoint.clone()], ..config.clone() };
        let store = match Datastore::open(&DatastoreConfig::Etcd(alone)) {
            Ok(store) => store,
            Err(error) => {
                silent.push((endpoint.clone(), error.to_string()));
                continue;
            }
        };
        match store.get::<ClusterInformation>(&ObjectKey::global("default")).await {
            Err(StoreError::Unavailable { reason, .. }) => silent.push((endpoint.clone(), reason)),
            Err(StoreError::Unauthorized { reason }) if !etcd::is_answer(&reason) => {
                silent.push((endpoint.clone(), reason));
            }
            _ => {}
        }
    }
    silent
}

/// Queries the API server if the plugins use it, as the datastore or beside another one.
async fn query_api_server(conf: &NetConf, datastore: &DatastoreConfig) -> Option<ApiAnswers> {
    let (config, scope) = match datastore {
        DatastoreConfig::Kubernetes(config) => {
            let scope = match config.group {
                Some(ApiGroup::V3) => Scope::Calico("projectcalico.org"),
                Some(ApiGroup::CrdV1) | None => Scope::Calico("crd.projectcalico.org"),
            };
            (config.as_ref().clone(), scope)
        }
        _ if kubernetes_api::is_configured(conf, datastore) => {
            match datastore_settings::kubernetes_beside(conf, Some(DEADLINE), |name| std::env::var(name).ok()) {
                Ok(config) => (config, Scope::Pods),
                Err(error) => return Some(ApiAnswers::none("the configuration".into(), Unobserved::new(error))),
            }
        }
        _ => return None,
    };
    Some(api_server::query(&config, scope, DEADLINE).await)
}

/// Reads the pools. `labels` are the labels of the Node, or the reason why they are unknown.
async fn read_pools(store: &Datastore, labels: &Observed<Labels>) -> Observed<Vec<Pool>> {
    let pools = store
        .list::<IpPool>(&ObjectSelect::default())
        .await
        .map_err(|error| Unobserved::new(format!("IPPools: {error}")))?;
    let pool = |name: String, spec: &IpPoolSpec| Pool {
        name,
        cidr: spec.cidr.clone(),
        serves_pods: !spec.disabled && spec.allows(AllowedUse::Workload),
        selects_node: is_selected(&spec.node_selector, labels),
        overhead: mtu::overhead(spec),
    };
    Ok(pools.iter().map(|entry| pool(entry.key.name.clone(), &entry.value.spec)).collect())
}

/// Returns true if a pool's selector matches the node. A selector for all nodes needs no labels.
fn is_selected(selector: &str, labels: &Observed<Labels>) -> Observed<bool> {
    let parsed = Selector::parse(selector)
        .map_err(|error| Unobserved::new(format!("nodeSelector `{selector}` is invalid: {error}")))?;
    if matches!(selector.trim(), "" | "all()") {
        return Ok(true);
    }
    labels.as_ref().map(|labels| parsed.matches(labels)).map_err(Clone::clone)
}

async fn count_blocks(store: &Datastore, node: &str) -> Observed<BlockCount> {
    if node.is_empty() {
        return Err(NAMELESS.into());
    }
    let claims = store.list::<BlockAffinity>(&AffinitySelect::of(Owner::Host(node.to_owned()))).await;
    let mut count = BlockCount::default();
    for claim in claims.map_err(|error| Unobserved::new(format!("BlockAffinities: {error}")))? {
        match claim.value.state {
            AffinityState::Confirmed | AffinityState::Unset => count.confirmed += 1,
            AffinityState::Pending | AffinityState::PendingDeletion => count.pending += 1,
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_selects_by_the_labels_of_the_node() {
        let labels = Ok(Labels::from([("zone".to_owned(), "a".to_owned())]));
        assert_eq!(is_selected("zone == 'a'", &labels), Ok(true));
        assert_eq!(is_selected("zone == 'b'", &labels), Ok(false));
        assert!(
            is_selected("zone ==", &labels).unwrap_err().to_string().starts_with("nodeSelector `zone ==` is invalid: ")
        );
        let unknown = Err("why".into());
        assert_eq!((is_selected("", &unknown), is_selected("all()", &unknown)), (Ok(true), Ok(true)));
        assert_eq!(is_selected("!has(zone)", &unknown), Err("why".into()));
    }

    #[tokio::test]
    async fn a_member_that_cannot_be_opened_does_not_answer() {
        let endpoints = ["http://[a", "http://[b"].map(str::to_owned).to_vec();
        let config = EtcdConfig { endpoints, tls: None, credentials: None, deadline: DEADLINE };
        let told: Vec<String> = find_silent_members(&config).await.into_iter().map(|(endpoint, _)| endpoint).collect();
        assert_eq!(told, config.endpoints);
    }
}
