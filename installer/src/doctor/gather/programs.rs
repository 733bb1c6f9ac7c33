//! The programs that a configuration names: where they are, and whether they answer.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use netconf::NetConf;
use serde::Deserialize;

use crate::doctor::facts::{Content, Program, ProgramState};
use crate::layout::Layout;

/// What containerd runs beside every configuration (INST-171).
const LOOPBACK: &str = "loopback";

/// What a plugin answers to VERSION.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    supported_versions: Vec<String>,
}

/// The plugins of the list, the one that gives addresses, and `loopback`.
pub(super) fn all(content: &Content, conf: Option<&NetConf>, layout: &Layout) -> Vec<Program> {
    let mut names = content.plugins.clone();
    names.extend(conf.map(|conf| conf.ipam.ipam_type.clone()).filter(|name| !name.is_empty()));
    names.push(LOOPBACK.into());
    let directories: Vec<PathBuf> = layout.bin_dirs().into_iter().map(|(_, directory)| directory).collect();
    let mut programs: Vec<Program> = Vec::new();
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        if !programs.iter().any(|known| known.name == name) {
            programs.push(Program { state: look(&name, &directories, &content.cni_version), name });
        }
    }
    programs
}

/// The first one that is there, as a runtime looks for it (INST-165).
fn look(name: &str, directories: &[PathBuf], cni_version: &str) -> ProgramState {
    let Some(path) = directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file()) else {
        return ProgramState::Missing;
    };
    let is_executable = path.metadata().is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
    if !is_executable {
        return ProgramState::NotExecutable(path);
    }
    match versions(&path, cni_version) {
        Ok(versions) => ProgramState::Speaks(path, versions),
        Err(reason) => ProgramState::Broken(path, reason),
    }
}

fn versions(path: &Path, cni_version: &str) -> Result<Vec<String>, String> {
    let mut child = Command::new(path)
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot be run: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // Whoever does not read it need not.
        let _ = write!(stdin, "{{\"cniVersion\":\"{cni_version}\"}}");
    }
    let output = child.wait_with_output().map_err(|error| format!("cannot be run: {error}"))?;
    let answer: Result<Versions, _> = serde_json::from_slice(&output.stdout);
    answer
        .map(|versions| versions.supported_versions)
        .map_err(|_| format!("does not answer VERSION ({})", output.status))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn program(directory: &Path, name: &str, script: &str, mode: u32) {
        fs::write(directory.join(name), format!("#!/bin/sh\ncat >/dev/null\n{script}\n")).unwrap();
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_program_is_looked_for_run_and_listened_to() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        program(here, "good", r#"echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'"#, 0o755);
        program(here, "mute", "exit 3", 0o755);
        program(here, "dead", "", 0o644);
        let directories = [PathBuf::from("/no/such/place"), here.to_owned()];
        let look = |name| look(name, &directories, "1.0.0");
        assert_eq!(look("good"), ProgramState::Speaks(here.join("good"), vec!["0.4.0".into(), "1.0.0".into()]));
        assert_eq!(look("dead"), ProgramState::NotExecutable(here.join("dead")));
        assert_eq!(look("gone"), ProgramState::Missing);
        let ProgramState::Broken(_, reason) = look("mute") else { panic!() };
        assert_eq!(reason, "does not answer VERSION (exit status: 3)");
    }
}
