//! [`PodStarts`]: the starts of pods beside writers of the configuration directory.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde_json::Value;

use super::{EXTENSIONS_OF_RUNTIMES, kinds, names};

/// Pause between two starts: shorter than the time that a neighbor needs to notice a change.
const PAUSE: Duration = Duration::from_micros(500);

/// Reads the configuration again and again, as a runtime does for each pod, and checks that it
/// contains a plugin.
#[derive(Debug)]
pub struct PodStarts {
    kind: &'static str,
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Option<String>)>,
}

impl PodStarts {
    /// Begins to start pods, which need the plugin `kind`.
    pub fn watch(directory: &Path, kind: &'static str) -> PodStarts {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (stop, directory) = (is_stopped.clone(), directory.to_owned());
        let thread = thread::spawn(move || {
            let mut starts = 0;
            while !stop.load(Ordering::SeqCst) {
                thread::sleep(PAUSE);
                let Some(text) = chosen(&directory) else {
                    continue;
                };
                starts += 1;
                if !kinds(&text).iter().any(|found| found == kind) {
                    return (starts, Some(text));
                }
            }
            (starts, None)
        });
        PodStarts {
            kind,
            is_stopped,
            thread,
        }
    }

    /// Ends the starts, and returns their number. Returns an error if a pod started without the
    /// plugin.
    pub fn end(self) -> Result<usize> {
        self.is_stopped.store(true, Ordering::SeqCst);
        let (starts, lacking) = self
            .thread
            .join()
            .map_err(|_| anyhow!("the starts of pods panicked"))?;
        ensure!(
            lacking.is_none(),
            "pod {starts} started without {}: {lacking:?}",
            self.kind
        );
        Ok(starts)
    }
}

/// Returns the configuration that a runtime uses; `None` also if its text is incomplete.
fn chosen(directory: &Path) -> Option<String> {
    let name = names(directory, &EXTENSIONS_OF_RUNTIMES)
        .into_iter()
        .next()?;
    let text = fs::read_to_string(directory.join(name)).ok()?;
    serde_json::from_str::<Value>(&text)
        .is_ok_and(|conf| conf.is_object())
        .then_some(text)
}
