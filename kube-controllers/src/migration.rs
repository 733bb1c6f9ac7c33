//! The migration of Calico's objects from `crd.projectcalico.org/v1` to `projectcalico.org/v3`,
//! which the object `v1-to-v3` of the kind DatastoreMigration starts (MIG-57).
//!
//! The migration locks v1, copies all objects, and opens v3. Then the plugins use v3, as
//! `datastore/src/kubernetes/migration` decides; this process ends, and its successor waits for the
//! other programs.
//!
//! Read `marks` first, which derives each step from the objects, and then `pass`. The migration is
//! no controller of [`run`](crate::run): controllers write only while the datastore is unlocked,
//! and the migration itself locks it.

mod abort;
mod api_service;
mod attempts;
mod checks;
mod copy;
mod end;
mod late_writes;
mod listing;
mod lock;
mod marks;
mod metrics;
mod object;
mod pass;
mod report;
mod requests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod v3_access;

use libcalico::kubernetes::ApiGroup;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::leader::{Leadership, namespace_of_pod};
use crate::startup::StartError;
use crate::telemetry::Metrics;
use pass::{Migration, Next};
use requests::Requests;

/// Namespace of Calico's DaemonSets and Deployments if the namespace of this process's pod is
/// unknown.
const NAMESPACE: &str = "calico-system";

/// Follows the object of the migration while this replica is the leader, until `stop`. Returns an
/// error once the objects are in another group than this process uses.
///
/// `configured` is the group in the environment of this process, `used` the group that it uses, and
/// `elected` the right to write, regardless of the lock of the datastore.
pub(crate) async fn run(
    kubernetes: kube::Client,
    configured: Option<ApiGroup>,
    used: ApiGroup,
    elected: Leadership,
    metrics: Metrics,
    stop: CancellationToken,
) -> Option<StartError> {
    let namespace = namespace_of_pod().unwrap_or_else(|| NAMESPACE.into());
    let following = async {
        loop {
            elected.clone().gained().await;
            let requests = Requests::new(kubernetes.clone(), elected.clone());
            let mut migration = Migration::new(
                requests,
                configured,
                used,
                namespace.clone(),
                metrics.clone(),
            );
            let passes = async {
                loop {
                    match migration.pass().await {
                        Next::After(pause) => sleep(pause).await,
                        Next::Ended(group) => return group,
                    }
                }
            };
            if let Some(now) = elected.while_held(passes).await {
                let configured = configured.map(ApiGroup::api_version);
                return StartError::Moved {
                    was: used.api_version(),
                    now: now.api_version(),
                    configured,
                };
            }
        }
    };
    stop.run_until_cancelled(following).await
}
