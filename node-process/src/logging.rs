//! Logging of the plugins and the installer: the lines go to stderr and, if configured, to a file
//! that rotates. Stdout is reserved for the CNI result.
//!
//! Line format and keys are upstream's (CNI-225). Unlike upstream's, the rotation loses no lines of
//! concurrent processes (CNI-230).

pub mod compressed;
mod file;
pub mod line;
mod rotated;
pub mod stages;
mod subject;

pub use netconf::printable;

pub use self::file::FILE_MODE;
pub use self::rotated::{
    Retention, RotatedLog, RotatedName, compressed_path, directory, expired, list_rotated,
    rotated_path,
};
pub use self::subject::Subject;

use std::io::{self, Write};
use std::path::Path;

use netconf::conf::{LogConf, LogLevel};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

use self::file::LogFile;
use self::line::LineFormat;
use self::stages::StageTimes;

/// The crates whose events are logged at the configured level. Debug events of other libraries may
/// contain tokens.
const OWN_CRATES: [&str; 14] = [
    "cni_plugin",
    "ipam_plugin",
    "allocation",
    "dataplane",
    "installation",
    "installer",
    "node_agent",
    "doctor",
    "node_commands",
    "datastore",
    "node_process",
    "os",
    "libcalico",
    "netconf",
];

/// Starts logging for this process; later calls have no effect. `component` is the first part of
/// the source in each line, and `subject` the attachment of the call.
///
/// If the log file cannot be opened, this only prints a warning: a pod must not fail for its log.
pub fn init(conf: &LogConf, component: &'static str, subject: &Subject) {
    set(subscriber(conf, component, subject));
}

/// Does the same as [`init`] for a process that runs one call, and returns the stages that the call
/// runs from now on. A process that lasts would collect stages without end.
pub fn init_for_call(conf: &LogConf, component: &'static str, subject: &Subject) -> StageTimes {
    let times = StageTimes::default();
    set(subscriber(conf, component, subject).with(times.clone()));
    times
}

fn set(subscriber: impl Subscriber + Send + Sync) {
    // An error means that a subscriber is set already.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

fn subscriber(
    conf: &LogConf,
    component: &'static str,
    subject: &Subject,
) -> impl Subscriber + for<'a> LookupSpan<'a> + Send + Sync + use<> {
    let file = Some(Path::new(&conf.log_file_path)).filter(|path| !path.as_os_str().is_empty());
    let file = file.and_then(|path| open_or_warn(path, Retention::from_conf(conf)));
    let level = match conf.log_level {
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Error => LevelFilter::ERROR,
    };
    let targets = Targets::new()
        .with_default(LevelFilter::ERROR)
        .with_targets(OWN_CRATES.map(|name| (name, level)))
        .with_target(stages::TARGET, LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(line::Fields)
        .event_format(LineFormat::new(component).with_subject(subject))
        .with_writer(Outputs { file });
    tracing_subscriber::registry().with(targets).with(lines)
}

fn open_or_warn(path: &Path, retention: Retention) -> Option<LogFile> {
    let opened = LogFile::open(path, retention);
    if let Err(error) = &opened {
        let path = path.display();
        let _ = writeln!(
            io::stderr(),
            "warning: log file {path} not opened, logging to stderr only: {error}"
        );
    }
    opened.ok()
}

/// The outputs of log lines: stderr and, if open, the log file. A failure of one does not affect
/// the other.
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
    fn log_file_receives_own_debug_lines_and_none_of_libraries() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("made/by/us/cni.log");
        let log_file_path = path.to_str().expect("UTF-8").to_owned();
        let conf = LogConf {
            log_level: LogLevel::Debug,
            log_file_path,
            ..LogConf::default()
        };
        tracing::subscriber::with_default(
            subscriber(&conf, "cni-plugin", &Subject::default()),
            || {
                tracing::debug!(pod = "web-1", count = 3, "assigned\naddress");
                tracing::debug!(target: "h2::codec", "authorization: secret");
            },
        );

        let text = std::fs::read_to_string(path).expect("log file");
        assert!(
            text.ends_with(": assigned\\naddress count=3 pod=\"web-1\"\n"),
            "{text}"
        );
        assert!(
            text.contains("[DEBUG]") && text.contains(" cni-plugin/logging::tests "),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn unopenable_log_file_is_no_error() {
        assert!(
            open_or_warn(
                Path::new("/proc/nowhere/cni.log"),
                Retention::from_conf(&LogConf::default())
            )
            .is_none()
        );
    }
}
