//! The checks of the cluster before the lock, and before the end. Each of them reads, and changes nothing.

mod definitions;
mod environment;
mod installer;
mod own_process;
mod plugins;
mod rights;
mod tiers;
mod wait;
mod workload;

pub(super) use definitions::DEFINITIONS;

use libcalico::kubernetes::ApiGroup;

use super::marks::{Door, Marks, V1Lock};
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

const V1_IS_MISSING: &str = "ClusterInformation default of crd.projectcalico.org/v1 is missing; kube-controllers and \
                             calico-node create it when they start in v1";
/// The reason to wait if another program has locked v1.
pub(super) const V1_IS_LOCKED: &str = "v1 is locked (datastoreReady: false), and not by this migration";
const V3_IS_LOCKED: &str = "ClusterInformation of v3 is locked, and not by a migration";

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
        wait = tiers::incorrect(context.requests).await?;
    }
    if wait.is_none() {
        wait = plugins::unready(context).await?;
    }
    if wait.is_none() {
        wait = own_process::unready(context).await?;
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
        (V1Lock::Others, _) => Some(V1_IS_LOCKED),
        (_, Door::Foreign) => Some(V3_IS_LOCKED),
        (V1Lock::Open | V1Lock::Ours, _) => None,
    }
}
