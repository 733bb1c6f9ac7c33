//! Automatic HostEndpoints of nodes, in either datastore.
//!
//! [`libcalico::host_endpoints`] computes the desired endpoints; this controller compares them with the stored ones.
//! Only endpoints with Calico's own label are changed or deleted. Those of a missing node are deleted only after the
//! datastore has confirmed that the node is missing.

mod cache;
mod reconcile;
#[cfg(test)]
mod tests;

use self::reconcile::HostEndpointReconciler;
use super::cached::CachedController;

/// The controller. Its keys are names of Calico nodes. A Kubernetes node of the same name is not required.
pub type HostEndpoints = CachedController<HostEndpointReconciler>;
