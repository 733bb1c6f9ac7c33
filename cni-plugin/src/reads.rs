//! The reads of the verbs: for each verb one batch of objects, and for a pod that may run a virtual
//! machine also its VMI.

mod add;
mod call_batch;
mod check;
mod cluster;
mod del;
mod endpoints;
mod pod;
mod status;

pub use self::add::{AddReads, for_add};
pub use self::check::{CheckReads, for_check};
pub use self::cluster::ensure_cluster_is_ready;
pub use self::del::{DelReadError, DelReads, RecordedIdentity, UnreadDel, for_del};
pub use self::pod::{WorkloadRequest, detect_vmi, pod_with_namespace};
pub use self::status::for_status;

#[cfg(test)]
mod tests;
