//! Queries the datastore and the API server with the plugins' credentials. Nothing is written.

use std::time::{Duration, Instant};

use allocation::cluster_state::{self, NotReadyError};
use datastore::config::EtcdConfig;
use datastore::{Datastore, DatastoreConfig};
use ipam_plugin::{datastore_settings, kubernetes_api};
use libcalico::api::{AllowedUse, ClusterInformation, IpPoolSpec, Node, ObjectKey};
use libcalico::ipam::{AffinityOwner, AffinitySelect, BlockAffinity, Labels};
use libcalico::kubernetes::ApiGroup;
use libcalico::selector::Selector;
use libcalico::store::{Store, StoreError};
use netconf::NetConf;
use netconf::conf::DatastoreType;
use node_process::process;

use super::configurations::tls_files;
use super::kernel::{self, UNKNOWN_NODE};
use super::permissions;
use crate::role::Scope;
use crate::snapshot::{
    ApiServer, BlockCount, Cluster, DatastoreAnswers, Observed, Pool, Readiness, Unobserved,
};
use dataplane::host_network::HostNetwork;
use installation::{mtu, node_conf};

/// Time limit for one request. A person is waiting.
const DEADLINE: Duration = Duration::from_secs(5);

pub(super) async fn query(conf: &NetConf, node: &str, network: &dyn HostNetwork) -> Cluster {
    let tls = tls_files(conf);
    let (config, store) = match node_conf::datastore(conf, DEADLINE) {
        Ok(opened) => opened,
        Err(reason) => {
            let (kind, address) = (conf.datastore.kind(), "the configuration".into());
            return Cluster {
                kind,
                address,
                tls,
                api: None,
                reached: Err(Unobserved::new(reason)),
            };
        }
    };
    let api = query_api_server(conf, &config).await;
    let (kind, mut address) = describe(&config);
    let reached = match config.missing_file() {
        Some(_) => Err("the file does not exist".into()),
        None => query_datastore(conf, &config, &mut address, &store, node, network).await,
    };
    Cluster {
        kind,
        address,
        tls,
        api,
        reached,
    }
}

/// Returns the answers of the datastore. If it is unavailable, returns the reason; `address` may
/// become the address that did not respond.
async fn query_datastore(
    conf: &NetConf,
    config: &DatastoreConfig,
    address: &mut String,
    store: &Datastore,
    node: &str,
    network: &dyn HostNetwork,
) -> Observed<DatastoreAnswers> {
    let etcd = match config {
        DatastoreConfig::Etcd(config) => Some(config),
        DatastoreConfig::Local(_) | DatastoreConfig::Kubernetes(_) => None,
    };
    let begun = Instant::now();
    let ready = cluster_state::ensure_ready(store).await;
    match &ready {
        Err(NotReadyError::Unread(
            StoreError::Unavailable {
                datastore, reason, ..
            }
            | StoreError::ForeignAnswer {
                datastore, reason, ..
            },
        )) => {
            address.clone_from(datastore);
            return Err(Unobserved::new(reason));
        }
        Err(NotReadyError::Unread(error))
            if etcd.is_some()
                && let Some(reason) = silence(error) =>
        {
            return Err(reason);
        }
        // Any other error counts as a response.
        _ => {}
    }
    let latency = begun.elapsed();
    let (silent_members, etcd_permissions) = match etcd {
        Some(config) => (
            find_silent_members(config).await,
            permissions::test_etcd(store, node).await,
        ),
        None => Default::default(),
    };
    let (node_exists, labels) = match store.get::<Node>(&ObjectKey::global(node)).await {
        _ if node.is_empty() => (None, Err(UNKNOWN_NODE.into())),
        Ok(entry) => (Some(Ok(true)), Ok(entry.value.metadata.labels)),
        Err(StoreError::NotFound { .. }) => (
            Some(Ok(false)),
            Err(Unobserved::new(format!("Node {node} does not exist"))),
        ),
        Err(error) => (
            Some(Err(Unobserved::new(&error))),
            Err(Unobserved::new(&error)),
        ),
    };
    Ok(DatastoreAnswers {
        latency,
        silent_members,
        etcd_permissions,
        ready: match ready {
            Ok(_) => Ok(Readiness::Ready),
            Err(NotReadyError::Locked) => Ok(Readiness::Locked),
            Err(NotReadyError::Moved) => Ok(Readiness::Moved),
            Err(NotReadyError::Unread(StoreError::NotFound { .. })) => Ok(Readiness::Missing),
            Err(NotReadyError::Unread(error)) => {
                Err(Unobserved::new(format!("ClusterInformation: {error}")))
            }
        },
        pools: read_pools(store, &labels).await,
        blocks: count_blocks(store, node).await,
        node_exists,
        interfaces: kernel::read_pod_interfaces(conf, store, node, network).await,
        busy: kernel::find_routed(store, network).await,
    })
}

fn describe(config: &DatastoreConfig) -> (DatastoreType, String) {
    match config {
        DatastoreConfig::Etcd(etcd) => (DatastoreType::Etcdv3, etcd.endpoints.join(",")),
        DatastoreConfig::Local(local) => (DatastoreType::Local, local.path.display().to_string()),
        DatastoreConfig::Kubernetes(access) => (
            DatastoreType::Kubernetes,
            format!("the API server of {access}"),
        ),
    }
}

