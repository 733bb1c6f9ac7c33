//! [`Group`]: the API group of Calico's objects, which upstream's migration to `projectcalico.org/v3` changes. The
//! agent ends then, so that its container begins again with the environment as it is by then, and installs a
//! configuration for the other group.

use std::time::Duration;

use datastore::Kubernetes;
use datastore::kubernetes::{changed_group, settled_group};
use libcalico::kubernetes::ApiGroup;

use crate::service_account::ServiceAccount;

/// How often the API server is asked. An agent of each node does so.
const PERIOD: Duration = Duration::from_secs(300);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// How to find out which group Calico's objects are in.
#[derive(Debug)]
pub struct Group {
    /// The account that asks.
    pub account: ServiceAccount,
    /// The group that the plugins' configuration names.
    pub configured: Option<ApiGroup>,
}

impl Group {
    /// Waits until the objects are in another group than when the agent began. Returns both. A configuration that named
    /// another group even then is told in the log, and no reason to end: the next agent would begin with the same
    /// configuration.
    pub(super) async fn moved(self) -> (ApiGroup, ApiGroup) {
        let began = settled_group(PERIOD, || self.ask()).await;
        if let Some(configured) = self.configured.filter(|configured| *configured != began) {
            tracing::error!("{}", way_out(configured, began));
        }
        let now = changed_group(began, PERIOD, || self.ask()).await;
        (began, now)
    }

    /// With the pod's own token as it is now.
    async fn ask(&self) -> Result<ApiGroup, String> {
        let access = self.account.access(DEADLINE).map_err(|error| error.to_string())?;
        Kubernetes::lasting(&access).present_group().await.map_err(|error| error.to_string())
    }
}

fn way_out(configured: ApiGroup, found: ApiGroup) -> String {
    let (configured, found) = (configured.api_version(), found.api_version());
    format!(
        "the plugins' configuration names the API group {configured}, and Calico's objects are in {found}: set CALICO_API_GROUP to \
         {found}, with the manifests of deploy/ by calico_api_group of the ConfigMap calico-config, and restart this pod"
    )
}
