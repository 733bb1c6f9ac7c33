//! Log lines kept in memory, for tests.

use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

use crate::settings::LogSeverity;

/// A second subscriber, which no thread uses. With a single subscriber, tracing caches for each
/// line of code if it is enabled, by the thread that reaches the line first. A thread that logs
/// nothing would then disable the line for all threads. With two subscribers, tracing consults
/// both.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

/// The lines that a thread has logged. Clones share the lines.
#[derive(Debug, Clone, Default)]
pub struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// Captures the lines that this thread logs at `severity` or above, until the guard is dropped.
    pub fn on_this_thread(severity: LogSeverity) -> (Captured, DefaultGuard) {
        LazyLock::force(&SECOND);
        let captured = Captured::default();
        let writer = captured.clone();
        let (subscriber, _) = super::subscriber(severity, move || writer.clone());
        let guard = tracing::subscriber::set_default(subscriber);
        (captured, guard)
    }

    /// Returns all lines so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Returns the lines that contain `text`, each from the start of `text`.
    pub fn from(&self, text: &str) -> Vec<String> {
        self.text()
            .lines()
            .filter_map(|line| line.find(text).map(|at| line[at..].to_owned()))
            .collect()
    }
}

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
