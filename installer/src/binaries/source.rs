//! [`SourceProgram`]: the programs that this container can install.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::atomic_file::{self, AtomicFileError};
use crate::digest;
use crate::layout::Layout;
use crate::layout::{CALICO, CALICO_IPAM};
use crate::settings::ExtraPlugins;

/// The program of this process. The link works even if the file was replaced meanwhile.
const OWN: &str = "/proc/self/exe";

/// The name of the installer in the directory of the plugins. It is not a plugin and is not installed (INST-15).
const INSTALL: &str = "install";

/// A program to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceProgram {
    /// The path of the program.
    pub path: PathBuf,
    /// The file name.
    pub name: String,
    /// SHA-256, in hexadecimal.
    pub digest: String,
    /// The permission bits, which the copy gets as well.
    pub mode: u32,
}

impl SourceProgram {
    /// Returns this process's program, which serves as both of Calico's plugins.
    pub fn current() -> Result<SourceProgram, AtomicFileError> {
        Self::read(OWN.into(), CALICO.into())
    }

    fn read(path: PathBuf, name: String) -> Result<SourceProgram, AtomicFileError> {
        let read = || -> io::Result<(String, u32)> {
            Ok((digest::of_file(&path)?, fs::metadata(&path)?.permissions().mode() & 0o7777))
        };
        match read() {
            Ok((digest, mode)) => Ok(SourceProgram { path, name, digest, mode }),
            Err(source) => Err(AtomicFileError { action: "read", path, source }),
        }
    }
}

/// Reads the other plugins in the installer's directory, sorted by name.
pub(super) fn extra_plugins(layout: &Layout, wanted: &ExtraPlugins) -> Result<Vec<SourceProgram>, AtomicFileError> {
    extra_paths(layout, wanted).into_iter().map(|(path, name)| SourceProgram::read(path, name)).collect()
}

/// Returns paths and names of the other plugins. An installer that runs directly on a node brings none.
pub(super) fn extra_paths(layout: &Layout, wanted: &ExtraPlugins) -> Vec<(PathBuf, String)> {
    let (Some(directory), ExtraPlugins::AllBut(skipped)) = (layout.own_plugins(), wanted) else {
        return Vec::new();
    };
    let is_wanted = |path: &Path, name: &str| {
        let is_calicos = [INSTALL, CALICO, CALICO_IPAM].contains(&name);
        !is_calicos && !skipped.iter().any(|skipped| skipped == name) && !atomic_file::is_draft(path) && path.is_file()
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
    use super::*;

    #[test]
    fn other_plugins_are_all_files_but_calicos_and_the_skipped() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("host")).unwrap();
        let layout = Layout::below(root.path());
        let all = ExtraPlugins::AllBut(Vec::new());
        assert_eq!(extra_plugins(&layout, &all).unwrap(), []);

        let directory = layout.own_plugins().unwrap();
        fs::create_dir_all(directory.join("folder")).unwrap();
        for name in ["install", "calico", "calico-ipam", "portmap", "loopback", "bandwidth"] {
            fs::write(directory.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("portmap", directory.join("link")).unwrap();
        let names = |wanted: &ExtraPlugins| -> Vec<String> {
            extra_plugins(&layout, wanted).unwrap().into_iter().map(|program| program.name).collect()
        };
        assert_eq!(names(&all), ["bandwidth", "link", "loopback", "portmap"]);
        assert_eq!(
            names(&ExtraPlugins::AllBut(vec!["link".into(), "calico".into()])),
            ["bandwidth", "loopback", "portmap"]
        );
        assert_eq!(names(&ExtraPlugins::None), [""; 0]);
    }

    #[test]
    fn this_program_can_be_read() {
        let own = SourceProgram::current().unwrap();
        assert_eq!(own.digest, digest::of_file(&std::env::current_exe().unwrap()).unwrap());
        assert!(own.mode & 0o100 != 0);
    }
}
