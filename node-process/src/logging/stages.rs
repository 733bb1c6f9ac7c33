//! [`StageTimes`]: the durations of the stages of a call, which are spans with the target
//! [`TARGET`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The target of the spans of stages.
pub const TARGET: &str = "stage";

/// Creates the span of a stage. The stage lasts until the span is closed.
#[macro_export]
macro_rules! stage {
    ($name:literal) => {
        ::tracing::info_span!(target: $crate::logging::stages::TARGET, $name)
    };
}

/// The stages that have ended, in this order, with their durations.
#[derive(Debug, Clone, Default)]
pub struct StageTimes(Arc<Mutex<Vec<(&'static str, Duration)>>>);

/// The time at which a stage began.
struct Begun(Instant);

impl StageTimes {
    /// Adds a stage that has no span, for example because it ended before logging began.
    pub fn record(&self, name: &'static str, took: Duration) {
        self.lock().push((name, took));
    }

    /// Returns the stages that have ended.
    pub fn ended(&self) -> Vec<(&'static str, Duration)> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(&'static str, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for StageTimes {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, spans: Context<'_, S>) {
        if attributes.metadata().target() == TARGET
            && let Some(span) = spans.span(id)
        {
            span.extensions_mut().insert(Begun(Instant::now()));
        }
    }

    fn on_close(&self, id: Id, spans: Context<'_, S>) {
        let Some(span) = spans.span(&id) else { return };
        if let Some(Begun(at)) = span.extensions().get::<Begun>() {
            self.record(span.name(), at.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn stages_are_listed_in_the_order_of_their_ends() {
        let times = StageTimes::default();
        times.record("parse", Duration::ZERO);
        let subscriber = tracing_subscriber::registry().with(times.clone());
        tracing::subscriber::with_default(subscriber, || {
            let outer = stage!("outer");
            stage!("inner").in_scope(|| ());
            tracing::info_span!("other").in_scope(|| ());
            drop(outer);
        });
        let names: Vec<_> = times.ended().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["parse", "inner", "outer"]);
    }
}
