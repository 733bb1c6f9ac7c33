//! [`GarbageCollector`]: garbage collection in a thread of the test, with a clock that a test can
//! advance.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use futures::future::FutureExt;
use kube_controllers::gc::{Clock, GarbageCollection};
use kube_controllers::runtime::Controller;
use kube_controllers::settings::Settings;
use libcalico::kubernetes::ApiGroup;

use super::{Connection, RunningControllers, default_settings, within};

/// The grace period of the tests.
pub const GRACE: Duration = Duration::from_secs(3);
/// Timeout of an expected effect, on a slow machine.
pub const SOON: Duration = Duration::from_secs(60);

/// A running garbage collection. It stops on drop.
#[allow(missing_debug_implementations, reason = "a part has none")]
pub struct GarbageCollector {
    running: RunningControllers,
    clock: Clock,
}

impl GarbageCollector {
    /// Starts garbage collection with the rights of a kubeconfig. `group` is `None` if Calico's
    /// objects are in etcd.
    pub fn start(
        group: Option<ApiGroup>,
        kubeconfig: PathBuf,
        settings: Settings,
    ) -> GarbageCollector {
        let (sender, receiver) = mpsc::channel();
        let connection = Connection::new(group, kubeconfig);
        let running =
            RunningControllers::start_with_lock(&connection, settings, move |context, watches| {
                let collection = GarbageCollection::new(context, watches);
                sender.send(collection.clock()).unwrap();
                vec![collection.run(context.clone()).boxed()]
            });
        GarbageCollector {
            running,
            clock: receiver.recv().unwrap(),
        }
    }

    /// Advances the clock of grace periods in steps until a condition holds.
    #[track_caller]
    pub fn advance_until(&self, step: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
        within(SOON, what, || {
            self.clock.advance(step);
            thread::sleep(Duration::from_millis(200));
            is_so()
        });
    }

    /// Advances the clock of grace periods and waits until a pass ends, which may have begun
    /// before.
    #[track_caller]
    pub fn pass_after(&self, step: Duration) {
        let before = self.passes("");
        self.clock.advance(step);
        within(SOON, "a pass", || self.passes("") > before);
    }

    /// Returns the number of full passes so far.
    pub fn full_passes(&self) -> u64 {
        self.passes("{scope=\"full\"}")
    }

    fn passes(&self, labels: &str) -> u64 {
        let count = format!("kube_controllers_gc_pass_duration_seconds_count{labels}");
        let text = self.metrics();
        let counts = text.lines().filter(|line| line.starts_with(&count));
        counts
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    /// Waits until the metrics contain a line.
    #[track_caller]
    pub fn await_metric(&self, line: &str) {
        within(SOON, line, || self.has_metric(line));
    }

    /// Waits until the first full pass is over.
    #[track_caller]
    pub fn await_first_pass(&self) {
        within(SOON, "a first pass", || {
            self.metrics()
                .contains("kube_controllers_gc_pass_duration_seconds_count{scope=\"full\"} ")
        });
    }
}

impl Deref for GarbageCollector {
    type Target = RunningControllers;

    fn deref(&self) -> &RunningControllers {
        &self.running
    }
}

/// Returns the settings of the tests.
pub fn settings(group: Option<ApiGroup>) -> Settings {
    Settings {
        leak_grace_period: Some(GRACE),
        ..default_settings(group)
    }
}
