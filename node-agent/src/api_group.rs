//! [`ApiGroupWatch`]: waits until Calico's objects are in another API group, as after upstream's
//! migration to `projectcalico.org/v3`. The agent then ends.

use std::time::Duration;

use datastore::Kubernetes;
use datastore::kubernetes::{wait_for_changed_group, wait_for_stable_group};
use libcalico::failure::Failure;
use libcalico::kubernetes::ApiGroup;

use installation::service_account::ServiceAccount;

/// Interval between two requests for the group. The agent of each node sends them.
const INTERVAL: Duration = Duration::from_secs(300);
/// Time limit for one request.
const DEADLINE: Duration = Duration::from_secs(10);

/// The inputs for finding the API group of Calico's objects.
#[derive(Debug)]
pub struct ApiGroupWatch {
    /// The account that sends the requests.
    pub account: ServiceAccount,
    /// The group that the plugins' configuration names.
    pub configured: Option<ApiGroup>,
}

impl ApiGroupWatch {
    /// Waits until Calico's objects are in another group than at the agent's start. Returns the
    /// group at the start and the present group.
    pub(super) async fn wait_for_move(self) -> (ApiGroup, ApiGroup) {
        let initial = wait_for_stable_group(INTERVAL, || self.read_group()).await;
        if let Some(configured) = self.configured.filter(|configured| *configured != initial) {
            tracing::error!("{}", describe_remedy(configured, initial));
        }
        let current = wait_for_changed_group(initial, INTERVAL, || self.read_group()).await;
        (initial, current)
    }

    async fn read_group(&self) -> Result<ApiGroup, Failure> {
        let access = self.account.access(DEADLINE)?;
        Ok(Kubernetes::long_running(&access).discover_group().await?)
    }
}

fn describe_remedy(configured: ApiGroup, found: ApiGroup) -> String {
    let (configured, found) = (configured.api_version(), found.api_version());
    format!(
        "the plugins' configuration names the API group {configured}, but Calico's objects are in \
         {found}; set CALICO_API_GROUP to {found} (in the manifests of deploy/: calico_api_group \
         in the ConfigMap calico-cni-config) and restart this pod"
    )
}
