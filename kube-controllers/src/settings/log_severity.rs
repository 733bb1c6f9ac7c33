//! [`LogSeverity`].

use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;

/// The least severity that is logged, by the names of Calico's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogSeverity {
    /// Errors, as [`LogSeverity::Error`]: the log has no higher severity.
    Panic,
    /// Errors, as [`LogSeverity::Error`].
    Fatal,
    /// Failures.
    Error,
    /// Possible problems.
    Warning,
    /// Normal operation.
    #[default]
    Info,
    /// Decisions of the controllers.
    Debug,
    /// The most detailed messages.
    Trace,
}

impl LogSeverity {
    /// Returns the filter of the log for this severity.
    pub fn filter(self) -> LevelFilter {
        match self {
            LogSeverity::Panic | LogSeverity::Fatal | LogSeverity::Error => LevelFilter::ERROR,
            LogSeverity::Warning => LevelFilter::WARN,
            LogSeverity::Info => LevelFilter::INFO,
            LogSeverity::Debug => LevelFilter::DEBUG,
            LogSeverity::Trace => LevelFilter::TRACE,
        }
    }
}

/// Accepts names in any case, and `warn` for `warning`.
impl FromStr for LogSeverity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "panic" => LogSeverity::Panic,
            "fatal" => LogSeverity::Fatal,
            "error" => LogSeverity::Error,
            "warn" | "warning" => LogSeverity::Warning,
            "info" => LogSeverity::Info,
            "debug" => LogSeverity::Debug,
            "trace" => LogSeverity::Trace,
            _ => return Err(()),
        })
    }
}

/// Writes the name as KubeControllersConfiguration does, such as `Info`.
impl fmt::Display for LogSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