/// Returns the reason if `error` shows that etcd did not respond. A refusal by etcd contains
/// `etcdserver: `. Any other refusal counts as one of the TLS handshake, before etcd got a request.
fn silence(error: &StoreError) -> Option<Unobserved> {
    match error {
        StoreError::Unavailable { reason, .. } | StoreError::ForeignAnswer { reason, .. } => {
            Some(Unobserved::new(reason))
        }
        StoreError::Unauthorized { reason } if !reason.contains("etcdserver: ") => {
            Some(Unobserved::new(reason))
        }
        _ => None,
    }
}

/// Returns the members of etcd that do not respond, if there are several members. The client uses
/// the first member that responds, so each member is queried alone.
async fn find_silent_members(config: &EtcdConfig) -> Vec<(String, String)> {
    let mut silent_members = Vec::new();
    for endpoint in config
        .endpoints
        .iter()
        .filter(|_| config.endpoints.len() > 1)
    {
        let alone = EtcdConfig {
            endpoints: vec![endpoint.clone()],
            ..config.clone()
        };
        let reason = match Datastore::open(&DatastoreConfig::Etcd(Box::new(alone))) {
            Ok(store) => {
                let answer = store
                    .get::<ClusterInformation>(&ObjectKey::global("default"))
                    .await;
                answer.err().and_then(|error| silence(&error))
            }
            Err(error) => Some(Unobserved::new(error)),
        };
        silent_members.extend(reason.map(|reason| (endpoint.clone(), reason.to_string())));
    }
    silent_members
}

/// Queries the API server if the plugins use it.
async fn query_api_server(conf: &NetConf, datastore: &DatastoreConfig) -> Option<ApiServer> {
    let (config, scope) = match datastore {
        DatastoreConfig::Kubernetes(config) => {
            let scope = Scope::Calico(config.group.unwrap_or(ApiGroup::CrdV1).name());
            (config.as_ref().clone(), scope)
        }
        DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_)
            if kubernetes_api::is_configured(conf, datastore) =>
        {
            match datastore_settings::separate_kubernetes(
                conf,
                Some(DEADLINE),
                process::variables(),
            ) {
                Ok(config) => (config, Scope::Pods),
                Err(error) => {
                    let (address, reached) =
                        ("the configuration".into(), Err(Unobserved::new(error)));
                    return Some(ApiServer {
                        address,
                        reached,
                        rejection: None,
                        permissions: Vec::new(),
                    });
                }
            }
        }
        DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) => return None,
    };
    Some(permissions::test_api_server(&config, scope, DEADLINE).await)
}

/// Reads the pools. `labels` are the labels of the Node, or the reason why they are unknown.
async fn read_pools(store: &Datastore, labels: &Observed<Labels>) -> Observed<Vec<Pool>> {
    let pools = kernel::list_pools(store).await?;
    let pool = |name: String, spec: &IpPoolSpec| Pool {
        name,
        cidr: spec.cidr.clone(),
        serves_pods: !spec.disabled && spec.allows(AllowedUse::Workload),
        selects_node: is_selected(&spec.node_selector, labels),
        overhead: mtu::overhead(spec),
    };
    Ok(pools
        .iter()
        .map(|entry| pool(entry.key.name.clone(), &entry.value.spec))
        .collect())
}

/// Returns true if a pool's selector matches the node. A selector for all nodes needs no labels.
fn is_selected(selector: &str, labels: &Observed<Labels>) -> Observed<bool> {
    let parsed = Selector::parse(selector).map_err(|error| {
        Unobserved::new(format!("nodeSelector `{selector}` is invalid: {error}"))
    })?;
    if matches!(selector.trim(), "" | "all()") {
        return Ok(true);
    }
    labels
        .as_ref()
        .map(|labels| parsed.matches(labels))
        .map_err(Clone::clone)
}

async fn count_blocks(store: &Datastore, node: &str) -> Observed<BlockCount> {
    if node.is_empty() {
        return Err(UNKNOWN_NODE.into());
    }
    let claims = store
        .list::<BlockAffinity>(&AffinitySelect::of(AffinityOwner::Host(node.to_owned())))
        .await;
    let mut count = BlockCount::default();
    for claim in claims.map_err(|error| Unobserved::new(format!("BlockAffinities: {error}")))? {
        match claim.value.state.is_unfinished() {
            false => count.confirmed += 1,
            true => count.pending += 1,
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_selects_a_node_by_its_labels() {
        let labels = Ok(Labels::from([("zone".to_owned(), "a".to_owned())]));
        assert_eq!(is_selected("zone == 'a'", &labels), Ok(true));
        assert_eq!(is_selected("zone == 'b'", &labels), Ok(false));
        assert!(
            is_selected("zone ==", &labels)
                .unwrap_err()
                .to_string()
                .starts_with("nodeSelector `zone ==` is invalid: ")
        );
        let unknown = Err("why".into());
        assert_eq!(
            (is_selected("", &unknown), is_selected("all()", &unknown)),
            (Ok(true), Ok(true))
        );
        assert_eq!(is_selected("!has(zone)", &unknown), Err("why".into()));
    }

    #[tokio::test]
    async fn etcd_member_that_cannot_be_opened_is_reported_as_silent() {
        let endpoints = ["http://[a", "http://[b"].map(str::to_owned).to_vec();
        let config = EtcdConfig {
            endpoints,
            tls: None,
            credentials: None,
            deadline: DEADLINE,
        };
        let told: Vec<String> = find_silent_members(&config)
            .await
            .into_iter()
            .map(|(endpoint, _)| endpoint)
            .collect();
        assert_eq!(told, config.endpoints);
    }
}
