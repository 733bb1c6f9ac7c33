//! The log: lines in Calico's format on stderr, at a severity that can change.

pub mod captured;

use std::any::Any;
use std::io;

use node_process::logging::line::{Fields, LineFormat};
use tracing::Subscriber;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;

use crate::settings::LogSeverity;

const COMPONENT: &str = "kube-controllers";

/// The crates that log at the configured severity. Other libraries log at `error`, because their
/// debug events contain request headers, and so tokens.
const OWN_CRATES: [&str; 7] = [
    "kube_controllers",
    "migration",
    "allocation",
    "datastore",
    "node_process",
    "os",
    "libcalico",
];

/// Handle that changes the severity. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Severity {
    handle: reload::Handle<Targets, Registry>,
}

impl Severity {
    /// Sets the severity: later lines below this severity are not logged.
    pub fn set(&self, severity: LogSeverity) {
        // Fails only if the subscriber, and so the log, no longer exists.
        let _ = self.handle.reload(targets(severity));
    }
}

/// Starts logging for this process. Only the first call has an effect.
pub fn init(severity: LogSeverity) -> Severity {
    let (subscriber, severity) = subscriber(severity, io::stderr);
    // An error means that a subscriber is set already.
    let _ = tracing::subscriber::set_global_default(subscriber);
    severity
}

/// Returns the subscriber that writes events as lines, and the handle that changes the severity.
pub fn subscriber<W>(severity: LogSeverity, writer: W) -> (impl Subscriber + Send + Sync, Severity)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(targets(severity));
    let format = LineFormat::new(COMPONENT);
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(Fields)
        .event_format(format)
        .with_writer(writer);
    (
        tracing_subscriber::registry().with(filter).with(lines),
        Severity { handle },
    )
}

/// Returns the message of a panic, if it is a text.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

fn targets(severity: LogSeverity) -> Targets {
    let own = OWN_CRATES.map(|name| (name, severity.filter()));
    Targets::new()
        .with_default(LevelFilter::ERROR)
        .with_targets(own)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_log_errors_only_at_any_configured_level() {
        let targets = targets(LogSeverity::Trace);
        assert!(targets.would_enable("kube_controllers::gc", &Level::TRACE));
        assert!(targets.would_enable("migration::pass", &Level::TRACE));
        assert!(targets.would_enable("datastore::etcd", &Level::DEBUG));
        assert!(!targets.would_enable("h2::codec", &Level::WARN));
        assert!(targets.would_enable("h2::codec", &Level::ERROR));
        assert!(
            !super::targets(LogSeverity::Warning).would_enable("kube_controllers", &Level::INFO)
        );
    }
}
