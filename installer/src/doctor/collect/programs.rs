//! Examines the programs that configurations name: their paths, their origin and their answer to VERSION.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use netconf::NetConf;
use serde::Deserialize;

use crate::child_process::{self, Answer};
use crate::digest;
use crate::doctor::snapshot::{Content, Observed, ProgramOrigin, ProgramState, RequiredProgram, Unobserved};
use crate::layout::{CALICO, CALICO_IPAM};
use crate::layout::{Layout, Place};
use crate::state::State;

/// The plugin that containerd runs for each pod beside any configuration (INST-171).
const LOOPBACK: &str = "loopback";

/// Time limit for an answer that needs no server.
const DEADLINE: Duration = Duration::from_secs(5);

/// A plugin's answer to VERSION.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    supported_versions: Vec<String>,
}

/// The directories to search, and the installer's records.
struct VersionProbe<'a> {
    directories: Vec<(Place, PathBuf)>,
    noted: Option<&'a State>,
    deadline: Duration,
}

/// Examines the plugins of the configurations, the IPAM plugin and `loopback`.
pub(super) fn examine(
    contents: &[&Content],
    conf: Option<&NetConf>,
    layout: &Layout,
    noted: Option<&State>,
) -> Vec<RequiredProgram> {
    let Some(last) = contents.last() else { return Vec::new() };
    let named = |content: &Content| {
        let version = content.cni_version.clone();
        content.plugins.clone().into_iter().map(move |name| (name, version.clone()))
    };
    let mut wanted: Vec<(String, String)> = contents.iter().flat_map(|content| named(content)).collect();
    let ipam = conf.map(|conf| conf.ipam.ipam_type.clone());
    wanted.extend(ipam.into_iter().chain([LOOPBACK.to_owned()]).map(|name| (name, last.cni_version.clone())));
    let looker = VersionProbe { directories: layout.bin_dirs(), noted, deadline: DEADLINE };
    let mut programs: Vec<RequiredProgram> = Vec::new();
    for (name, cni_version) in wanted.into_iter().filter(|(name, _)| !name.is_empty()) {
        if !programs.iter().any(|known| known.name == name) {
            programs.push(looker.examine(name, cni_version));
        }
    }
    programs
}

