//! The checks of the cluster before the lock, and before the end. Each of them reads, and changes
//! nothing.

mod definitions;
mod environment;
mod plugins;
mod rights;
mod wait;
mod workload;

pub(super) use definitions::DEFINITIONS;

use kube_controllers::leader::{name_of_pod, namespace_of_pod};
use libcalico::kubernetes::{ApiGroup, Location, PODS};

use super::marks::{Marks, V1Lock, V3Access};
use super::object::Control;
use super::requests::{Problem, Requests};
use definitions::Definitions;

/// The objects and settings that the checks read.
pub(super) struct Checked<'a> {
    pub(super) requests: &'a Requests,
    pub(super) control: &'a Control,
    pub(super) marks: &'a Marks,
    /// The group in the environment of this process.
    pub(super) configured: Option<ApiGroup>,
    /// Namespace of Calico's DaemonSets and Deployments.
    pub(super) namespace: &'a str,
}

/// The result of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Check {
    /// The migration goes on.
    Passed,
    /// The migration waits for a change of the cluster.
    Wait(String),
    /// The migration ends.
    Terminal(String),
}

const V1_IS_MISSING: &str = "ClusterInformation default of crd.projectcalico.org/v1 is missing; \
                             kube-controllers and calico-node create it when they start in v1";
/// The reason to wait if another program has locked v1.
pub(super) const V1_IS_LOCKED: &str =
    "v1 is locked (datastoreReady: false), and not by this migration";
const V3_IS_LOCKED: &str = "ClusterInformation of v3 is locked, and not by a migration";

const IN_V1: &str = "CALICO_API_GROUP of kube-controllers is crd.projectcalico.org/v1; leave it \
                     empty (deploy/components/migrate-to-v3)";
const NOT_ON_THE_HOST: &str = "kube-controllers is not on the host network: while v1 is locked, a \
                               new pod of it would get no address. Add \
                               deploy/components/host-network-controllers";

/// Checks the cluster before the lock (MIG-57, MIG-58).
pub(super) async fn before_the_lock(context: &Checked<'_>) -> Result<Check, Problem> {
    rights::explain(context, find_obstacle(context).await).await
}

/// Checks if all programs use v3 (MIG-63).
pub(super) async fn before_complete(context: &Checked<'_>) -> Result<Check, Problem> {
    rights::explain(context, wait::unready(context).await.map(Check::of)).await
}

impl Check {
    fn of(wait: Option<String>) -> Self {
        wait.map_or(Check::Passed, Check::Wait)
    }
}

async fn find_obstacle(context: &Checked<'_>) -> Result<Check, Problem> {
    let definitions = Definitions::read(context.requests).await?;
    if let Some(text) = definitions.reason_to_end(context) {
        return Ok(Check::Terminal(text.to_owned()));
    }
    let mut wait = definitions.missing_in_v3(context.requests).await?;
    if wait.is_none() {
        wait = definitions::incorrect_tiers(context.requests).await?;
    }
    if wait.is_none() {
        wait = plugins::unready(context).await?;
    }
    if wait.is_none() {
        wait = own_process_unready(context).await?;
    }
    if wait.is_none() {
        wait = locked_by_others(context.marks).map(str::to_owned);
    }
    // Last, because the check may have many requests.
    if wait.is_none() {
        wait = rights::missing(context).await?;
    }
    Ok(Check::of(wait))
}

/// Returns the reason why the migration may not lock the datastores.
fn locked_by_others(marks: &Marks) -> Option<&'static str> {
    match (marks.v1, &marks.v3) {
        (V1Lock::Missing, _) => Some(V1_IS_MISSING),
        (V1Lock::ByOthers, _) => Some(V1_IS_LOCKED),
        (_, V3Access::UnmarkedAndLocked) => Some(V3_IS_LOCKED),
        (V1Lock::Unlocked | V1Lock::ByMigration | V1Lock::Confirmed, _) => None,
    }
}

/// Returns the reason to wait if this process would use v1 again after the migration (MB-2), or if
/// a new pod of it could not start while v1 is locked (MB-4).
async fn own_process_unready(context: &Checked<'_>) -> Result<Option<String>, Problem> {
    if context.configured == Some(ApiGroup::CrdV1) {
        return Ok(Some(IN_V1.to_owned()));
    }
    match namespace_of_pod() {
        Some(namespace) => not_on_the_host(context.requests, &namespace, &name_of_pod()).await,
        None => Ok(None),
    }
}

/// Returns the reason to wait if the pod exists and has a network of its own. On the host network,
/// the name of the host may be that of no pod.
async fn not_on_the_host(
    requests: &Requests,
    namespace: &str,
    name: &str,
) -> Result<Option<String>, Problem> {
    let pod = requests
        .get(&Location::namespaced(PODS, namespace, name))
        .await?;
    let has_own_network = pod.is_some_and(|pod| pod["spec"]["hostNetwork"] != true);
    Ok(has_own_network.then(|| NOT_ON_THE_HOST.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::MigratedCluster;

    #[tokio::test(start_paused = true)]
    async fn pod_with_a_network_of_its_own_waits() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        for (spec, waits) in [
            (json!({}), true),
            (json!({ "hostNetwork": false }), true),
            (json!({ "hostNetwork": true }), false),
        ] {
            cluster.server.with_store(|store| {
                store.put(
                    &Location::namespaced(PODS, "ns", "one"),
                    json!({ "spec": spec.clone() }),
                );
            });
            let found = not_on_the_host(&requests, "ns", "one").await.unwrap();
            assert_eq!(
                found.is_some_and(|text| text == NOT_ON_THE_HOST),
                waits,
                "{spec}"
            );
        }
        assert_eq!(not_on_the_host(&requests, "ns", "host-1").await, Ok(None));
    }
}
