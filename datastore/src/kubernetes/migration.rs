//! Upstream's migration of Calico's objects from `crd.projectcalico.org/v1` to `projectcalico.org/v3`.
//!
//! It locks v1 for good, copies the objects, and then opens v3, whose ClusterInformation carries its mark from then on.
//! It cannot be taken back after that, and v1 stays served, and locked, until an operator ends it: the rule of
//! [`discovery`](super::discovery) alone would choose v1 for that time.

use std::time::Duration;

use libcalico::kubernetes::ApiGroup;
use serde_json::Value;
use tokio::time::sleep;

use super::client::ApiClient;
use super::failure::Failure;
use super::request::ApiRequest;

/// Annotations of a ClusterInformation in v3 that the migration made or locked. An abort takes them away.
const MARKS: [&str; 2] = ["migration.projectcalico.org/migrated-by", "migration.projectcalico.org/locked-by"];

/// Returns whether the objects of an API server that has both groups are in v3: v1 is locked or empty, and v3 is open.
pub(super) async fn has_moved(client: &ApiClient) -> Result<bool, Failure> {
    let v1 = cluster_information(client, ApiGroup::CrdV1).await?;
    Ok(!v1.is_some_and(|information| is_ready(&information)) && is_open(client).await?)
}

/// Returns whether the migration has opened v3.
pub(super) async fn is_open(client: &ApiClient) -> Result<bool, Failure> {
    let v3 = cluster_information(client, ApiGroup::V3).await?;
    Ok(v3.is_some_and(|information| {
        let annotations = &information["metadata"]["annotations"];
        is_ready(&information) && MARKS.iter().any(|mark| annotations[mark].is_string())
    }))
}

/// The ClusterInformation `default` of a group. One that may not be read counts as missing: a role for one group is
/// common.
async fn cluster_information(client: &ApiClient, group: ApiGroup) -> Result<Option<Value>, Failure> {
    let path = format!("/apis/{}/clusterinformations/default", group.api_version());
    match client.send(&ApiRequest::get(path)).await {
        Ok(information) => Ok(Some(information)),
        Err(Failure::Refused(refusal)) if matches!(refusal.status.code, 403 | 404) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn is_ready(information: &Value) -> bool {
    information["spec"]["datastoreReady"] == true
}

/// Waits until `ask`, which is asked each `period`, has told the same group twice in a row, and returns that group: an
/// API server that starts may not know all groups yet.
pub async fn settled_group<E>(period: Duration, ask: impl AsyncFn() -> Result<ApiGroup, E>) -> ApiGroup {
    let mut told = None;
    loop {
        match ask().await {
            Ok(group) if told == Some(group) => return group,
            Ok(group) => told = Some(group),
            // A server that is away says nothing about groups.
            Err(_) => {}
        }
        sleep(period).await;
    }
}

/// Waits in the same way until the group is another than `group`, and returns the other group.
pub async fn changed_group<E>(
    group: ApiGroup,
    period: Duration,
    ask: impl AsyncFn() -> Result<ApiGroup, E>,
) -> ApiGroup {
    loop {
        sleep(period).await;
        let now = settled_group(period, &ask).await;
        if now != group {
            return now;
        }
    }
}

#[cfg(test)]
mod tests;
