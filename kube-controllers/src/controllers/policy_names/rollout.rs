//! [`Rollout`]: whether `calico-node` runs everywhere in its newest version (KC-284).

use libcalico::kubernetes::{Location, Resource};
use serde::Deserialize;

use crate::controllers::refusal::is_not_found;
use crate::leader::namespace_of_pod;

const DAEMON_SETS: Resource =
    Resource { api_version: "apps/v1", kind: "DaemonSet", plural: "daemonsets", namespaced: true };
const NAME: &str = "calico-node";
/// Where we are if nobody says so.
const NAMESPACE: &str = "calico-system";
/// Set by tests of upstream's, which have no DaemonSet.
const SKIP: &str = "FV_TEST";

/// The DaemonSet to look at.
pub(super) struct Rollout {
    kubernetes: kube::Client,
    namespace: String,
    skip: bool,
}

/// Why it is not complete.
#[derive(Debug, thiserror::Error)]
pub(super) enum Obstacle {
    /// There is none: Canal calls it otherwise, or it is yet to be installed.
    #[error("there is no DaemonSet {namespace}/{NAME}")]
    Missing {
        /// Where it was looked for.
        namespace: String,
    },
    /// The DaemonSet cannot be read.
    #[error("reading the DaemonSet {namespace}/{NAME}, without which no policy is renamed: {cause}")]
    Unread {
        /// Where it was looked for.
        namespace: String,
        /// Why.
        cause: kube::Error,
    },
    /// It is under way.
    #[error("the roll-out of the DaemonSet {namespace}/{NAME} is not complete")]
    UnderWay {
        /// Where it is.
        namespace: String,
    },
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
    /// In the namespace that this process runs in.
    pub(super) fn of_environment(kubernetes: kube::Client) -> Self {
        let namespace = namespace_of_pod().unwrap_or_else(|| NAMESPACE.into());
        let skip = std::env::var(SKIP).is_ok_and(|value| value == "true");
        Rollout { kubernetes, namespace, skip }
    }

    pub(super) async fn is_complete(&self) -> Result<(), Obstacle> {
        if self.skip {
            return Ok(());
        }
        let namespace = &self.namespace;
        let unread = |cause| match is_not_found(&cause) {
            true => Obstacle::Missing { namespace: namespace.clone() },
            false => Obstacle::Unread { namespace: namespace.clone(), cause },
        };
        let path = Location::namespaced(DAEMON_SETS, namespace, NAME).url_path();
        let request =
            hyper::Request::get(path).body(Vec::new()).map_err(|error| unread(kube::Error::HttpError(error)))?;
        let daemon_set = self.kubernetes.request::<DaemonSet>(request).await.map_err(unread)?;
        let complete = daemon_set.is_rolled_out();
        complete.then_some(()).ok_or_else(|| Obstacle::UnderWay { namespace: namespace.clone() })
    }
}

impl DaemonSet {
    /// One that wants no pods is.
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
    fn every_number_counts() {
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
