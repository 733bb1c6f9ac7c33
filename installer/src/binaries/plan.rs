//! [`SourceProgram`]: the programs that this container can install, and [`Plan`]: the steps for one
//! plugin directory. Planning is pure; the present files are an input.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libcalico::failure::Failure;

use installation::digest;
use installation::layout::{CALICO, CALICO_IPAM, DirectoryRole, Layout};
use installation::settings::{ExtraPlugins, Settings, Update};
use os::atomic_file::{self, AtomicFileError};

/// The steps for one directory, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub place: DirectoryRole,
    pub directory: PathBuf,
    /// The tasks, with Calico's two programs first.
    pub tasks: Vec<ProgramTask>,
}

/// A program, and the action for its file in one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProgramTask {
    pub name: String,
    pub source: SourceProgram,
    pub action: ProgramAction,
    /// SHA-256 of the present file, empty if the file cannot be read; `None` if the file is
    /// missing.
    pub present_digest: Option<String>,
    /// True for `calico` and `calico-ipam`, for a file that this run copies, and for one that an
    /// earlier run installed.
    is_owned: bool,
}

/// The action for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramAction {
    /// Do nothing: the file is up to date.
    UpToDate,
    /// Do nothing: a file with other content or another mode exists and stays.
    Keep,
    Copy,
    /// Create a hard link to `calico`.
    Link,
}

/// The object at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Present {
    File(PresentFile),
    /// A directory, a pipe or a device, which Calico must not remove.
    NotRegular,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PresentFile {
    /// SHA-256 of the file; empty if the file cannot be read.
    pub digest: String,
    pub mode: u32,
    /// True if an earlier run installed the file.
    pub is_ours: bool,
}

impl Present {
    /// Examines a path and follows symbolic links. Returns `None` if the path cannot be examined.
    pub(super) fn examine(path: &Path, is_ours: impl FnOnce(&str) -> bool) -> Option<Present> {
        let metadata = fs::metadata(path).ok()?;
        if !metadata.is_file() {
            return Some(Present::NotRegular);
        }
        let digest = digest::of_file(path).unwrap_or_default();
        let mode = metadata.permissions().mode() & 0o7777;
        Some(Present::File(PresentFile {
            is_ours: is_ours(&digest),
            digest,
            mode,
        }))
    }
}

impl PresentFile {
    /// Returns true if content and mode are the same, as upstream compares them (INST-18).
    fn matches(&self, program: &SourceProgram) -> bool {
        self.digest == program.digest && self.mode == program.mode
    }
}

impl Plan {
    /// Plans the steps. `examine` returns the object with this name in the directory.
    pub(super) fn new(
        place: DirectoryRole,
        directory: &Path,
        settings: &Settings,
        own: &SourceProgram,
        extra: &[SourceProgram],
        examine: impl Fn(&str) -> Option<Present>,
    ) -> Result<Plan, Failure> {
        let examine = |name: &str| match examine(name) {
            Some(Present::NotRegular) => Err(Failure::new(format_args!(
                "{} is not a regular file, so the plugin of that name cannot be installed",
                directory.join(name).display()
            ))
            .way_out(
                "remove it, or add the name to SKIP_CNI_BINARIES if the plugin is not Calico's",
            )),
            Some(Present::File(present)) => Ok(Some(present)),
            None => Ok(None),
        };
        let update = settings.update;
        let calico = ProgramTask::new(CALICO, own, examine(CALICO)?, update);
        let mut ipam = ProgramTask::new(CALICO_IPAM, own, examine(CALICO_IPAM)?, update);
        if settings.link_ipam
            && ipam.action == ProgramAction::Copy
            && calico.action != ProgramAction::Keep
        {
            ipam.action = ProgramAction::Link;
        }
        let extra = extra.iter().map(|program| {
            Ok(ProgramTask::new(
                &program.name,
                program,
                examine(&program.name)?,
                update,
            ))
        });
        let tasks = [Ok(calico), Ok(ipam)]
            .into_iter()
            .chain(extra)
            .collect::<Result<_, Failure>>()?;
        Ok(Plan {
            place,
            directory: directory.to_owned(),
            tasks,
        })
    }

    pub(super) fn writes(&self) -> bool {
        self.tasks.iter().any(ProgramTask::writes)
    }

    /// Returns true if no task writes one of Calico's two programs.
    pub(super) fn has_both(&self) -> bool {
        self.tasks.iter().take(2).all(|task| !task.writes())
    }
}

