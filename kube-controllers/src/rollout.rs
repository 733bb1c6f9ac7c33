//! [`Rollout`]: a DaemonSet or a Deployment. [`RolloutState`]: the progress of the roll-out of its
//! newest version.

use datastore::kubernetes::{ObjectError, ObjectRequest};
use libcalico::kubernetes::{Location, Resource};
use serde_json::Value;

/// DaemonSets of Kubernetes.
pub const DAEMON_SETS: Resource = Resource {
    api_version: "apps/v1",
    kind: "DaemonSet",
    plural: "daemonsets",
    namespaced: true,
};
/// Deployments of Kubernetes.
pub const DEPLOYMENTS: Resource = Resource {
    api_version: "apps/v1",
    kind: "Deployment",
    plural: "deployments",
    namespaced: true,
};

/// A DaemonSet or a Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    at: Location,
}

/// The progress of the roll-out of a newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutState {
    /// No controller has seen the newest version yet.
    NotBegun,
    /// Pods of the newest version are missing, or pods of older versions remain.
    Updating {
        /// Number of pods of the newest version.
        updated: i64,
        /// Number of pods to run.
        desired: i64,
    },
    /// All pods are of the newest version, and this number of them is not available.
    Unavailable(i64),
    /// All pods are available, and this number of other ones runs on wrong nodes.
    Misplaced(i64),
    /// All pods are of the newest version, and available.
    Complete,
}

impl Rollout {
    /// Selects an object of [`DAEMON_SETS`] or [`DEPLOYMENTS`]. Sends no request.
    pub fn of(namespace: &str, resource: Resource, name: &str) -> Self {
        Rollout {
            at: Location::namespaced(resource, namespace, name),
        }
    }

    /// Returns the location of the object.
    pub fn location(&self) -> &Location {
        &self.at
    }

    /// Reads the object.
    pub async fn state(&self, client: &kube::Client) -> Result<RolloutState, ObjectError> {
        let workload: Value = ObjectRequest::get(&self.at).send(client).await?;
        Ok(self.state_of(&workload))
    }

    /// Returns the state that the object shows.
    pub fn state_of(&self, workload: &Value) -> RolloutState {
        let status = &workload["status"];
        if number(&status["observedGeneration"]) != number(&workload["metadata"]["generation"]) {
            return RolloutState::NotBegun;
        }
        if self.at.resource == DEPLOYMENTS {
            of_deployment(&workload["spec"], status)
        } else {
            of_daemon_set(status)
        }
    }
}

fn of_daemon_set(status: &Value) -> RolloutState {
    let desired = number(&status["desiredNumberScheduled"]);
    let updated = number(&status["updatedNumberScheduled"]);
    let (unavailable, misplaced) = (
        number(&status["numberUnavailable"]),
        number(&status["numberMisscheduled"]),
    );
    if updated != desired || number(&status["currentNumberScheduled"]) != desired {
        RolloutState::Updating { updated, desired }
    } else if unavailable != 0 {
        RolloutState::Unavailable(unavailable)
    } else if misplaced != 0 {
        RolloutState::Misplaced(misplaced)
    } else {
        RolloutState::Complete
    }
}

fn of_deployment(spec: &Value, status: &Value) -> RolloutState {
    let desired = spec["replicas"].as_i64().unwrap_or(1);
    let (updated, available) = (
        number(&status["updatedReplicas"]),
        number(&status["availableReplicas"]),
    );
    if updated != desired || number(&status["replicas"]) != desired {
        RolloutState::Updating { updated, desired }
    } else if available < desired {
        RolloutState::Unavailable(desired - available)
    } else {
        RolloutState::Complete
    }
}

/// Returns a number of a status, which leaves out zeros.
fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the state after a change of one field of the status.
    fn changed(rollout: &Rollout, complete: &Value, field: &str, value: i64) -> RolloutState {
        let mut other = complete.clone();
        other["status"][field] = json!(value);
        rollout.state_of(&other)
    }

    #[test]
    fn rollout_is_complete_only_if_every_daemonset_count_matches() {
        let rollout = Rollout::of("kube-system", DAEMON_SETS, "calico-node");
        let status = json!({ "observedGeneration": 2, "desiredNumberScheduled": 3,
                "currentNumberScheduled": 3,
            "updatedNumberScheduled": 3 });
        let complete = json!({ "metadata": { "generation": 2 }, "status": status });
        assert_eq!(rollout.state_of(&complete), RolloutState::Complete);
        assert_eq!(
            rollout.state_of(&json!({ "status": {} })),
            RolloutState::Complete
        );
        for (field, value, expected) in [
            ("observedGeneration", 1, RolloutState::NotBegun),
            (
                "currentNumberScheduled",
                2,
                RolloutState::Updating {
                    updated: 3,
                    desired: 3,
                },
            ),
            (
                "updatedNumberScheduled",
                2,
                RolloutState::Updating {
                    updated: 2,
                    desired: 3,
                },
            ),
            ("numberUnavailable", 1, RolloutState::Unavailable(1)),
            ("numberMisscheduled", 1, RolloutState::Misplaced(1)),
        ] {
            assert_eq!(
                changed(&rollout, &complete, field, value),
                expected,
                "{field}"
            );
        }
    }

    #[test]
    fn deployment_is_complete_only_without_pods_of_an_older_version() {
        let rollout = Rollout::of("kube-system", DEPLOYMENTS, "calico-typha");
        let status = json!({
            "observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3,
        });
        let complete =
            json!({ "metadata": { "generation": 1 }, "spec": { "replicas": 3 }, "status": status });
        assert_eq!(rollout.state_of(&complete), RolloutState::Complete);
        for (field, value, expected) in [
            ("observedGeneration", 0, RolloutState::NotBegun),
            (
                "replicas",
                4,
                RolloutState::Updating {
                    updated: 3,
                    desired: 3,
                },
            ),
            (
                "updatedReplicas",
                1,
                RolloutState::Updating {
                    updated: 1,
                    desired: 3,
                },
            ),
            ("availableReplicas", 1, RolloutState::Unavailable(2)),
        ] {
            assert_eq!(
                changed(&rollout, &complete, field, value),
                expected,
                "{field}"
            );
        }
        let one = json!({ "status": { "replicas": 1, "updatedReplicas": 1 } });
        assert_eq!(
            rollout.state_of(&one),
            RolloutState::Unavailable(1),
            "the API server sets one replica by default"
        );
    }

    #[test]
    fn stopped_deployment_is_complete() {
        let rollout = Rollout::of("kube-system", DEPLOYMENTS, "calico-typha");
        let stopped = json!({ "spec": { "replicas": 0 }, "status": {} });
        assert_eq!(rollout.state_of(&stopped), RolloutState::Complete);
        assert_eq!(
            rollout.location().url_path(),
            "/apis/apps/v1/namespaces/kube-system/deployments/calico-typha"
        );
    }
}
