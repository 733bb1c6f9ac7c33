//! [`moved`]: ends the process when Calico's objects move to another API group. Upstream's migration to
//! `projectcalico.org/v3` moves them.

use std::time::Duration;

use datastore::Datastore;
use datastore::kubernetes::{changed_group, settled_group};

use crate::context::Mode;
use crate::startup::{Clients, StartError};

/// Interval between two requests to the API server.
const PERIOD: Duration = Duration::from_secs(60);

/// Waits until Calico's objects are in another API group than at the start of the process. If the environment names a
/// group that did not hold the objects even at the start, the process logs that and continues: a restart would not
/// help, because the environment stays the same.
pub(crate) async fn moved(clients: &Clients) -> StartError {
    let (Mode::Kubernetes(used), Datastore::Kubernetes(calico)) = (clients.mode, &*clients.calico) else {
        return std::future::pending().await;
    };
    let ask = async || calico.present_group().await;
    let began = match calico.configured_group() {
        None => used,
        Some(_) => settled_group(PERIOD, ask).await,
    };
    if began != used {
        tracing::error!(
            "CALICO_API_GROUP names {}, and Calico's objects are in {}: set CALICO_API_GROUP to that, with the manifests of deploy/ \
             by calico_api_group of the ConfigMap calico-config",
            used.api_version(),
            began.api_version()
        );
    }
    let now = changed_group(began, PERIOD, ask).await;
    StartError::Moved { was: began.api_version(), now: now.api_version() }
}