impl ProgramTask {
    fn new(
        name: &str,
        source: &SourceProgram,
        present: Option<PresentFile>,
        update: Update,
    ) -> ProgramTask {
        let is_calicos = matches!(name, CALICO | CALICO_IPAM);
        let action = match &present {
            Some(present) if present.matches(source) => ProgramAction::UpToDate,
            Some(_) if update == Update::Never => ProgramAction::Keep,
            Some(present) if update == Update::Ours && !is_calicos && !present.is_ours => {
                ProgramAction::Keep
            }
            _ => ProgramAction::Copy,
        };
        // A distribution may have installed an identical file of another plugin before.
        let is_owned = is_calicos
            || action == ProgramAction::Copy
            || present.as_ref().is_some_and(|file| file.is_ours);
        let present_digest = present.map(|present| present.digest);
        ProgramTask {
            name: name.to_owned(),
            source: source.clone(),
            action,
            present_digest,
            is_owned,
        }
    }

    /// Returns true if, after the task, the file is one that Calico installed.
    pub(super) fn is_ours(&self) -> bool {
        self.is_owned && self.action != ProgramAction::Keep
    }

    pub(super) fn writes(&self) -> bool {
        matches!(self.action, ProgramAction::Copy | ProgramAction::Link)
    }
}

/// The program of this process. The link works even if the file was replaced after the process
/// started.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The name of the installer in the directory of the plugins that this container brings. It is not
/// a plugin and is not installed (INST-15).
const INSTALLER: &str = "install";

/// A program to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceProgram {
    pub path: PathBuf,
    pub name: String,
    pub digest: String,
    /// The permission bits.
    pub mode: u32,
}

impl SourceProgram {
    /// Returns this process's program, which serves as both of Calico's plugins.
    pub(super) fn current() -> Result<SourceProgram, AtomicFileError> {
        Self::read(OWN_PROGRAM.into(), CALICO.into())
    }

    fn read(path: PathBuf, name: String) -> Result<SourceProgram, AtomicFileError> {
        match digest::of_file(&path)
            .and_then(|digest| Ok((digest, fs::metadata(&path)?.permissions().mode())))
        {
            Ok((digest, mode)) => Ok(SourceProgram {
                path,
                name,
                digest,
                mode: mode & 0o7777,
            }),
            Err(source) => Err(AtomicFileError {
                action: "read",
                path,
                source,
            }),
        }
    }
}

pub(super) fn extra_plugins(
    layout: &Layout,
    wanted: &ExtraPlugins,
) -> Result<Vec<SourceProgram>, AtomicFileError> {
    extra_paths(layout, wanted)
        .into_iter()
        .map(|(path, name)| SourceProgram::read(path, name))
        .collect()
}

