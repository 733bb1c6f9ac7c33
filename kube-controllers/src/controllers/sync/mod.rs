//! Synchronization of Kubernetes objects to Calico objects in etcd. Each Calico object, the target, is made from one
//! Kubernetes object, the source. Three controllers work this way; [`SyncedKind`] describes their differences.
//!
//! A target is recognized by its name alone: every object whose name has the controller's prefix belongs to the
//! controller, regardless of its writer (KC-222). Only targets that differ are written. An update replaces `spec` and
//! keeps other writers' metadata (KC-224). Before a deletion the source is looked up in Kubernetes, because a watch may
//! lag behind the writes of another replica.

mod cache;
mod kind;
mod reconcile;
#[cfg(test)]
mod tests;

pub use kind::{SyncedKind, SyncedSpec};

use self::reconcile::Reconciler;
use super::cached::CachedController;

/// The controller of one kind.
pub type SyncController<M> = CachedController<Reconciler<M>>;
