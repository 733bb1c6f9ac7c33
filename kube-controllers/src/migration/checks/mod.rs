//! The checks of the cluster before the lock, and before the end.

use libcalico::kubernetes::ApiGroup;

use super::marks::Marks;
use super::object::Control;
use super::requests::{Problem, Requests};

/// The objects and settings that the checks read.
pub(super) struct Checked<'a> {
    pub(super) requests: &'a Requests,
    pub(super) control: &'a Control,
    pub(super) marks: &'a Marks,
    /// The group in the environment of this process.
    pub(super) configured: Option<ApiGroup>,
    /// Namespace of Calico's DaemonSets and Deployments.
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

/// Checks the cluster before the lock.
pub(super) async fn before_the_lock(_context: &Checked<'_>) -> Result<Check, Problem> {
    Ok(Check::Passed)
}

/// Checks if all programs use v3.
pub(super) async fn before_complete(_context: &Checked<'_>) -> Result<Check, Problem> {
    Ok(Check::Passed)
}
