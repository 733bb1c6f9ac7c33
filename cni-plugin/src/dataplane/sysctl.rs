//! Reads and writes kernel settings.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use sysctl::{Ctl, Sysctl as _};

use super::plan::{Sysctl, SysctlKey};

/// A failure to read or write a setting.
#[derive(Debug, thiserror::Error)]
#[error("{action} sysctl {key}: {source}")]
pub struct SysctlError {
    /// The operation: `read`, or `set to 1`.
    action: String,
    key: SysctlKey,
    source: Cause,
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Sets the value in the namespace of the calling thread. Only logs the failure of an optional setting.
pub(super) fn apply(setting: &Sysctl) -> Result<(), SysctlError> {
    let (key, value) = (&setting.key, setting.value.to_string());
    let written = match key {
        // The names of the crate are dotted, which is unambiguous as long as they contain no interface name.
        SysctlKey::Namespace(name) => ensure_value(name, &value).map_err(Cause::from),
        SysctlKey::Interface { .. } => ensure_file_value(&format!("/proc/sys/{key}"), &value).map_err(Cause::from),
    };
    let Err(source) = written else { return Ok(()) };
    let error = SysctlError { action: format!("set to {value}"), key: key.clone(), source };
    if setting.is_required {
        return Err(error);
    }
    tracing::warn!(%error, "cannot set an optional kernel setting; keeping the present value");
    Ok(())
}

/// Returns the setting's current value without surrounding white space.
pub(super) fn read(key: &SysctlKey) -> Result<String, SysctlError> {
    let value = match key {
        SysctlKey::Namespace(name) => Ctl::new(name).and_then(|ctl| ctl.value_string()).map_err(Cause::from),
        SysctlKey::Interface { .. } => read_file(&format!("/proc/sys/{key}")).map_err(Cause::from),
    };
    let value = value.map_err(|source| SysctlError { action: "read".to_owned(), key: key.clone(), source })?;
    Ok(value.trim().to_owned())
}

/// Writes the value unless the setting has it already.
fn ensure_value(name: &str, value: &str) -> Result<(), sysctl::SysctlError> {
    let ctl = Ctl::new(name)?;
    if ctl.value_string()?.trim() != value {
        ctl.set_value_string(value)?;
    }
    Ok(())
}

/// Writes the value. A failed write is no error if the file contains the value already.
fn ensure_file_value(path: &str, value: &str) -> io::Result<()> {
    let written = OpenOptions::new().write(true).open(path).and_then(|file| file.write_all_at(value.as_bytes(), 0));
    match written {
        Err(_) if read_file(path).is_ok_and(|found| found.trim() == value) => Ok(()),
        outcome => outcome,
    }
}

fn read_file(path: &str) -> io::Result<String> {
    let mut buffer = [0; 32];
    let length = File::open(path)?.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