/// Returns paths and names of the wanted plugins other than Calico's, sorted by name.
pub(super) fn extra_paths(layout: &Layout, wanted: &ExtraPlugins) -> Vec<(PathBuf, String)> {
    let (Some(directory), ExtraPlugins::AllBut(skipped)) = (layout.own_plugins(), wanted) else {
        return Vec::new();
    };
    let is_wanted = |path: &Path, name: &str| {
        let is_calicos = [INSTALLER, CALICO, CALICO_IPAM].contains(&name);
        !is_calicos
            && !skipped.iter().any(|skipped| skipped == name)
            && !atomic_file::is_draft(path)
            && path.is_file()
    };
    // An image without other plugins may lack the directory.
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let named = paths.into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        is_wanted(&path, &name).then_some((path, name))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;

    use super::*;

    fn program(name: &str) -> SourceProgram {
        SourceProgram {
            path: "/src".into(),
            name: name.into(),
            digest: format!("{name}-new"),
            mode: 0o755,
        }
    }

    fn settings(update: Option<&str>) -> Settings {
        let lookup = |name: &str| {
            (name == "UPDATE_CNI_BINARIES")
                .then(|| update.map(str::to_owned))
                .flatten()
        };
        Settings::from_environment(Variables::new(&lookup), "").unwrap()
    }

    fn present(digest: &str, is_ours: bool) -> PresentFile {
        PresentFile {
            digest: digest.into(),
            mode: 0o755,
            is_ours,
        }
    }

    fn plan(
        update: Option<&str>,
        examine: impl Fn(&str) -> Option<Present>,
    ) -> Result<Plan, Failure> {
        let (own, extra) = (program("calico"), [program("portmap")]);
        Plan::new(
            DirectoryRole::Bin,
            Path::new("/bin"),
            &settings(update),
            &own,
            &extra,
            examine,
        )
    }

    fn steps(update: Option<&str>, present: &[(&str, PresentFile)]) -> [ProgramAction; 3] {
        let find = |name: &str| present.iter().find(|(listed, _)| *listed == name);
        let plan = plan(update, |name| {
            find(name).map(|(_, present)| Present::File(present.clone()))
        })
        .unwrap();
        let steps: Vec<_> = plan.tasks.iter().map(|task| task.action).collect();
        steps.try_into().unwrap()
    }

    #[test]
    fn directory_at_a_program_path_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("portmap")).unwrap();
        for update in [None, Some("true"), Some("false")] {
            let error = plan(update, |name| {
                Present::examine(&dir.path().join(name), |_| true)
            })
            .unwrap_err()
            .to_string();
            assert!(
                error.starts_with("/bin/portmap is not a regular file"),
                "{error}"
            );
        }
    }

    #[test]
    fn empty_directory_gets_all_programs_and_a_current_directory_none() {
        assert_eq!(
            steps(None, &[]),
            [
                ProgramAction::Copy,
                ProgramAction::Link,
                ProgramAction::Copy
            ]
        );
        let current = [
            ("calico", present("calico-new", true)),
            ("calico-ipam", present("calico-new", true)),
            ("portmap", present("portmap-new", false)),
        ];
        assert_eq!(steps(Some("true"), &current), [ProgramAction::UpToDate; 3]);
    }

    #[test]
    fn foreign_plugins_are_replaced_only_if_installed_by_calico_or_requested() {
        let old = |ours| {
            [
                ("calico", present("upstream", false)),
                ("calico-ipam", present("upstream", false)),
                ("portmap", present("distribution", ours)),
            ]
        };
        assert_eq!(
            steps(None, &old(false)),
            [
                ProgramAction::Copy,
                ProgramAction::Link,
                ProgramAction::Keep
            ]
        );
        assert_eq!(
            steps(None, &old(true)),
            [
                ProgramAction::Copy,
                ProgramAction::Link,
                ProgramAction::Copy
            ]
        );
        assert_eq!(
            steps(Some("true"), &old(false)),
            [
                ProgramAction::Copy,
                ProgramAction::Link,
                ProgramAction::Copy
            ]
        );
        assert_eq!(steps(Some("false"), &old(true)), [ProgramAction::Keep; 3]);
    }

    #[test]
    fn program_with_a_different_mode_is_replaced() {
        let mut unreadable = present("calico-new", true);
        unreadable.mode = 0o644;
        assert_eq!(
            steps(None, &[("calico", unreadable)])[0],
            ProgramAction::Copy
        );
    }

    #[test]
    fn foreign_program_is_not_linked_as_calico_ipam() {
        assert_eq!(
            steps(Some("false"), &[("calico", present("strange", false))]),
            [
                ProgramAction::Keep,
                ProgramAction::Copy,
                ProgramAction::Copy
            ]
        );
    }

    #[test]
    fn preexisting_program_is_not_recorded_as_installed() {
        let task = |digest: &str, ours, update| {
            ProgramTask::new(
                "portmap",
                &program("portmap"),
                Some(present(digest, ours)),
                update,
            )
        };
        assert!(!task("portmap-new", false, Update::Always).is_ours());
        assert!(task("portmap-new", true, Update::Never).is_ours());
        assert!(!task("old", true, Update::Never).is_ours());
    }

    #[test]
    fn extra_plugins_are_all_files_except_calicos_and_the_skipped() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("host")).unwrap();
        let layout = Layout::below(root.path());
        let all = ExtraPlugins::AllBut(Vec::new());
        assert_eq!(extra_plugins(&layout, &all).unwrap(), []);

        let directory = layout.own_plugins().unwrap();
        fs::create_dir_all(directory.join("folder")).unwrap();
        for name in [
            "install",
            "calico",
            "calico-ipam",
            "portmap",
            "loopback",
            "bandwidth",
        ] {
            fs::write(directory.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("portmap", directory.join("link")).unwrap();
        let names = |wanted: &ExtraPlugins| -> Vec<String> {
            extra_plugins(&layout, wanted)
                .unwrap()
                .into_iter()
                .map(|program| program.name)
                .collect()
        };
        assert_eq!(names(&all), ["bandwidth", "link", "loopback", "portmap"]);
        assert_eq!(
            names(&ExtraPlugins::AllBut(vec!["link".into(), "calico".into()])),
            ["bandwidth", "loopback", "portmap"]
        );
        assert_eq!(names(&ExtraPlugins::None), [""; 0]);
    }

    #[test]
    fn own_program_is_readable_and_executable() {
        let own = SourceProgram::current().unwrap();
        assert_eq!(
            own.digest,
            digest::of_file(&std::env::current_exe().unwrap()).unwrap()
        );
        assert!(own.mode & 0o100 != 0);
    }
}
