//! The rotated files of a log: their limits, their names and their order.
//!
//! A rotation numbers the files. The agent replaces the oldest of them by a compressed file with a
//! time in its name, as upstream's plugin does at each rotation (CNI-229). So the files with a time
//! are older than those with a number.

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, NaiveDateTime, Utc};
use netconf::conf::LogConf;

/// The limits of rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Maximum size of the log file in bytes. A single longer line is written nevertheless.
    pub max_bytes: u64,
    /// Maximum time since the last write to a rotated file. A rotation removes older files with a
    /// number, and the agent older files with a time.
    pub max_age: Duration,
    /// Number of rotated files to keep.
    pub max_count: usize,
}

/// A rotated file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RotatedLog {
    /// The parsed name.
    pub name: RotatedName,
    /// The file.
    pub path: PathBuf,
}

/// The name of a rotated file. The lines of a lesser name are older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RotatedName {
    /// For example `cni-2026-11-27T01-02-03.456-size.log.zst`: a file that the agent compressed, or
    /// one of upstream.
    Dated {
        /// The time of the last write, or in a name of upstream that of the rotation.
        time: SystemTime,
        /// True if the name ends in `.zst`.
        is_compressed: bool,
    },
    /// For example `cni.log.1`, the newest rotated file of our plugins.
    Numbered(Reverse<usize>),
}

/// The format of the time in a name, in UTC.
const TIME: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// The length of a time in that format.
const TIME_BYTES: usize = 23;

/// The reason of the rotation, which upstream adds to the time.
const REASON: &str = "-size";

const COMPRESSED: &str = ".zst";

impl Retention {
    /// Returns the limits that the plugins' configuration sets.
    #[must_use]
    pub fn from_conf(conf: &LogConf) -> Self {
        Retention {
            max_bytes: u64::from(conf.log_file_max_size).saturating_mul(1024 * 1024),
            max_age: Duration::from_secs(
                u64::from(conf.log_file_max_age).saturating_mul(24 * 60 * 60),
            ),
            // Each rotation renames every rotated file, so a high number, which upstream permits,
            // would delay the call.
            max_count: conf.log_file_max_count.min(999) as usize,
        }
    }
}

impl RotatedName {
    /// Parses a file name. `log` is the name of the log file. Returns `None` for the name of
    /// another file.
    fn parse(log: &str, name: &str) -> Option<Self> {
        if let Some(number) = name
            .strip_prefix(log)
            .and_then(|rest| rest.strip_prefix('.'))
        {
            let is_number =
                !number.starts_with('0') && number.bytes().all(|byte| byte.is_ascii_digit());
            return number
                .parse()
                .ok()
                .filter(|_| is_number)
                .map(|number| RotatedName::Numbered(Reverse(number)));
        }
        let (stem, extension) = split_extension(log);
        let dated = name.strip_prefix(stem)?.strip_prefix('-')?;
        let plain = dated.strip_suffix(COMPRESSED);
        let (time, reason) = plain
            .unwrap_or(dated)
            .strip_suffix(extension)?
            .split_at_checked(TIME_BYTES)?;
        if !reason.is_empty() && !reason.starts_with('-') {
            return None;
        }
        let time = NaiveDateTime::parse_from_str(time, TIME).ok()?.and_utc();
        Some(RotatedName::Dated {
            time: time.into(),
            is_compressed: plain.is_some(),
        })
    }

    /// Returns true for the name of a compressed file.
    #[must_use]
    pub fn is_compressed(self) -> bool {
        matches!(
            self,
            RotatedName::Dated {
                is_compressed: true,
                ..
            }
        )
    }
}

/// Lists the rotated files of the log file `log`, the oldest first.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn list_rotated(log: &Path) -> io::Result<Vec<RotatedLog>> {
    let log_name = log
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let mut found = Vec::new();
    for entry in fs::read_dir(directory(log))? {
        let entry = entry?;
        let name = entry
            .file_name()
            .to_str()
            .and_then(|name| RotatedName::parse(log_name, name));
        found.extend(name.map(|name| RotatedLog {
            name,
            path: entry.path(),
        }));
    }
    found.sort();
    Ok(found)
}

/// Returns the files with a time that exceed the age or the number of `retention`. `rotated` has
/// the order of [`list_rotated`]. A rotation removes the files with a number.
#[must_use]
pub fn expired(rotated: &[RotatedLog], retention: Retention, now: SystemTime) -> Vec<&RotatedLog> {
    let limit = now.checked_sub(retention.max_age);
    let surplus = rotated.len().saturating_sub(retention.max_count);
    let is_expired = |(position, log): &(usize, &RotatedLog)| match log.name {
        RotatedName::Dated { time, .. } => {
            *position < surplus || limit.is_some_and(|limit| time < limit)
        }
        RotatedName::Numbered(_) => false,
    };
    rotated
        .iter()
        .enumerate()
        .filter(is_expired)
        .map(|(_, log)| log)
        .collect()
}

/// Returns the path of the rotated file with this number.
#[must_use]
pub fn rotated_path(log: &Path, number: usize) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Returns the path of the compressed file whose last line has this time, with the name that
/// upstream gives.
#[must_use]
pub fn compressed_path(log: &Path, time: SystemTime) -> PathBuf {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    // A conversion of the time itself would panic if the file system contains an absurd one.
    let time: DateTime<Utc> =
        DateTime::from_timestamp(seconds, since.subsec_nanos()).unwrap_or_default();
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    let (stem, extension) = split_extension(&name);
    log.with_file_name(format!(
        "{stem}-{}{REASON}{extension}{COMPRESSED}",
        time.format(TIME)
    ))
}

