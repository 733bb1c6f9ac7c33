//! Assigns addresses from Calico's pools to Services of type LoadBalancer, on etcd and on an API
//! server.
//!
//! The work is decided from the live Service and the addresses that are stored now. While a Service
//! has this type, an address is released only after the Service's status no longer shows it. Before
//! addresses are released because there is no pool, the pools are listed from the datastore. A
//! published address is replaced only after another address has been assigned. A Service that waits
//! for an address gets an Event with the reason.

mod addresses;
mod decision;
mod not_served;
mod offers;
mod pools;
mod reconcile;
mod reports;
mod request;
mod service;
mod service_cache;
mod status_writes;
#[cfg(test)]
mod tests;
mod wait_reason;
mod waiting;

pub use not_served::LoadBalancerReport;

use std::time::Duration;

use allocation::affinity::add_labels;
use libcalico::ipam::AffinityOwner;
use libcalico::store::StoreError;

use self::reconcile::ServiceReconciler;
use self::reports::{publish, reset_on_standby};
use super::cached::CachedController;
use crate::context::Context;
use crate::leader::Leadership;
use crate::runtime::{Controller, Reconcile};
use crate::watches::Watches;

/// The controller. Its keys are names of Services.
pub struct LoadBalancer(CachedController<ServiceReconciler>);

impl Controller for LoadBalancer {
    const NAME: &'static str = ServiceReconciler::NAME;

    fn new(context: &Context, watches: &mut Watches) -> Self {
        let controller = CachedController::<ServiceReconciler>::new(context, watches);
        publish(context, &controller.cache.lock().waiting);
        LoadBalancer(controller)
    }

    async fn run(self, context: Context) {
        let LoadBalancer(controller) = self;
        let waiting = controller.cache.lock().waiting.clone();
        let reset = reset_on_standby(
            context.leadership.clone(),
            waiting,
            controller.queue.clone(),
        );
        let work = async {
            if context
                .stop
                .run_until_cancelled(label_affinities(&context))
                .await
                .is_some()
            {
                controller.run(context.clone()).await;
            }
        };
        tokio::select! {
            () = work => {}
            () = reset => {}
        }
    }
}

/// First delay between two attempts to label block affinities. The delay doubles up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Adds labels to block affinities of Services that older versions wrote without labels (KC-503).
async fn label_affinities(context: &Context) {
    let owner = AffinityOwner::of_services();
    retry_until_done(context.leadership.clone(), || {
        add_labels(&*context.calico, &owner, &context.leadership)
    })
    .await;
}

/// Repeats `work` until it returns true, and runs it only while this process holds `right`. Waits
/// after an error.
async fn retry_until_done<F: Future<Output = Result<bool, StoreError>>>(
    mut right: Leadership,
    work: impl Fn() -> F,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        right.gained().await;
        match right.while_held(work()).await {
            Some(Ok(true)) => return,
            Some(Ok(false)) | None => continue,
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot label block affinities of Services; trying again")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
