//! [`RuleSet`]: the rights that only an optional controller needs. A separate role grants them.
//!
//! A cluster that does not use such a controller need not bind the role. A controller without its
//! rights is not started, and all others run. The API server is asked again every minute, and all
//! controllers restart when its answer has changed.

use std::collections::BTreeSet;
use std::time::Duration;

use datastore::kubernetes::is_allowed;
use futures::future::join_all;
use libcalico::kubernetes::ApiGroup;
use tokio::time::{sleep, timeout};

use crate::context::Context;
use crate::settings::{ControllerName, Mode, Settings};
use crate::status::{Component, Status};

/// Interval at which the API server is asked again which rights this process has.
const INTERVAL: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(5);

/// The rights that one controller needs beyond those that all controllers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleSet {
    LoadBalancer,
    HostEndpoints,
    /// The rights of the controller that replaces policies under the names of an older Calico.
    PolicyNames,
}

const ALL: [RuleSet; 3] = [
    RuleSet::LoadBalancer,
    RuleSet::HostEndpoints,
    RuleSet::PolicyNames,
];

impl RuleSet {
    /// Returns the name of the role that grants the rights.
    fn role(self) -> &'static str {
        match self {
            RuleSet::LoadBalancer => "calico-kube-controllers-load-balancer",
            RuleSet::HostEndpoints => "calico-kube-controllers-host-endpoints",
            RuleSet::PolicyNames => "calico-kube-controllers-policy-names",
        }
    }

    /// Returns the right that stands for all rights of the set: API group, resource, subresource
    /// and verb. `None` if the controller needs no right of its own with this datastore.
    fn right(self, mode: Mode) -> Option<[&'static str; 4]> {
        match (self, mode) {
            (RuleSet::LoadBalancer, _) => Some(["", "services", "status", "update"]),
            (RuleSet::HostEndpoints, Mode::Kubernetes(group)) => {
                Some([group.name(), "hostendpoints", "", "create"])
            }
            (RuleSet::PolicyNames, Mode::Kubernetes(group @ ApiGroup::CrdV1)) => {
                Some([group.name(), "globalnetworkpolicies", "", "delete"])
            }
            (RuleSet::PolicyNames, Mode::Etcd) => Some(["apps", "daemonsets", "", "get"]),
            (RuleSet::HostEndpoints, Mode::Etcd) | (RuleSet::PolicyNames, Mode::Kubernetes(_)) => {
                None
            }
        }
    }

    fn is_enabled(self, settings: &Settings) -> bool {
        match self {
            RuleSet::LoadBalancer => settings.enabled.contains(&ControllerName::LoadBalancer),
            RuleSet::HostEndpoints => settings.host_endpoints.enabled,
            RuleSet::PolicyNames => settings.policy_name_migrator,
        }
    }
}

/// Returns the sets that the API server refuses to this process. A set for which no answer comes
/// counts as refused if it is in `before`, and else as granted, so that an unreachable API server
/// restarts no controller.
pub(super) async fn refused(context: &Context, before: &BTreeSet<RuleSet>) -> BTreeSet<RuleSet> {
    let answers = ALL.into_iter().map(async |set| {
        let is_refused = is_refused(&context.kubernetes, set.right(context.mode)?).await;
        is_refused
            .unwrap_or_else(|| before.contains(&set))
            .then_some(set)
    });
    join_all(answers).await.into_iter().flatten().collect()
}

/// Returns true if the API server refuses the right to this process, and false if it grants the
/// right; `None` without a valid answer.
async fn is_refused(kubernetes: &kube::Client, right: [&str; 4]) -> Option<bool> {
    let is_allowed = timeout(DEADLINE, is_allowed(kubernetes, right))
        .await
        .ok()?
        .ok()??;
    Some(!is_allowed)
}

/// Waits until the API server refuses other sets than `refused`. For each refused set whose
/// controller the settings enable, writes one log line, sets a metric and adds the role to the
/// status.
pub(super) async fn await_change(context: &Context, status: &Status, refused: &BTreeSet<RuleSet>) {
    let mut settings = context.settings.clone();
    loop {
        let current = settings.borrow_and_update().clone();
        report(context, status, &current, refused);
        tokio::select! {
            () = sleep(INTERVAL) => {}
            Ok(()) = settings.changed() => continue,
        }
        if self::refused(context, refused).await != *refused {
            return;
        }
    }
}

fn report(context: &Context, status: &Status, settings: &Settings, refused: &BTreeSet<RuleSet>) {
    let mut missing = Vec::new();
    for set in ALL {
        let is_missing = refused.contains(&set) && set.is_enabled(settings);
        let role = set.role();
        let label = role
            .strip_prefix("calico-kube-controllers-")
            .unwrap_or(role);
        let was_missing = context.metrics.set_missing_rights(label, is_missing);
        if is_missing && !was_missing {
            tracing::warn!(
                role,
                hint = "bind the role of this version; the controller starts within a minute",
                "the role of an enabled controller is missing, not bound or outdated"
            );
        }
        if is_missing {
            missing.push(role);
        }
    }
    match &missing[..] {
        [] => status.remove(Component::Roles),
        missing => status.ready_with_note(
            Component::Roles,
            format!(
                "the controllers of these roles do not run, because the roles are missing, not \
                 bound or outdated: {}",
                missing.join(", ")
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controllers::testing::refusing_kubernetes;

    #[tokio::test]
    async fn review_without_an_answer_neither_grants_nor_refuses() {
        for (answer, expected) in [
            (Ok(json!({ "status": { "allowed": false } })), Some(true)),
            (Ok(json!({ "status": { "allowed": true } })), Some(false)),
            (Ok(json!({})), None),
            (Err(503_u16), None),
        ] {
            let server = refusing_kubernetes(move |_| answer.clone());
            assert_eq!(
                is_refused(&server, ["", "services", "status", "update"]).await,
                expected
            );
        }
    }

    #[test]
    fn each_set_has_a_right_only_where_its_controller_needs_one() {
        let with_right = |mode| {
            ALL.into_iter()
                .filter(|set| set.right(mode).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(with_right(Mode::Kubernetes(ApiGroup::CrdV1)), ALL);
        assert_eq!(
            with_right(Mode::Kubernetes(ApiGroup::V3)),
            [RuleSet::LoadBalancer, RuleSet::HostEndpoints]
        );
        assert_eq!(
            with_right(Mode::Etcd),
            [RuleSet::LoadBalancer, RuleSet::PolicyNames]
        );
    }

    #[test]
    fn role_of_each_right_is_in_the_manifests_of_the_datastore() {
        let etcd =
            include_str!("../../../deploy/rbac/etcd/calico-kube-controllers.yaml").to_owned();
        let kubernetes = [
            include_str!("../../../deploy/rbac/kubernetes/calico-kube-controllers.yaml"),
            include_str!("../../../deploy/components/host-endpoints/rbac.yaml"),
        ];
        for (mode, manifests) in [
            (Mode::Etcd, etcd),
            (Mode::Kubernetes(ApiGroup::CrdV1), kubernetes.concat()),
        ] {
            for set in ALL.into_iter().filter(|set| set.right(mode).is_some()) {
                let role = format!("kind: ClusterRole\nmetadata:\n  name: {}\n", set.role());
                assert!(manifests.contains(&role), "{mode:?}: {role}");
            }
        }
    }
}
