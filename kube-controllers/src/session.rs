//! One life of the controllers: from their subscription until they are stopped, or until settings change that they are
//! built from.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::feed::Feeds;
use crate::roster::{Enlisted, enlist};
use crate::settings::Settings;
use crate::status::Status;

/// How long controllers and feeds may take to end: a write that was sent has its answer by then.
const DRAIN: Duration = Duration::from_secs(8);

/// Why the controllers ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// They were told to.
    Stopped,
    /// Other settings came into force.
    Changed,
    /// One of them ended by itself, which none should.
    Broken,
}

/// Runs what the present settings ask for, until `stop` or until that changes. Until each feed has listed its kind,
/// `status` names in [`Component::Lists`](crate::status::Component::Lists) the kinds that are missing.
pub(crate) async fn run(context: &Context, status: &Status, stop: &CancellationToken) -> End {
    let settings = context.settings.borrow().clone();
    let context = Context { stop: stop.child_token(), ..context.clone() };
    let mut feeds = Feeds::default();
    let enlisted = enlist(&context, &settings, &mut feeds);
    let names: Vec<_> = enlisted.iter().map(|one| one.name).collect();
    tracing::info!("running: {}", if names.is_empty() { "nothing".into() } else { names.join(", ") });

    let mut tasks = JoinSet::new();
    for Enlisted { name, run } in enlisted {
        tasks.spawn(async move {
            run.await;
            name
        });
    }
    let feeds = feeds.start(&context);
    let end = tokio::select! {
        biased;
        () = stop.cancelled() => End::Stopped,
        () = replaced(&settings, context.settings.clone()) => End::Changed,
        Some(ended) = tasks.join_next() => {
            tracing::error!("a controller ended by itself: {ended:?}");
            End::Broken
        }
        never = feeds.await_lists(status) => match never {},
    };
    context.stop.cancel();
    let drained = async {
        while tasks.join_next().await.is_some() {}
        feeds.stopped().await;
    };
    if timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("not all controllers ended within {DRAIN:?}; they are cut off");
    }
    context.metrics.forget_controllers();
    end
}

/// Ends when settings are in force that what runs with `settings` must begin anew for.
async fn replaced(settings: &Settings, mut current: watch::Receiver<Arc<Settings>>) {
    if current.wait_for(|next| settings.restarts_for(next)).await.is_err() {
        // Nobody changes them any more.
        std::future::pending::<()>().await;
    }
}
