//! The migration of Calico's objects from `crd.projectcalico.org/v1` to `projectcalico.org/v3`,
//! which the object `v1-to-v3` of the kind DatastoreMigration starts (MIG-57).
//!
//! The migration locks v1, copies all objects, and opens v3. Then the plugins use v3, as
//! `datastore/src/kubernetes/migration` decides; this process ends, and its successor waits for the
//! other programs.
//!
//! Read `marks` first, which derives each step from the objects, and then `pass`. The migration is
//! no controller: controllers write only while the datastore is unlocked, and the migration itself
//! locks it. The crate `kube-controllers` has the process around it: the leader election, the
//! metrics and the end.

mod abort;
mod api_service;
mod attempts;
mod checks;
mod copy;
mod end;
mod late_writes;
mod listing;
mod lock;
mod marks;
mod metrics;
mod object;
mod pass;
mod report;
mod requests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod v3_access;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use kube_controllers::leader::namespace_of_pod;
use kube_controllers::run::MigrationContext;
use libcalico::kubernetes::ApiGroup;
use tokio::time::sleep;

use pass::{Migration, Next};
use requests::Requests;

/// Namespace of Calico's DaemonSets and Deployments if the namespace of this process's pod is
/// unknown.
const NAMESPACE: &str = "calico-system";

/// Follows the object of the migration while this replica is the leader, until the process stops.
/// Returns the group of the objects once that is another one than this process uses.
pub fn run(context: MigrationContext) -> LocalBoxFuture<'static, Option<ApiGroup>> {
    // On the heap, because a thread's stack is too small for the futures of a migration and of its
    // callers.
    follow(context).boxed_local()
}

async fn follow(context: MigrationContext) -> Option<ApiGroup> {
    let MigrationContext {
        kubernetes,
        configured,
        used,
        elected,
        metrics,
        stop,
    } = context;
    let namespace = namespace_of_pod().unwrap_or_else(|| NAMESPACE.into());
    let following = async {
        loop {
            elected.clone().gained().await;
            let requests = Requests::new(kubernetes.clone(), elected.clone());
            let mut migration = Migration::new(
                requests,
                configured,
                used,
                namespace.clone(),
                metrics.clone(),
            );
            let passes = async {
                loop {
                    match migration.pass().await {
                        Next::After(pause) => sleep(pause).await,
                        Next::Ended(group) => return group,
                    }
                }
            };
            if let Some(group) = elected.while_held(passes).await {
                return group;
            }
        }
    };
    stop.run_until_cancelled(following).await
}
