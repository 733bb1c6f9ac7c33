//! Reads and writes kernel settings.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sysctl::{Ctl, Sysctl as _};

use super::plan::{Sysctl, SysctlKey};

/// A failure to read or write a setting.
#[derive(Debug, thiserror::Error)]
#[error("{action} sysctl {key}: {source}{}", advice(key, Path::new(IPV6)))]
pub struct SysctlError {
    /// The operation: `read`, or `set to 1`.
    action: String,
    key: SysctlKey,
    source: Cause,
}

/// The settings of IPv6, which a kernel without IPv6 lacks.
const IPV6: &str = "/proc/sys/net/ipv6";

/// Returns true if the kernel has IPv6.
pub fn has_ipv6() -> bool {
    Path::new(IPV6).exists()
}

/// Returns the cause of a missing setting of IPv6 and the way out, after a semicolon; an empty text
/// for other settings.
fn advice(key: &SysctlKey, settings: &Path) -> &'static str {
    let is_ipv6 = match key {
        SysctlKey::Namespace(name) => name.starts_with("net.ipv6."),
        SysctlKey::Interface { tree, .. } => tree.starts_with("ipv6/"),
    };
    if is_ipv6 && !settings.exists() {
        "; the kernel has no IPv6; start it without ipv6.disable=1, or assign IPv4 alone \
         (assign_ipv6, ipFamilies)"
    } else {
        ""
    }
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Sets the value in the namespace of the calling thread. Only logs the failure of an optional
/// setting.
pub(super) fn apply(setting: &Sysctl) -> Result<(), SysctlError> {
    let (key, value) = (&setting.key, setting.value.to_string());
    let written = match key {
        // The names of the crate are dotted, which is unambiguous as long as they contain no
        // interface name.
        SysctlKey::Namespace(name) => ensure_value(name, &value).map_err(Cause::from),
        SysctlKey::Interface { .. } => {
            ensure_file_value(&format!("/proc/sys/{key}"), &value).map_err(Cause::from)
        }
    };
    let Err(source) = written else { return Ok(()) };
    let error = SysctlError {
        action: format!("set to {value}"),
        key: key.clone(),
        source,
    };
    if setting.is_required {
        return Err(error);
    }
    tracing::warn!(%error, "cannot set an optional kernel setting; keeping the present value");
    Ok(())
}

/// Returns the setting's current value without surrounding white space.
pub(super) fn read(key: &SysctlKey) -> Result<String, SysctlError> {
    let value = match key {
        SysctlKey::Namespace(name) => Ctl::new(name)
            .and_then(|ctl| ctl.value_string())
            .map_err(Cause::from),
        SysctlKey::Interface { .. } => read_file(&format!("/proc/sys/{key}")).map_err(Cause::from),
    };
    let value = value.map_err(|source| SysctlError {
        action: "read".to_owned(),
        key: key.clone(),
        source,
    })?;
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
    let written = OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.write_all_at(value.as_bytes(), 0));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_setting_of_ipv6_is_explained_by_a_kernel_without_ipv6() {
        let of = |tree| SysctlKey::Interface {
            tree,
            ifname: "eth0".into(),
            leaf: "disable_ipv6",
        };
        let missing = Path::new("/no/such/directory");
        for key in [
            of("ipv6/conf"),
            SysctlKey::Namespace("net.ipv6.conf.all.disable_ipv6"),
        ] {
            assert!(
                advice(&key, missing).contains("the kernel has no IPv6"),
                "{key}"
            );
            assert_eq!(advice(&key, Path::new("/proc")), "");
        }
        assert_eq!(advice(&of("ipv4/conf"), missing), "");
    }
}
