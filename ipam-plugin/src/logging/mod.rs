//! Logging of both plugins: every line goes to stderr and, if configured, to a file that rotates. Stdout is reserved
//! for the CNI result.
//!
//! Line format and keys are upstream's (CNI-225). Rotation is by size as in upstream, but safe with many concurrent
//! processes, where upstream's can lose lines (CNI-230).

mod file;
pub mod line;
mod subject;

pub use netconf::printable;

pub(crate) use self::file::rotated_path;
pub use self::subject::Subject;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use self::file::{LogFile, Retention};
use self::line::LineFormat;

/// The crates whose events are logged at the configured level. Other libraries log errors only: their debug events
/// contain request headers, and with them tokens.
const OWN_CRATES: [&str; 6] = ["cni_plugin", "ipam_plugin", "installer", "datastore", "libcalico", "netconf"];

/// The logging settings of the network configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// `log_level`.
    pub level: LogLevel,
    /// `log_file_path`; `None` logs to stderr only.
    pub file: Option<PathBuf>,
    /// `log_file_max_size`: size in MiB at which the file rotates; 0 means 100.
    pub max_size_mib: u64,
    /// `log_file_max_age`: age in days at which rotated files are removed; 0 means 30.
    pub max_age_days: u64,
    /// `log_file_max_count`: number of rotated files to keep, at most 999; 0 means 10.
    pub max_count: usize,
    /// First part of the source in each line: `cni-plugin` or `ipam`.
    pub component: &'static str,
    /// The attachment of the call: each line ends with its fields.
    pub subject: Subject,
}

/// The three levels of `log_level`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// The steps of a call, and everything more severe.
    #[default]
    Info,
    /// Failures only.
    Error,
}

impl LogConfig {
    /// Creates the settings in effect before a configuration is read: level info, stderr only (CNI-227).
    #[must_use]
    pub fn new(component: &'static str) -> Self {
        Self {
            level: LogLevel::Info,
            file: None,
            max_size_mib: 0,
            max_age_days: 0,
            max_count: 0,
            component,
            subject: Subject::default(),
        }
    }

    fn retention(&self) -> Retention {
        let or = |value: u64, default: u64| if value == 0 { default } else { value };
        Retention {
            max_bytes: or(self.max_size_mib, 100).saturating_mul(1024 * 1024),
            max_age: Duration::from_secs(or(self.max_age_days, 30).saturating_mul(24 * 60 * 60)),
            // Each rotation renames every rotated file. Upstream has no limit.
            max_count: if self.max_count == 0 { 10 } else { self.max_count.min(999) },
        }
    }
}

impl LogLevel {
    /// Parses `log_level` case-insensitively. As in upstream, any other word means `info` (CNI-227).
    #[must_use]
    pub fn parse(word: &str) -> Self {
        match word.to_ascii_lowercase().as_str() {
            "debug" => Self::Debug,
            "error" => Self::Error,
            _ => Self::Info,
        }
    }

    fn filter(self) -> Level {
        match self {
            Self::Debug => Level::DEBUG,
            Self::Info => Level::INFO,
            Self::Error => Level::ERROR,
        }
    }
}

/// Starts logging for this process. Later calls have no effect.
///
/// If the log file cannot be opened, this prints a warning on stderr. A pod must not fail for its log.
pub fn init(config: LogConfig) {
    // An error means that a subscriber is set already.
    let _ = tracing::subscriber::set_global_default(subscriber(config));
}

fn subscriber(config: LogConfig) -> impl Subscriber + Send + Sync {
    let file = config.file.as_deref().and_then(|path| open_or_warn(path, config.retention()));
    let targets = Targets::new()
        .with_default(LevelFilter::ERROR)
        .with_targets(OWN_CRATES.map(|name| (name, LevelFilter::from_level(config.level.filter()))));
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(line::Fields)
        .event_format(LineFormat::new(config.component).about(&config.subject))
        .with_writer(Outputs { file });
    tracing_subscriber::registry().with(targets).with(lines)
}

fn open_or_warn(path: &Path, retention: Retention) -> Option<LogFile> {
    LogFile::open(path, retention)
        .inspect_err(|error| {
            let _ = writeln!(
                io::stderr(),
                "warning: log file {} not opened, logging to stderr only: {error}",
                path.display()
            );
        })
        .ok()
}

/// The outputs of log lines. Each gets every line, even if the other one cannot be written.
struct Outputs {
    file: Option<LogFile>,
}

impl Write for &Outputs {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(line);
        if let Some(file) = &self.file {
            let _ = file.append(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Outputs {
    type Writer = &'a Outputs;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_in_any_case_and_unknown_words_mean_info() {
        assert_eq!(LogLevel::parse("DeBug"), LogLevel::Debug);
        assert_eq!(LogLevel::parse("ERROR"), LogLevel::Error);
        for word in ["info", "", "warning", "trace"] {
            assert_eq!(LogLevel::parse(word), LogLevel::Info, "{word}");
        }
    }

    #[test]
    fn zero_means_the_documented_default() {
        let retention = LogConfig::new("ipam").retention();
        assert_eq!(retention.max_bytes, 100 << 20);
        assert_eq!(retention.max_age, Duration::from_secs(30 * 86_400));
        assert_eq!(retention.max_count, 10);
    }

    #[test]
    fn lines_reach_the_file_and_debug_events_of_libraries_do_not() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("made/by/us/cni.log");
        let mut config = LogConfig::new("cni-plugin");
        config.level = LogLevel::Debug;
        config.file = Some(path.clone());
        tracing::subscriber::with_default(subscriber(config), || {
            tracing::debug!(pod = "web-1", count = 3, "assigned\naddress");
            tracing::debug!(target: "h2::codec", "authorization: secret");
        });

        let text = std::fs::read_to_string(path).expect("log file");
        assert!(text.ends_with(": assigned\\naddress count=3 pod=\"web-1\"\n"), "{text}");
        assert!(text.contains("[DEBUG]") && text.contains(" cni-plugin/logging::tests "), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_no_error() {
        assert!(open_or_warn(Path::new("/proc/nowhere/cni.log"), LogConfig::new("ipam").retention()).is_none());
    }
}
