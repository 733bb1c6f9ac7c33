//! The API server and the datastore, asked with the credentials of the plugins.

use std::time::{Duration, Instant};

use datastore::{Datastore, DatastoreConfig, KubernetesConfig, kubernetes};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use ipam_plugin::{datastore_settings, kubernetes_api};
use libcalico::api::{AllowedUse, ClusterInformation, IpPool, IpPoolSpec, ObjectKey, ObjectSelect};
use libcalico::ipam::{AffinitySelect, AffinityState, BlockAffinity, Owner};
use libcalico::kubernetes::ApiGroup;
use libcalico::net::IpVersion;
use libcalico::store::{Store, StoreError};
use netconf::NetConf;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::doctor::facts::{BlockCount, Cluster, Granted, Pool};
use crate::doctor::role::{self, Permission, Scope};
use crate::node_conf;

/// How long one answer may take: a person waits.
const DEADLINE: Duration = Duration::from_secs(5);

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Asks where `conf` leads to; `None` when it leads nowhere that can be asked.
pub(super) async fn ask(conf: &NetConf, node: &str) -> Option<Cluster> {
    let (config, store) = match node_conf::datastore(conf, DEADLINE) {
        Ok(opened) => opened,
        Err(reason) => return Some(unreached("the configuration".into(), reason)),
    };
    let api = api_server(conf, &config);
    let begun = Instant::now();
    let ready = store.get::<ClusterInformation>(&ObjectKey::global("default")).await;
    // A refusal is an answer.
    if let Err(StoreError::Unavailable { datastore, reason, .. }) = &ready {
        return Some(unreached(datastore.clone(), reason.clone()));
    }
    let after = begun.elapsed();
    let (granted, node_exists) = match &api {
        Some((config, scope)) => ask_api_server(config, *scope, node).await,
        None => (Vec::new(), None),
    };
    Some(Cluster {
        place: place(&config),
        reached: Ok(after),
        granted,
        ready: match ready {
            Ok(entry) => Ok(Some(entry.value.spec.datastore_ready)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(format!("ClusterInformation: {error}")),
        },
        pools: pools(&store).await,
        blocks: blocks(&store, node).await,
        node_exists,
    })
}

fn place(config: &DatastoreConfig) -> String {
    match config {
        DatastoreConfig::Etcd(etcd) => etcd.endpoints.join(","),
        DatastoreConfig::Local(local) => local.path.display().to_string(),
        DatastoreConfig::Kubernetes(kubernetes) => format!("the API server of {kubernetes}"),
    }
}

fn unreached(place: String, reason: String) -> Cluster {
    let none = || reason.clone();
    Cluster {
        place,
        granted: Vec::new(),
        ready: Err(none()),
        pools: Err(none()),
        blocks: Err(none()),
        node_exists: None,
        reached: Err(reason),
    }
}

/// The API server, and what the plugins ask there.
fn api_server(conf: &NetConf, datastore: &DatastoreConfig) -> Option<(KubernetesConfig, Scope<'static>)> {
    match datastore {
        DatastoreConfig::Kubernetes(config) => {
            let scope = match config.group {
                Some(ApiGroup::V3) => Scope::Calico("projectcalico.org"),
                Some(ApiGroup::CrdV1) | None => Scope::Calico("crd.projectcalico.org"),
            };
            Some((config.as_ref().clone(), scope))
        }
        _ if kubernetes_api::is_there(conf, datastore) => {
            let config = datastore_settings::kubernetes_beside(conf, Some(DEADLINE)).ok()?;
            Some((config, Scope::Pods))
        }
        _ => None,
    }
}

async fn ask_api_server(
    config: &KubernetesConfig,
    scope: Scope<'_>,
    node: &str,
) -> (Vec<Granted>, Option<Result<bool, String>>) {
    let client = match kubernetes::client(config).await {
        Ok(client) => client,
        Err(error) => return (Vec::new(), Some(Err(error.to_string()))),
    };
    let mut granted = Vec::new();
    for permission in role::permissions(scope) {
        granted.push(Granted { allowed: may(&client, &permission).await, permission });
    }
    let exists = match request(&client, Request::get(format!("/api/v1/nodes/{node}")), Vec::new()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(words(error)),
    };
    (granted, (!node.is_empty()).then_some(exists))
}

/// Whether the account of `client` may do something in all namespaces.
async fn may(client: &kube::Client, permission: &Permission) -> Result<bool, String> {
    let (resource, subresource) = permission.resource.split_once('/').unwrap_or((&permission.resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "verb": permission.verb, "group": permission.group, "resource": resource, "subresource": subresource,
        }},
    });
    let post = Request::post(REVIEWS).header(CONTENT_TYPE, "application/json");
    let answer = request(client, post, review.to_string().into_bytes()).await.map_err(words)?;
    Ok(answer["status"]["allowed"] == true)
}

