//! The log: lines of Calico's form on stderr (KC-103), of a severity that may change.

pub mod captured;

use std::io;

use ipam_plugin::logging::line::{Fields, LineFormat};
use tracing::Subscriber;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;

use crate::settings::LogSeverity;

/// What the lines say that they are from.
const COMPONENT: &str = "kube-controllers";

/// The crates whose events are logged at the severity asked for. Libraries below them are held at `error`: their debug
/// events hold request headers, and with them tokens.
const OWN_CRATES: [&str; 4] = ["kube_controllers", "ipam_plugin", "datastore", "libcalico"];

/// Changes the severity. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Severity {
    handle: reload::Handle<Targets, Registry>,
}

impl Severity {
    /// From now on this and what is worse is logged.
    pub fn set(&self, severity: LogSeverity) {
        // Fails when the subscriber is gone, with which the log is.
        let _ = self.handle.reload(targets(severity));
    }
}

/// Starts logging for this process. The first call counts; later ones change nothing.
pub fn init(severity: LogSeverity) -> Severity {
    let (subscriber, severity) = subscriber(severity, io::stderr);
    // An error means that a subscriber is set already.
    let _ = tracing::subscriber::set_global_default(subscriber);
    severity
}

/// Returns the subscriber that writes events as lines, and the handle that changes the severity of these lines.
pub fn subscriber<W>(severity: LogSeverity, writer: W) -> (impl Subscriber + Send + Sync, Severity)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(targets(severity));
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(Fields)
        .event_format(LineFormat::new(COMPONENT))
        .with_writer(writer);
    (tracing_subscriber::registry().with(filter).with(lines), Severity { handle })
}

fn targets(severity: LogSeverity) -> Targets {
    let own = OWN_CRATES.map(|name| (name, severity.filter()));
    Targets::new().with_default(LevelFilter::ERROR).with_targets(own)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_are_held_at_error_whatever_is_asked_for() {
        let targets = targets(LogSeverity::Trace);
        assert!(targets.would_enable("kube_controllers::gc", &Level::TRACE));
        assert!(targets.would_enable("datastore::etcd", &Level::DEBUG));
        assert!(!targets.would_enable("h2::codec", &Level::WARN));
        assert!(targets.would_enable("h2::codec", &Level::ERROR));
        assert!(!super::targets(LogSeverity::Warning).would_enable("kube_controllers", &Level::INFO));
    }
}
