//! Runs the controllers with one set of settings: from their subscription until they are stopped, or until a setting
//! changes that requires new controllers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::registry::{self, RegisteredController};
use crate::context::Context;
use crate::settings::Settings;
use crate::status::Status;
use crate::watches::Watches;

/// Time limit for controllers and watches to end. Every write that was sent has its response by then.
const DRAIN: Duration = Duration::from_secs(8);

/// The reason why the controllers ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecycleEnd {
    /// The process is stopping.
    Stopped,
    /// Settings changed that require new controllers.
    Changed,
    /// A controller ended by itself, which is a bug.
    Broken,
}

/// Runs the controllers that the present settings enable, until `stop` or until the settings require other controllers.
/// Until each watch has listed its kind, `status` names the missing kinds in
/// [`Component::Lists`](crate::status::Component::Lists).
pub(super) async fn run_until_changed(context: &Context, status: &Status, stop: &CancellationToken) -> LifecycleEnd {
    let settings = context.settings.borrow().clone();
    let context = Context { stop: stop.child_token(), ..context.clone() };
    let mut watches = Watches::default();
    let controllers = registry::build(&context, &settings, &mut watches);
    let names: Vec<_> = controllers.iter().map(|controller| controller.name).collect();
    tracing::info!("running: {}", if names.is_empty() { "nothing".into() } else { names.join(", ") });

    let mut tasks = JoinSet::new();
    for RegisteredController { name, run } in controllers {
        tasks.spawn(async move {
            run.await;
            name
        });
    }
    let running = watches.start(&context);
    let end = tokio::select! {
        biased;
        () = stop.cancelled() => LifecycleEnd::Stopped,
        () = wait_for_restart(&settings, context.settings.clone()) => LifecycleEnd::Changed,
        Some(ended) = tasks.join_next() => {
            tracing::error!("a controller ended by itself: {ended:?}");
            LifecycleEnd::Broken
        }
        never = running.await_lists(status) => match never {},
    };
    context.stop.cancel();
    let drained = async {
        while tasks.join_next().await.is_some() {}
        running.stopped().await;
    };
    if timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("not all controllers ended within {DRAIN:?}; they are cut off");
    }
    context.metrics.forget_controllers();
    end
}

/// Waits until settings are in force for which controllers that run with `settings` have to be restarted.
async fn wait_for_restart(settings: &Settings, mut current: watch::Receiver<Arc<Settings>>) {
    if current.wait_for(|next| settings.restarts_for(next)).await.is_err() {
        // The sender is gone, so the settings never change again.
        std::future::pending::<()>().await;
    }
}