async fn request(
    client: &kube::Client,
    request: hyper::http::request::Builder,
    body: Vec<u8>,
) -> Result<Value, kube::Error> {
    let request = request.body(body).map_err(kube::Error::HttpError)?;
    timeout(DEADLINE, client.request::<Value>(request))
        .await
        .unwrap_or_else(|_| Err(kube::Error::Service(format!("nothing came within {DEADLINE:?}").into())))
}

fn words(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        error => datastore::error_chain::chain(&error),
    }
}

async fn pools(store: &Datastore) -> Result<Vec<Pool>, String> {
    let pools = store.list::<IpPool>(&ObjectSelect::default()).await.map_err(|error| format!("IPPools: {error}"))?;
    let pool = |name: String, spec: &IpPoolSpec| Pool {
        name,
        cidr: spec.cidr.clone(),
        serves_pods: !spec.disabled && spec.allows(AllowedUse::Workload),
        overhead: overhead(spec),
    };
    Ok(pools.iter().map(|entry| pool(entry.key.name.clone(), &entry.value.spec)).collect())
}

/// What the encapsulation of a pool takes from each packet (INST-59).
fn overhead(spec: &IpPoolSpec) -> u32 {
    let is_on = |mode: &str| !mode.is_empty() && mode != "Never";
    let is_ipv6 = spec.range().is_ok_and(|range| range.version() == IpVersion::V6);
    match (spec.disabled, is_on(&spec.vxlan_mode), is_on(&spec.ipip_mode)) {
        (true, ..) | (_, false, false) => 0,
        (_, true, _) if is_ipv6 => 70,
        (_, true, _) => 50,
        (_, false, true) => 20,
    }
}

async fn blocks(store: &Datastore, node: &str) -> Result<BlockCount, String> {
    if node.is_empty() {
        return Err("nobody knows which node this is".into());
    }
    let claims = store.list::<BlockAffinity>(&AffinitySelect::of(Owner::Host(node.to_owned()))).await;
    let mut count = BlockCount::default();
    for claim in claims.map_err(|error| format!("BlockAffinities: {error}"))? {
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
    fn encapsulation_takes_what_upstream_counts() {
        let pool = |cidr: &str, vxlan: &str, ipip: &str| IpPoolSpec {
            cidr: cidr.into(),
            vxlan_mode: vxlan.into(),
            ipip_mode: ipip.into(),
            ..IpPoolSpec::default()
        };
        for (cidr, vxlan, ipip, expected) in [
            ("10.0.0.0/16", "Never", "", 0),
            ("10.0.0.0/16", "Never", "Always", 20),
            ("10.0.0.0/16", "CrossSubnet", "Never", 50),
            ("fd00::/48", "Always", "", 70),
        ] {
            assert_eq!(overhead(&pool(cidr, vxlan, ipip)), expected, "{cidr} {vxlan} {ipip}");
        }
        assert_eq!(overhead(&IpPoolSpec { disabled: true, ..pool("10.0.0.0/16", "Always", "") }), 0);
    }
}
