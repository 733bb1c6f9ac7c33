//! The migration of Calico's objects from `crd.projectcalico.org/v1` to `projectcalico.org/v3`, by
//! upstream's kube-controllers or ours.
//!
//! The migration locks v1, copies the objects, and then opens v3 and marks its ClusterInformation.
//! The API server serves the locked v1 until an operator removes it, and the rule of
//! [`discovery`](super::discovery) alone would choose v1 during that time.

use std::time::Duration;

use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{LOCKED_BY, MIGRATED_BY, V1_LOCKED_BY};
use serde_json::Value;
use tokio::time::sleep;

use super::client::ApiClient;
use super::error::RequestError;
use super::request::ApiRequest;

/// Returns true if the objects of an API server with both groups are in v3. A ClusterInformation of
/// v1 that this process may not read counts as not ready.
pub(super) async fn has_migrated_to_v3(client: &ApiClient) -> Result<bool, RequestError> {
    let v1 = cluster_information(client, ApiGroup::CrdV1).await?;
    Ok(!v1.is_some_and(|information| is_ready(&information)) && is_v3_open(client).await?)
}

/// Returns true if the migration has opened v3.
pub(super) async fn is_v3_open(client: &ApiClient) -> Result<bool, RequestError> {
    let v3 = cluster_information(client, ApiGroup::V3).await?;
    Ok(v3.is_some_and(|information| {
        let annotations = &information["metadata"]["annotations"];
        is_ready(&information)
            && [MIGRATED_BY, LOCKED_BY]
                .iter()
                .any(|mark| annotations[mark].is_string())
    }))
}

/// Returns true if kube-controllers has locked v1 for a migration. v1 keeps the mark after v3 is
/// open, until v1 is removed.
pub(super) async fn is_v1_marked(client: &ApiClient) -> Result<bool, RequestError> {
    let v1 = cluster_information(client, ApiGroup::CrdV1).await?;
    Ok(v1.is_some_and(|information| {
        information["metadata"]["annotations"][V1_LOCKED_BY].is_string()
    }))
}

/// Returns `None` if the ClusterInformation is missing, or if this process may not read it, because
/// roles for only one group are common.
async fn cluster_information(
    client: &ApiClient,
    group: ApiGroup,
) -> Result<Option<Value>, RequestError> {
    let path = format!("/apis/{}/clusterinformations/default", group.api_version());
    match client.send(&ApiRequest::get(path)).await {
        Ok(information) => Ok(Some(information)),
        Err(RequestError::Refused(refusal)) if matches!(refusal.status.code, 403 | 404) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn is_ready(information: &Value) -> bool {
    information["spec"]["datastoreReady"] == true
}

/// Calls `discover` once per `period` until two successive groups are the same, and returns that
/// group. A single group is not sufficient, because an API server that is starting may not serve
/// all groups yet.
pub async fn wait_for_stable_group<E>(
    period: Duration,
    discover: impl AsyncFn() -> Result<ApiGroup, E>,
) -> ApiGroup {
    let mut last = None;
    loop {
        match discover().await {
            Ok(group) if last == Some(group) => return group,
            Ok(group) => last = Some(group),
            // A failed discovery gives no information about groups.
            Err(_) => {}
        }
        sleep(period).await;
    }
}

/// Calls [`wait_for_stable_group`] until the result is a group other than `group`, and returns that
/// group. Waits for `period` before each call.
pub async fn wait_for_changed_group<E>(
    group: ApiGroup,
    period: Duration,
    discover: impl AsyncFn() -> Result<ApiGroup, E>,
) -> ApiGroup {
    loop {
        sleep(period).await;
        let now = wait_for_stable_group(period, &discover).await;
        if now != group {
            return now;
        }
    }
}

#[cfg(test)]
mod tests;
