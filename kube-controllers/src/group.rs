//! [`moved`]: ends the process when Calico's objects move to another API group, as upstream's migration to
//! `projectcalico.org/v3` moves them.

use std::time::Duration;

use datastore::Datastore;
use datastore::kubernetes::{changed_group, settled_group};

use crate::context::Mode;
use crate::startup::{Clients, StartError};

/// How often the API server is asked.
const PERIOD: Duration = Duration::from_secs(60);

/// Waits until Calico's objects are in another API group than when the process began. Where the environment names a
/// group in which the objects were not even then, the log says so, and the process goes on: it would begin with the
/// same environment again.
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
