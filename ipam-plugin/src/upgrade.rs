//! `calico-ipam -upgrade`: migrates the addresses that host-local assigned on this node to Calico
//! (IPAM-57).
//!
//! The init container `upgrade-ipam` runs this before the plugins are installed. Until all
//! addresses are migrated, the datastore is not ready, so that Calico's plugins assign no address
//! that is not migrated yet. The migration removes host-local's records, so it does not begin if
//! the next configuration still uses host-local.

mod assign;
mod leases;
mod planned_ipam;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use datastore::kubernetes::API_GROUP_FILE;
use datastore::{Datastore, DatastoreSettings, Kubernetes, KubernetesConfig};
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::ipam::HandleId;
use libcalico::kubernetes::{Pod, PodOnNode};
use libcalico::migration::{IMPORTING, V1_LOCKED_BY};
use libcalico::store::Store;
use netconf::conf::LogConf;
use netconf::{CallError, CniError, Code};

use self::assign::{PAUSE, UpgradeError, assign_unless_assigned, ensure_tunnel_ip, until_written};
use self::leases::Leases;
use self::planned_ipam::PlannedIpam;
use allocation::alloc::request::AssignRequest;
use allocation::cluster_state::{self, NotReadyError};
use allocation::reads::find;
use node_process::logging::{self, Subject};
use node_process::process;
use os::clock::{Clock, SystemClock};

const NETWORK: &str = "k8s-pod-network";
/// Time for calls of the removed plugins that a runtime has already started.
const LAST_CALLS: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Places {
    leases: PathBuf,
    /// The directory of the plugins that must not run until the new ones are installed.
    plugins: PathBuf,
}

pub(crate) fn run() -> Result<String, CallError> {
    let node = process::variables().text("KUBERNETES_NODE_NAME", "");
    if node.is_empty() {
        let missing = CniError::new(
            Code::INVALID_ENVIRONMENT,
            "required env variables [KUBERNETES_NODE_NAME] missing",
        );
        return Err(missing.into());
    }
    logging::init(&LogConf::default(), "ipam-upgrade", &Subject::default());
    PlannedIpam::read(process::variables()).verify()?;
    let places = Places {
        leases: Path::new("/var/lib/cni/networks").join(NETWORK),
        plugins: "/host/opt/cni/bin".into(),
    };
    let config =
        KubernetesConfig::for_datastore(&DatastoreSettings::default(), process::variables())
            .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))?;
    process::block_on(async {
        let clock = SystemClock::start();
        loop {
            match migrate_in_present_group(&config, &clock, &places, &node).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(%error, "the migration from host-local failed; starting over")
                }
            }
            clock.sleep(PAUSE).await;
        }
    });
    Ok(String::new())
}

/// Runs one pass of the migration, in `projectcalico.org/v3` if another migration has moved
/// Calico's objects there.
async fn migrate_in_present_group<C: Clock>(
    config: &KubernetesConfig,
    clock: &C,
    places: &Places,
    node: &str,
) -> Result<(), UpgradeError> {
    // Created again for each pass, because the token may have been renewed.
    let store = Datastore::Kubernetes(Arc::new(Kubernetes::new(config, API_GROUP_FILE)));
    // A lock does not end the pass, because an earlier pass may have set it.
    if Leases::open(&places.leases)?.is_some()
        && let Err(error @ NotReadyError::Moved) = cluster_state::ensure_ready(&store).await
    {
        return Err(error.into());
    }
    migrate(&store, clock, places, node).await
}

/// Runs one pass of the migration. Does nothing if host-local's directory is missing.
async fn migrate<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    places: &Places,
    node: &str,
) -> Result<(), UpgradeError> {
    let Some(leases) = Leases::open(&places.leases)? else {
        return Ok(());
    };
    let cluster = find::<ClusterInformation>(store, &ObjectKey::global("default")).await?;
    if let Some(refusal) = cluster.and_then(|cluster| refusal_of(&cluster.value)) {
        return Err(refusal);
    }
    ensure_tunnel_ip(store, clock, node).await?;
    if leases.files()?.is_empty() {
        return leases.remove();
    }
    set_ready(store, clock, false).await?;
    for plugin in ["calico", "host-local"] {
        leases::remove_file(&places.plugins.join(plugin))?;
    }
    clock.sleep(LAST_CALLS).await;
    let lock = leases.lock()?;
    let pods: Vec<Pod> = store
        .list::<PodOnNode>(&node.to_owned())
        .await?
        .into_iter()
        .map(|pod| pod.value.0)
        .collect();
    for lease in leases.read()? {
        if let Some(pod) = pods.iter().find(|pod| has_address(pod, lease.ip)) {
            let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
            let attributes = [("node", node), ("namespace", namespace), ("pod", name)];
            let request = AssignRequest {
                attributes: attributes
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                ..AssignRequest::workload(
                    HandleId::for_container(NETWORK, &lease.container_id),
                    node,
                )
            };
            // The upgrade of another node unlocks the datastore at its end. Then plugins assign
            // addresses, or a migration or an import locks the datastore. So the lock is read, and
            // set again if it is missing, before each address.
            set_ready(store, clock, false).await?;
            assign_unless_assigned(store, clock, &request, lease.ip).await?;
            tracing::info!(
                ip = %lease.ip, pod = %format!("{namespace}/{name}"),
                "the address from host-local is assigned in Calico"
            );
        } else {
            tracing::info!(
                ip = %lease.ip, "not migrating the address: no pod of this node uses it",
            );
        }
        leases::remove_file(&lease.file)?;
    }
    drop(lock);
    set_ready(store, clock, true).await?;
    leases.remove()
}

/// The address of a pod that has ended may be another pod's by now.
fn has_address(pod: &Pod, ip: IpAddr) -> bool {
    let status = &pod.status;
    let has_ended = matches!(status.phase.as_str(), "Succeeded" | "Failed");
    let all: BTreeSet<&str> = status
        .pod_ips
        .iter()
        .map(|ip| ip.ip.as_str())
        .chain([status.pod_ip.as_str()])
        .collect();
    !has_ended && all.into_iter().any(|text| text.parse() == Ok(ip))
}

/// Sets `datastoreReady`: false stops the plugins of the whole cluster, true starts them again.
async fn set_ready<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    ready: bool,
) -> Result<(), UpgradeError> {
    let key = ObjectKey::global("default");
    until_written(clock, async || {
        let mut cluster = store.get::<ClusterInformation>(&key).await?;
        if let Some(refusal) = refusal_of(&cluster.value) {
            return Err(refusal);
        }
        if cluster.value.spec.datastore_ready != Some(ready) {
            cluster.value.spec.datastore_ready = Some(ready);
            store
                .update(&key, &cluster.value, &cluster.revision)
                .await?;
        }
        Ok(())
    })
    .await
}

/// Returns an error if a migration to `projectcalico.org/v3`, or an incomplete import, has locked
/// the datastore. An upgrade would unlock it: both groups would be in use, or pods would get
/// addresses that the import has yet to write.
fn refusal_of(cluster: &ClusterInformation) -> Option<UpgradeError> {
    let has = |mark: &str| cluster.metadata.annotations.contains_key(mark);
    match cluster.spec.datastore_ready {
        Some(true) => None,
        _ if has(V1_LOCKED_BY) => Some(UpgradeError::Moving),
        _ if has(IMPORTING) => Some(UpgradeError::Importing),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
