//! The right to write ends in the middle of a pass.

use tokio::sync::watch;
use tokio::time::Instant;

use super::*;
use crate::controllers::testing::{embedded, settings};
use crate::runtime::{Deadline, Tenure};

#[tokio::test(start_paused = true)]
async fn pass_goes_no_further_when_the_right_to_write_ends() {
    let (_dir, calico) = embedded();
    let asked = Arc::new(AtomicUsize::new(0));
    let right = Duration::from_secs(5);
    let (_sender, tenure) = watch::channel(Tenure::Until(Deadline::now().plus(right)));
    let context = Context {
        kubernetes: failing(asked.clone()),
        calico,
        mode: Mode::Etcd,
        settings: watch::channel(Arc::new(settings())).1,
        leadership: Leadership::new(tenure),
        metrics: Metrics::new(),
        stop: CancellationToken::new(),
    };
    let known = Known::new(Mode::Etcd, leaky(), &mut Feeds::default());
    let metrics = PassMetrics::new(&context.metrics).unwrap();
    let mut collector = Collector::new(context, known, Clock::start(), metrics);
    let begin = Instant::now();
    collector.pass(Scope::Changed).await;
    assert_eq!((begin.elapsed(), asked.load(Ordering::Relaxed)), (right, 1), "the answer was not waited for");
}
