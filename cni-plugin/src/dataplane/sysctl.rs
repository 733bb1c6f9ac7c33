//! Kernel settings.
//!
//! A setting that already has its value needs no write, so a read-only /proc/sys is no error then.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use sysctl::{Ctl, Sysctl as _};

use super::plan::{Sysctl, SysctlKey};

/// Why a setting could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// Through /proc/sys.
    #[error("{action} sysctl {key}: {source}")]
    File {
        /// `read`, or `set … to 1`.
        action: String,
        /// The setting.
        key: SysctlKey,
        /// The system's reason.
        source: io::Error,
    },
    /// Through the sysctl crate.
    #[error("{action} sysctl {key}: {source}")]
    Ctl {
        /// `read`, or `set … to 1`.
        action: String,
        /// The setting.
        key: SysctlKey,
        /// The crate's reason.
        source: sysctl::SysctlError,
    },
}

/// Gives the setting its value in the namespace of the calling thread. A failure of one that is not required is logged.
pub(super) fn apply(setting: &Sysctl) -> Result<(), SysctlError> {
    match write_if_different(setting) {
        Err(error) if !setting.required => {
            tracing::warn!(%error, "optional kernel setting left as it is");
            Ok(())
        }
        outcome => outcome,
    }
}

/// The setting's present value, without white space.
pub(super) fn read(key: &SysctlKey) -> Result<String, SysctlError> {
    let value = match key {
        SysctlKey::Namespace(name) => {
            let ctl = Ctl::new(name).map_err(|e| ctl_error("read", key, e))?;
            ctl.value_string().map_err(|e| ctl_error("read", key, e))?
        }
        SysctlKey::Interface { .. } => {
            let file = File::open(path(key)).map_err(|e| file_error("read", key, e))?;
            read_file(&file).map_err(|e| file_error("read", key, e))?
        }
    };
    Ok(value.trim().to_owned())
}

fn write_if_different(setting: &Sysctl) -> Result<(), SysctlError> {
    let (key, value) = (&setting.key, setting.value.to_string());
    let action = || format!("set to {value}");
    match key {
        // The crate's names are dotted, which is right as long as no interface name is part of them.
        SysctlKey::Namespace(name) => {
            let ctl = Ctl::new(name).map_err(|e| ctl_error(&action(), key, e))?;
            if ctl.value_string().map_err(|e| ctl_error(&action(), key, e))?.trim() != value {
                ctl.set_value_string(&value).map_err(|e| ctl_error(&action(), key, e))?;
            }
            Ok(())
        }
        SysctlKey::Interface { .. } => {
            write_file_if_different(&path(key), &value).map_err(|e| file_error(&action(), key, e))
        }
    }
}

/// Written first and read only when refused: a new interface has other values as a rule.
fn write_file_if_different(path: &str, value: &str) -> io::Result<()> {
    let written = OpenOptions::new().write(true).open(path).and_then(|file| file.write_all_at(value.as_bytes(), 0));
    match written {
        Err(_) if File::open(path).and_then(|file| read_file(&file)).is_ok_and(|found| found.trim() == value) => Ok(()),
        outcome => outcome,
    }
}

fn read_file(file: &File) -> io::Result<String> {
    let mut buffer = [0; 32];
    let length = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn path(key: &SysctlKey) -> String {
    format!("/proc/sys/{key}")
}

fn file_error(action: &str, key: &SysctlKey, source: io::Error) -> SysctlError {
    SysctlError::File { action: action.to_owned(), key: key.clone(), source }
}

fn ctl_error(action: &str, key: &SysctlKey, source: sysctl::SysctlError) -> SysctlError {
    SysctlError::Ctl { action: action.to_owned(), key: key.clone(), source }
}
