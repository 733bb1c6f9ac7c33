//! [`LogSeverity`].

use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;

/// What is logged: this and what is worse. The words are those of Calico's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogSeverity {
    /// Nothing but the end of the process.
    Panic,
    /// The same.
    Fatal,
    /// What failed.
    Error,
    /// What may be wrong.
    Warning,
    /// The course of things.
    #[default]
    Info,
    /// All that is decided.
    Debug,
    /// All that is seen.
    Trace,
}

impl LogSeverity {
    /// As the log is filtered.
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

/// In any case, `warn` for `warning` too.
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

/// As KubeControllersConfiguration has it: `Info`.
impl fmt::Display for LogSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
