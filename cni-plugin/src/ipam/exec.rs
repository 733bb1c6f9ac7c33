//! [`IpamExec`]: runs another IPAM plugin as a child process, as the CNI specification requires it.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use netconf::args::for_delegate;
use netconf::{Call, CniError, CniResult, Code, Version};
use os::child::{self, BusyRetry};

use super::ensure_has_addresses;
use super::pod_cidr::PodCidrSubnets;

/// The default time limit of a plugin. Short enough that a failed ADD and the DEL after it end
/// within kubelet's limit for the creation of a sandbox.
const LIMIT: Duration = Duration::from_secs(60);

/// An installer may be writing the binary at the same time ("text file busy").
const BUSY: BusyRetry = BusyRetry {
    attempts: 51,
    pause: Duration::from_millis(100),
};

/// Runs ADD of the plugin, with `subnets` in place of `usePodCidr`. After a failure, runs DEL only
/// if `is_new` is true: otherwise the DEL would release earlier addresses of the container as well.
pub(super) fn add(
    call: &Call,
    subnets: Option<&PodCidrSubnets>,
    is_new: bool,
) -> Result<CniResult, CniError> {
    let conf = match subnets {
        Some(subnets) => subnets.substitute(call)?,
        None => Cow::Borrowed(call.raw.as_slice()),
    };
    let outcome = IpamExec::for_call(call)?
        .call("ADD", &for_delegate(&call.raw_args), &conf)
        .and_then(|stdout| CniResult::parse(&stdout, call.version))
        .and_then(ensure_has_addresses);
    if outcome.is_err()
        && is_new
        && let Err(error) = release_by_plugin(call)
    {
        tracing::warn!(
            plugin = call.conf.ipam.ipam_type, %error,
            hint = "the DEL of the container tries again",
            "cannot release the addresses that the IPAM plugin may have allocated"
        );
    }
    outcome
}

/// Runs DEL of the plugin. Does nothing if the IPAM plugin is `calico-ipam`.
pub fn release_by_plugin(call: &Call) -> Result<(), CniError> {
    if call.conf.ipam.is_calico() {
        return Ok(());
    }
    call_plugin(call, "DEL")?;
    tracing::info!(
        plugin = call.conf.ipam.ipam_type,
        "the IPAM plugin released the addresses, if there were any"
    );
    Ok(())
}

/// Runs STATUS of the plugin within `limit`. If the version of the configuration has no STATUS,
/// only checks that the plugin exists.
pub fn status_of_plugin(call: &Call, limit: Duration) -> Result<(), CniError> {
    let plugin = IpamExec::for_call(call)?.with_limit(limit);
    if call.version < Version::V1_1_0 {
        return Ok(());
    }
    ignore_unsupported(plugin.call(
        "STATUS",
        &for_delegate(&call.raw_args),
        &PodCidrSubnets::any().substitute(call)?,
    ))
}

pub(super) fn gc(call: &Call) -> Result<(), CniError> {
    ignore_unsupported(call_plugin(call, "GC"))
}

/// Runs a verb other than ADD. For these verbs host-local needs a valid subnet but does not use it.
pub fn call_plugin(call: &Call, command: &str) -> Result<Vec<u8>, CniError> {
    let conf = PodCidrSubnets::any().substitute(call)?;
    IpamExec::for_call(call)?.call(command, &for_delegate(&call.raw_args), &conf)
}

