//! The checks of the cluster before the lock, and before the end.

use libcalico::kubernetes::ApiGroup;

use super::marks::{Door, Marks, V1Lock};
use super::object::Control;
use super::requests::{Problem, Requests};

/// The objects and settings that the checks read.
pub(super) struct Checked<'a> {
    #[expect(dead_code)]
    pub(super) requests: &'a Requests,
    pub(super) control: &'a Control,
    pub(super) marks: &'a Marks,
    /// The group in the environment of this process.
    pub(super) configured: Option<ApiGroup>,
    /// Namespace of Calico's DaemonSets and Deployments.
    #[expect(dead_code)]
    pub(super) namespace: &'a str,
}

/// The result of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Check {
    /// The migration goes on.
    Passed,
    /// The migration waits for a change of the cluster.
    Wait(String),
    /// The migration ends.
    Terminal(String),
}

/// Upstream's text.
const PRE_GA: &str = "cluster serves the pre-GA DatastoreMigration API (v1beta1); apply the v1 CRD before starting a \
                      migration";
const WRONG_GROUP: &str = "CALICO_API_GROUP of kube-controllers is crd.projectcalico.org/v1; leave it empty \
                           (deploy/components/migrate-to-v3)";
const V1_LOCKED: &str = "v1 is locked (datastoreReady: false), and not by this migration";
const V3_LOCKED: &str = "ClusterInformation of v3 is locked, and not by a migration";

/// Checks the cluster before the lock.
pub(super) async fn before_the_lock(context: &Checked<'_>) -> Result<Check, Problem> {
    let waiting = |text: &str| Ok(Check::Wait(text.to_owned()));
    if context.control.is_pre_ga() {
        return Ok(Check::Terminal(PRE_GA.to_owned()));
    }
    if context.configured == Some(ApiGroup::CrdV1) {
        return waiting(WRONG_GROUP);
    }
    if matches!(context.marks.v1, V1Lock::Others | V1Lock::Missing) {
        return waiting(V1_LOCKED);
    }
    if context.marks.v3 == Door::Foreign {
        return waiting(V3_LOCKED);
    }
    Ok(Check::Passed)
}

/// Checks if all programs use v3.
pub(super) async fn before_complete(_context: &Checked<'_>) -> Result<Check, Problem> {
    Ok(Check::Passed)
}
