//! Asks a plugin for the versions of the CNI specification that it supports. The plugin may be
//! another program's, so it gets no capability and no variable of this process.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use os::child;
use serde::Deserialize;
use serde_json::json;

use crate::version_run::BUSY;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionAnswer {
    supported_versions: Vec<String>,
}

/// Reasons for a missing answer.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The program cannot be run.
    #[error("cannot be run: {0}")]
    NotRun(io::Error),
    /// The program did not end within this time.
    #[error("does not answer within {0:?}")]
    Late(Duration),
    /// The output is no valid answer.
    #[error("does not answer VERSION ({0})")]
    Invalid(ExitStatus),
}

impl VersionError {
    /// Returns true if the program, or the interpreter that runs it, is missing. The interpreter of
    /// a dynamically linked program is the dynamic linker.
    pub fn is_missing_interpreter(&self) -> bool {
        matches!(self, VersionError::NotRun(error) if error.kind() == ErrorKind::NotFound)
    }
}

/// Returns the versions that `program` supports. `version` is the `cniVersion` of the
/// configuration. The program is killed after `limit`.
pub fn query(program: &Path, version: &str, limit: Duration) -> Result<Vec<String>, VersionError> {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stderr(Stdio::null());
    let input = json!({ "cniVersion": version }).to_string();
    let ran = child::run_without_capabilities(&mut command, input.as_bytes(), limit, BUSY);
    let output = ran.map_err(VersionError::NotRun)?;
    let Output { status, stdout, .. } = output.ok_or(VersionError::Late(limit))?;
    let answer: VersionAnswer =
        serde_json::from_slice(&stdout).map_err(|_| VersionError::Invalid(status))?;
    Ok(answer.supported_versions)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn query_script(text: &str, limit: Duration) -> Result<Vec<String>, VersionError> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("plugin");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        query(&program, "1.0.0", limit)
    }

    #[test]
    fn plugin_is_asked_with_the_version_and_without_other_variables() {
        let script = r#"#!/bin/sh
[ "$CNI_COMMAND" = VERSION ] && [ "$(cat)" = '{"cniVersion":"1.0.0"}' ] && [ -z "$HOME" ] || exit 3
echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'
"#;
        assert_eq!(query_script(script, LONG).unwrap(), ["0.4.0", "1.0.0"]);
    }

    #[test]
    fn missing_answers_are_distinguished_by_cause() {
        let late =
            query_script("#!/bin/sh\nexec sleep 1000\n", Duration::from_millis(50)).unwrap_err();
        assert_eq!(late.to_string(), "does not answer within 50ms");
        let invalid =
            query_script("#!/bin/sh\ncat >/dev/null; echo no; exit 3\n", LONG).unwrap_err();
        assert_eq!(
            invalid.to_string(),
            "does not answer VERSION (exit status: 3)"
        );
        assert!(!late.is_missing_interpreter() && !invalid.is_missing_interpreter());
        let dynamic = query_script("#!/no/such/interpreter\n", LONG).unwrap_err();
        assert!(dynamic.is_missing_interpreter(), "{dynamic}");
    }
}