/// Returns the directory of the log file and of its rotated files.
#[must_use]
pub fn directory(log: &Path) -> &Path {
    log.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Splits a file name before its last point, as Go does: also before a point at the beginning.
fn split_extension(name: &str) -> (&str, &str) {
    name.split_at(name.rfind('.').unwrap_or(name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// 2026-11-27 01:02:03.456 UTC.
    fn time() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_795_741_323_456)
    }

    fn dated(time: SystemTime) -> RotatedLog {
        let path = compressed_path(Path::new("/logs/cni.log"), time);
        RotatedLog {
            name: RotatedName::Dated {
                time,
                is_compressed: true,
            },
            path,
        }
    }

    fn numbered(number: usize) -> RotatedLog {
        let path = rotated_path(Path::new("/logs/cni.log"), number);
        RotatedLog {
            name: RotatedName::Numbered(Reverse(number)),
            path,
        }
    }

    #[test]
    fn zero_log_retention_settings_yield_the_documented_defaults() {
        let retention = Retention::from_conf(&LogConf::default());
        assert_eq!(retention.max_bytes, 100 << 20);
        assert_eq!(retention.max_age, Duration::from_secs(30 * 86_400));
        assert_eq!(retention.max_count, 10);
    }

    #[test]
    fn names_of_rotated_files_are_parsed_and_those_of_other_files_are_not() {
        let parse = |name: &str| RotatedName::parse("cni.log", name);
        let with_time = |is_compressed| {
            Some(RotatedName::Dated {
                time: time(),
                is_compressed,
            })
        };
        assert_eq!(
            parse("cni-2026-11-27T01-02-03.456-size.log.zst"),
            with_time(true)
        );
        assert_eq!(
            parse("cni-2026-11-27T01-02-03.456.log.zst"),
            with_time(true)
        );
        assert_eq!(
            parse("cni-2026-11-27T01-02-03.456-time.log"),
            with_time(false)
        );
        assert_eq!(
            parse("cni.log.12"),
            Some(RotatedName::Numbered(Reverse(12)))
        );
        for other in [
            "cni.log",
            "cni.log.0",
            "cni.log.01",
            "cni.log.+1",
            "cni.log.",
            "cni.log.1.zst",
            "cni.log.zst",
            "cni-2026-11-27T01-02-03.456-size.log.gz",
            "cni-2026-11-27T01-02-03.456size.log.zst",
            "cni-2026-13-27T01-02-03.456-size.log",
            "cni-2026-11-27T01-02-03.log",
            "cni-ü2026-11-27T01-02-03.45.log",
            "felix-2026-11-27T01-02-03.456-size.log",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn compressed_path_is_that_of_upstream_and_parses_to_the_same_time() {
        let path = compressed_path(
            Path::new("/logs/cni.log"),
            time() + Duration::from_nanos(999),
        );
        assert_eq!(
            path,
            Path::new("/logs/cni-2026-11-27T01-02-03.456-size.log.zst")
        );
        for log in ["cni.log", "cni", "a.b.log", ".log"] {
            let path = compressed_path(&Path::new("/logs").join(log), time());
            let name = RotatedName::parse(log, path.file_name().unwrap().to_str().unwrap());
            assert_eq!(
                name,
                Some(RotatedName::Dated {
                    time: time(),
                    is_compressed: true
                }),
                "{log}"
            );
        }
        let absurd = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::MAX / 4);
        assert!(
            compressed_path(Path::new("cni.log"), absurd)
                .starts_with("cni-1970-01-01T00-00-00.000-size.log.zst")
        );
    }

    #[test]
    fn rotated_files_are_listed_from_the_oldest_to_the_newest_despite_gaps() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "cni-2026-11-26T01-02-03.456-size.log.zst",
            "cni-2026-11-27T01-02-03.456-size.log",
            "cni.log.11",
            "cni.log.9",
            "cni.log.2",
        ];
        for name in names
            .iter()
            .rev()
            .chain(&["cni.log", "other.log.1", ".cni.log.1.draft"])
        {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let listed = list_rotated(&directory.path().join("cni.log")).unwrap();
        let paths: Vec<PathBuf> = listed.into_iter().map(|log| log.path).collect();
        assert_eq!(paths, names.map(|name| directory.path().join(name)));
    }

    #[test]
    fn age_and_number_of_both_kinds_decide_which_compressed_files_expire() {
        let now = time();
        let rotated = [
            dated(now - 30 * HOUR),
            dated(now - 3 * HOUR),
            dated(now - 2 * HOUR),
            numbered(2),
            numbered(1),
        ];
        let count = |max_count, max_age| {
            let retention = Retention {
                max_bytes: 1,
                max_age,
                max_count,
            };
            expired(&rotated, retention, now).len()
        };
        assert_eq!(count(5, 100 * HOUR), 0);
        assert_eq!(count(5, 24 * HOUR), 1);
        assert_eq!(count(3, 24 * HOUR), 2);
        assert_eq!(count(1, 100 * HOUR), 3, "files with a number stay");
        assert_eq!(
            expired(
                &rotated,
                Retention {
                    max_bytes: 1,
                    max_age: HOUR,
                    max_count: 9
                },
                now
            ),
            rotated[..3].iter().collect::<Vec<_>>()
        );
    }
}