impl VersionProbe<'_> {
    /// Examines the first regular file of this name. Runtimes choose it in the same way, whatever its mode (INST-165).
    fn examine(&self, name: String, cni_version: String) -> RequiredProgram {
        let mut found = self.directories.iter().map(|(place, directory)| (*place, directory.join(&name)));
        let Some((place, path)) = found.find(|(_, path)| path.is_file()) else {
            let state = ProgramState::Missing;
            return RequiredProgram { name, cni_version, state, origin: ProgramOrigin::Unknown, version: None };
        };
        let state = self.state(path.clone(), &cni_version);
        let is_calicos = matches!(name.as_str(), CALICO | CALICO_IPAM) && matches!(state, ProgramState::Speaks(..));
        let version = is_calicos.then(|| self.version(&path)).flatten();
        RequiredProgram { origin: self.origin(place, &name, &path), name, cni_version, state, version }
    }

    fn state(&self, path: PathBuf, cni_version: &str) -> ProgramState {
        let is_executable = path.metadata().is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
        if !is_executable {
            return ProgramState::NotExecutable(path);
        }
        match self.versions(&path, cni_version) {
            Ok(versions) => ProgramState::Speaks(path, versions),
            Err(reason) => ProgramState::Broken(path, reason.into()),
        }
    }

    /// Compares the digest of a file with the record. An unreadable file has an unknown origin.
    fn origin(&self, place: Place, name: &str, path: &Path) -> ProgramOrigin {
        let noted = self.noted.and_then(|state| state.get(place, name)).filter(|noted| noted.digest.is_some());
        let Some((noted, digest)) = noted.zip(digest::of_file(path).ok()) else { return ProgramOrigin::Unknown };
        let is = |known: &Option<String>| known.as_ref() == Some(&digest);
        match (is(&noted.digest), is(&noted.former)) {
            (true, _) => ProgramOrigin::Installed,
            (false, true) => ProgramOrigin::Former,
            (false, false) => ProgramOrigin::Other,
        }
    }

    fn versions(&self, path: &Path, cni_version: &str) -> Observed<Vec<String>> {
        let input = format!("{{\"cniVersion\":\"{cni_version}\"}}");
        let Answer { status, stdout } = self.ask(Command::new(path).env("CNI_COMMAND", "VERSION"), &input)?;
        let answer: Result<Versions, _> = serde_json::from_slice(&stdout);
        answer
            .map(|versions| versions.supported_versions)
            .map_err(|_| Unobserved::new(format!("does not answer VERSION ({status})")))
    }

    /// Returns the output of `-v` if it is a single word.
    fn version(&self, path: &Path) -> Option<String> {
        let answer = self.ask(Command::new(path).arg("-v"), "").ok().filter(|answer| answer.status.success())?;
        let said = String::from_utf8(answer.stdout).ok()?;
        Some(said.trim().to_owned()).filter(|said| !said.is_empty() && !said.contains(char::is_whitespace))
    }

    fn ask(&self, command: &mut Command, input: &str) -> Observed<Answer> {
        let answer = child_process::run(command, input.as_bytes(), Instant::now() + self.deadline);
        let answer = answer.map_err(|error| Unobserved::new(format!("cannot be run: {error}")))?;
        answer.ok_or_else(|| Unobserved::new(format!("does not answer within {:?}", self.deadline)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn program(directory: &Path, name: &str, script: &str, mode: u32) {
        fs::write(directory.join(name), format!("#!/bin/sh\ncat >/dev/null\n{script}\n")).unwrap();
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Returns a `VersionProbe` for a directory, after another directory that does not exist.
    fn looker<'a>(here: &Path, noted: Option<&'a State>) -> VersionProbe<'a> {
        let directories = vec![(Place::SecondaryBin, PathBuf::from("/no/such/place")), (Place::Bin, here.to_owned())];
        // Longer than any machine needs to start a shell.
        VersionProbe { directories, noted, deadline: Duration::from_secs(60) }
    }

    const ANSWER: &str = r#"echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'"#;

    #[test]
    fn a_program_is_looked_for_run_and_listened_to() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        program(here, "good", ANSWER, 0o755);
        program(here, "mute", "exit 3", 0o755);
        program(here, "dead", "", 0o644);
        let look = |name: &str| looker(here, None).examine(name.into(), "1.0.0".into()).state;
        assert_eq!(look("good"), ProgramState::Speaks(here.join("good"), vec!["0.4.0".into(), "1.0.0".into()]));
        assert_eq!(look("dead"), ProgramState::NotExecutable(here.join("dead")));
        assert_eq!(look("gone"), ProgramState::Missing);
        let ProgramState::Broken(_, reason) = look("mute") else { panic!() };
        assert_eq!(reason, "does not answer VERSION (exit status: 3)");
    }

    #[test]
    fn a_program_that_hangs_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        program(directory.path(), "portmap", "exec sleep 1000", 0o755);
        let looker = VersionProbe { deadline: Duration::from_millis(50), ..looker(directory.path(), None) };
        let ProgramState::Broken(_, reason) = looker.examine("portmap".into(), "1.0.0".into()).state else { panic!() };
        assert_eq!(reason, "does not answer within 50ms");
    }

    #[test]
    fn what_is_noted_tells_whose_a_program_is() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        program(here, "portmap", ANSWER, 0o755);
        let digest = digest::of_file(&here.join("portmap")).unwrap();
        let mut state = State::default();
        let origin = |state: &State| looker(here, Some(state)).examine("portmap".into(), String::new()).origin;
        assert_eq!(origin(&state), ProgramOrigin::Unknown);
        state.record(Place::Bin, "portmap", None, false);
        assert_eq!(origin(&state), ProgramOrigin::Unknown);
        state.record(Place::Bin, "portmap", Some(digest.clone()), false);
        assert_eq!(origin(&state), ProgramOrigin::Installed);
        state.record_replacement(Place::Bin, "portmap", "other".into(), Some(&digest));
        assert_eq!(origin(&state), ProgramOrigin::Former);
        state.record(Place::Bin, "portmap", Some("other".into()), false);
        assert_eq!(origin(&state), ProgramOrigin::Other);
    }

    #[test]
    fn calicos_programs_are_asked_for_their_version() {
        let directory = tempfile::tempdir().unwrap();
        let version = format!("[ \"$1\" = -v ] && echo v1.2.3 && exit\n{ANSWER}");
        for name in ["calico", "portmap"] {
            program(directory.path(), name, &version, 0o755);
        }
        let version = |name: &str| looker(directory.path(), None).examine(name.into(), "1.0.0".into()).version;
        assert_eq!((version("calico").as_deref(), version("portmap")), (Some("v1.2.3"), None));
    }
}