/// Ignores the errors with which a plugin rejects a verb that it does not implement.
fn ignore_unsupported(outcome: Result<Vec<u8>, CniError>) -> Result<(), CniError> {
    const UNSUPPORTED: [Code; 3] = [
        Code::INCOMPATIBLE_VERSION,
        Code::INVALID_ENVIRONMENT,
        Code::UNKNOWN_CONTAINER,
    ];
    match outcome {
        Err(error) if !UNSUPPORTED.contains(&error.code) => Err(error),
        _ => Ok(()),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct IpamExec {
    binary: PathBuf,
    limit: Duration,
}

impl IpamExec {
    fn for_call(call: &Call) -> Result<Self, CniError> {
        let path: Vec<_> = call.path.iter().map(Into::into).collect();
        IpamExec::find(&call.conf.ipam.ipam_type, &path)
    }

    fn find(plugin: &str, path: &[PathBuf]) -> Result<Self, CniError> {
        if plugin.is_empty() {
            return Err(
                CniError::new(Code::INVALID_CONFIG, "no plugin name provided").with_details(
                    "set \"ipam\": {\"type\": …} in the network configuration, for example to \
                     \"calico-ipam\"",
                ),
            );
        }
        if plugin.contains('/') {
            return Err(CniError::new(
                Code::INVALID_CONFIG,
                format!("invalid plugin name: {plugin}"),
            )
            .with_details("ipam.type names a file in CNI_PATH and cannot contain '/'"));
        }
        if let Some(binary) = path
            .iter()
            .map(|directory| directory.join(plugin))
            .find(|file| file.is_file())
        {
            return Ok(IpamExec {
                binary,
                limit: LIMIT,
            });
        }
        let searched: Vec<_> = path
            .iter()
            .map(|directory| directory.to_string_lossy())
            .collect();
        Err(CniError::internal(format!(
            "failed to find plugin {plugin:?} in path [{}]",
            searched.join(" ")
        ))
        .with_details("install the plugin into a directory of CNI_PATH, or change ipam.type"))
    }

    fn with_limit(self, limit: Duration) -> Self {
        IpamExec { limit, ..self }
    }

    /// Runs the plugin and returns its stdout. Kills a plugin that exceeds its time limit. `args`
    /// is the plugin's CNI_ARGS.
    fn call(&self, command: &str, args: &str, stdin: &[u8]) -> Result<Vec<u8>, CniError> {
        let mut plugin = Command::new(&self.binary);
        plugin
            .env("CNI_COMMAND", command)
            .env("CNI_ARGS", args)
            .stderr(Stdio::piped());
        let output = child::run(&mut plugin, stdin, self.limit, BUSY).map_err(|error| {
            CniError::internal(format!(
                "cannot run IPAM plugin {}: {error}",
                self.binary.display()
            ))
        })?;
        let output = output.ok_or_else(|| {
            let (binary, limit) = (self.binary.display(), self.limit);
            CniError::new(
                Code::TRY_AGAIN,
                format!("IPAM plugin {binary} did not finish {command} within {limit:?}"),
            )
            .with_details(
                "the plugin was killed; find the lock, daemon or server that the plugin waits for",
            )
        })?;
        if !output.status.success() {
            return Err(self.failure(&output));
        }
        if !output.stderr.is_empty() {
            let _ = io::stderr().write_all(&output.stderr);
        }
        Ok(output.stdout)
    }

    /// Returns the error object that the plugin printed, or else an error with its stderr or stdout
    /// (CNI-57).
    fn failure(&self, output: &Output) -> CniError {
        if let Some(error) = CniError::parse(&output.stdout).filter(|error| !error.msg.is_empty()) {
            return error;
        }
        let name = self
            .binary
            .file_name()
            .and_then(OsStr::to_str)
            .unwrap_or_default();
        let texts = [&output.stderr, &output.stdout]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        let text = texts
            .iter()
            .find(|text| !text.is_empty())
            .map_or("no error message", String::as_str);
        CniError::internal(format!(
            "IPAM plugin {name} failed ({}): {text}",
            output.status
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn test_plugin(script: &str) -> (tempfile::TempDir, IpamExec) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("test-ipam");
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let plugin = IpamExec::find(
            "test-ipam",
            &["/no/such/dir".into(), directory.path().into()],
        )
        .unwrap();
        (directory, plugin)
    }

    #[test]
    fn missing_ipam_plugin_is_reported_with_the_search_path() {
        let error = IpamExec::find("no-such-ipam", &["/a".into(), "/b".into()]).unwrap_err();
        assert_eq!(
            error.msg,
            "failed to find plugin \"no-such-ipam\" in path [/a /b]"
        );
        assert_eq!(
            IpamExec::find("", &[]).unwrap_err().code,
            Code::INVALID_CONFIG
        );
        assert_eq!(
            IpamExec::find("../x", &["/".into()]).unwrap_err().code,
            Code::INVALID_CONFIG
        );
    }

    #[test]
    fn ipam_plugin_receives_command_arguments_and_configuration() {
        let (_directory, plugin) = test_plugin("cat; echo \"$CNI_COMMAND $CNI_ARGS\"");
        let stdout = plugin.call("ADD", "IP=10.0.0.1", b"conf ").unwrap();
        assert_eq!(stdout, b"conf ADD IP=10.0.0.1\n");
    }

    #[test]
    fn error_object_of_the_ipam_plugin_is_returned_with_its_code() {
        let (_directory, plugin) =
            test_plugin("echo '{\"code\": 11, \"msg\": \"full\", \"details\": \"d\"}'; exit 1");
        let error = plugin.call("ADD", "", b"").unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str(), error.details.as_str()),
            (Code(11), "full", "d")
        );
    }

    #[test]
    fn stderr_of_the_ipam_plugin_is_returned_without_an_error_object() {
        let (_directory, plugin) = test_plugin("echo 'lost my mind' >&2; exit 3");
        let error = plugin.call("ADD", "", &vec![b' '; 1 << 20]).unwrap_err();
        assert!(
            error.msg.contains("test-ipam") && error.msg.contains("lost my mind"),
            "{error}"
        );
        let (_directory, plugin) = test_plugin("exit 3");
        assert!(
            plugin
                .call("ADD", "", b"")
                .unwrap_err()
                .msg
                .contains("no error message")
        );
    }

    #[test]
    fn ipam_plugin_past_its_time_limit_is_reported_with_the_limit() {
        let (_directory, plugin) = test_plugin("exec sleep 600");
        let error = plugin
            .with_limit(Duration::from_millis(200))
            .call("ADD", "", b"")
            .unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN);
        assert!(
            error
                .msg
                .contains("test-ipam did not finish ADD within 200ms"),
            "{error}"
        );
    }
}
