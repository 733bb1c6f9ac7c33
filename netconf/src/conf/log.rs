//! Logging.

use crate::decode::{DecodeError, FromNode, FromObject, Node, Object};

/// Logging: always to stderr, and to a file if `log_file_path` is set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default)
)]
pub struct LogConf {
    /// `debug`, `info` or `error`, in any letter case; any other text means `info`. Read by ADD,
    /// DEL, CHECK, STATUS, GC.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub log_level: LogLevel,

    /// Additional log file; its directory is created if missing. Read by ADD, DEL, CHECK, STATUS,
    /// GC.
    pub log_file_path: String,

    /// Size in MiB at which the file is rotated; 0 means 100. Read by ADD, DEL, CHECK, STATUS, GC.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 4294967295u32)))]
    pub log_file_max_size: u32,

    /// Days for which rotated files are kept; 0 means 30. Read by ADD, DEL, CHECK, STATUS, GC.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 4294967295u32)))]
    pub log_file_max_age: u32,

    /// Number of rotated files that are kept; 0 means 10. Read by ADD, DEL, CHECK, STATUS, GC.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 4294967295u32)))]
    pub log_file_max_count: u32,
}

/// The lowest level that is logged. Any other word in the configuration means `info`, as with
/// upstream (CNI-227).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
#[allow(missing_docs, reason = "the names are the levels")]
pub enum LogLevel {
    Debug,
    #[default]
    Info,
    Error,
}

impl Default for LogConf {
    fn default() -> LogConf {
        LogConf {
            log_level: LogLevel::Info,
            log_file_path: String::new(),
            log_file_max_size: 100,
            log_file_max_age: 30,
            log_file_max_count: 10,
        }
    }
}

impl FromObject for LogConf {
    fn from_object(object: &Object<'_>) -> Result<LogConf, DecodeError> {
        let default = LogConf::default();
        let positive = |key, default| {
            Ok(object
                .read(key)?
                .filter(|&number| number != 0)
                .unwrap_or(default))
        };
        Ok(LogConf {
            log_level: object.read_or_default("log_level")?,
            log_file_path: object.read_or_default("log_file_path")?,
            log_file_max_size: positive("log_file_max_size", default.log_file_max_size)?,
            log_file_max_age: positive("log_file_max_age", default.log_file_max_age)?,
            log_file_max_count: positive("log_file_max_count", default.log_file_max_count)?,
        })
    }
}

impl FromNode for LogLevel {
    /// An unknown level must not fail a pod's ADD.
    fn from_node(node: &Node<'_>) -> Result<LogLevel, DecodeError> {
        Ok(match node.text("a string")?.to_ascii_lowercase().as_str() {
            "debug" => LogLevel::Debug,
            "error" => LogLevel::Error,
            _ => LogLevel::Info,
        })
    }
}
