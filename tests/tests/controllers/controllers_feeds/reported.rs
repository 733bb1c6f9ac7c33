//! [`Reported`]: the objects that a watch reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::controllers::{Connection, RunningControllers, default_settings};
use kube_controllers::watched::Watched;
use kube_controllers::watches::{Cache, Event, Subscribers, Watches};
use libcalico::kubernetes::ApiGroup;

/// Timeout until changes are reported.
const PATIENCE: Duration = Duration::from_secs(90);

/// The objects that a watch reports. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Reported {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    synced: bool,
    known: BTreeMap<String, String>,
    lost: BTreeSet<String>,
    events: usize,
}

impl Reported {
    /// Subscribes to a watch; `show` returns the part of an object to compare.
    pub(crate) fn subscribe<T: Watched>(
        &self,
        watch: &mut Subscribers<T>,
        show: impl Fn(&T) -> String + Send + 'static,
    ) {
        let mut cache = Cache::<T::Key, String>::default();
        let state = self.state.clone();
        watch.subscribe(move |event: &Event<'_, T>| {
            let changed = cache.apply(event, |object| Some(show(object)));
            let mut state = state.lock().unwrap();
            state.events += 1;
            state.synced = cache.is_synced();
            for key in changed {
                match cache.get(&key) {
                    Some(value) => _ = state.known.insert(key.to_string(), value.clone()),
                    None => {
                        state.known.remove(&key.to_string());
                        state.lost.insert(key.to_string());
                    }
                }
            }
        });
    }

    /// Waits until the watch is synced and the reported objects are exactly `expected`.
    pub(crate) fn becomes(&self, expected: &BTreeMap<String, String>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            {
                let state = self.state.lock().unwrap();
                if state.synced && state.known == *expected {
                    return;
                }
                assert!(
                    Instant::now() < deadline,
                    "{:?}\nis not\n{expected:?}",
                    state.known
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the objects that were reported as deleted since the last call.
    pub(crate) fn deleted(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().lost)
            .into_iter()
            .collect()
    }

    pub(crate) fn events(&self) -> usize {
        self.state.lock().unwrap().events
    }
}

/// Starts watches, without a controller.
pub(crate) fn start(
    group: Option<ApiGroup>,
    connection: &Connection,
    subscribe: impl FnOnce(&mut Watches) + Send + 'static,
) -> RunningControllers {
    RunningControllers::start(connection, default_settings(group), |_, watches| {
        subscribe(watches);
        Vec::new()
    })
}
