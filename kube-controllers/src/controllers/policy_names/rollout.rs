//! [`Rollout`]: checks if the DaemonSet `calico-node` is rolled out in its newest version (KC-284).

use libcalico::kubernetes::{Location, Resource};
use serde::Deserialize;

use crate::controllers::custom_resource::is_not_found;
use crate::leader::namespace_of_pod;

const DAEMON_SETS: Resource =
    Resource { api_version: "apps/v1", kind: "DaemonSet", plural: "daemonsets", namespaced: true };
const NAME: &str = "calico-node";
/// Namespace of the DaemonSet if the namespace of this process's pod is unknown.
const NAMESPACE: &str = "calico-system";
/// Variable that skips the check if its value is `true`. Upstream's tests set it, because they have no DaemonSet.
const SKIP: &str = "FV_TEST";

pub(super) struct Rollout {
    kubernetes: kube::Client,
    namespace: String,
    skip: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RolloutBlocker {
    /// The DaemonSet is missing, for example because Canal uses another name.
    #[error("the DaemonSet {namespace}/{NAME} is missing")]
    Missing { namespace: String },
    #[error("cannot read the DaemonSet {namespace}/{NAME}; no policy is renamed: {cause}")]
    Unreadable { namespace: String, cause: kube::Error },
    #[error("the roll-out of the DaemonSet {namespace}/{NAME} is not complete")]
    InProgress { namespace: String },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DaemonSet {
    metadata: Metadata,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    generation: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_generation: i64,
    desired_number_scheduled: i32,
    current_number_scheduled: i32,
    updated_number_scheduled: i32,
    number_unavailable: i32,
    number_misscheduled: i32,
}

impl Rollout {
    /// Selects the DaemonSet in the namespace of this process's pod, or else in [`NAMESPACE`]. Sends no request.
    pub(super) fn from_environment(kubernetes: kube::Client) -> Self {
        let namespace = namespace_of_pod().unwrap_or_else(|| NAMESPACE.into());
        let skip = std::env::var(SKIP).is_ok_and(|value| value == "true");
        Rollout { kubernetes, namespace, skip }
    }

    pub(super) async fn check_complete(&self) -> Result<(), RolloutBlocker> {
        if self.skip {
            return Ok(());
        }
        let namespace = self.namespace.clone();
        match self.read().await {
            Ok(daemon_set) if daemon_set.is_rolled_out() => Ok(()),
            Ok(_) => Err(RolloutBlocker::InProgress { namespace }),
            Err(cause) if is_not_found(&cause) => Err(RolloutBlocker::Missing { namespace }),
            Err(cause) => Err(RolloutBlocker::Unreadable { namespace, cause }),
        }
    }

    async fn read(&self) -> kube::Result<DaemonSet> {
        let path = Location::namespaced(DAEMON_SETS, &self.namespace, NAME).url_path();
        let request = hyper::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        self.kubernetes.request(request).await
    }
}

impl DaemonSet {
    /// Returns true if every required pod runs, all pods are up to date and available, and none is on a wrong node.
    fn is_rolled_out(&self) -> bool {
        let status = &self.status;
        status.observed_generation == self.metadata.generation
            && status.current_number_scheduled == status.desired_number_scheduled
            && status.updated_number_scheduled == status.desired_number_scheduled
            && status.number_unavailable == 0
            && status.number_misscheduled == 0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rollout_is_complete_only_if_every_daemonset_count_matches() {
        let complete = json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 2,
            "desiredNumberScheduled": 3, "currentNumberScheduled": 3, "updatedNumberScheduled": 3}});
        let is_complete = |json| serde_json::from_value::<DaemonSet>(json).unwrap().is_rolled_out();
        assert!(is_complete(complete.clone()));
        assert!(is_complete(json!({"status": {}})));
        for (field, value) in [
            ("observedGeneration", 1),
            ("currentNumberScheduled", 2),
            ("updatedNumberScheduled", 2),
            ("numberUnavailable", 1),
            ("numberMisscheduled", 1),
        ] {
            let mut other = complete.clone();
            other["status"][field] = json!(value);
            assert!(!is_complete(other), "{field}");
        }
    }
}
