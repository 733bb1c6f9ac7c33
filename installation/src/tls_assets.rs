//! The TLS files for etcd, which are copied from the mounted Secret to `calico-tls` beside the
//! configuration.
//!
//! Upstream first deletes the directory, so each restart leaves the node without its files for a
//! moment. Here stale files are removed once the configuration no longer names them (INST-27).

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::template::TlsPaths;
use os::atomic_file::{self, AtomicFileError, regular_file};

/// The name of the directory with the copied TLS files, beside the configuration.
pub const DIRECTORY: &str = "calico-tls";

/// The names of the TLS files, which are the same in the mounted Secret.
pub const FILES: [&str; 3] = ["etcd-ca", "etcd-cert", "etcd-key"];

/// The mounted TLS files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsAssets {
    directory: PathBuf,
    /// The modes of the files that exist, by name.
    modes: BTreeMap<&'static str, u32>,
}

impl TlsAssets {
    /// Finds the files in a directory.
    pub fn find(directory: &Path) -> Result<TlsAssets, AtomicFileError> {
        let mut modes = BTreeMap::new();
        for name in FILES {
            let path = directory.join(name);
            match fs::metadata(&path) {
                Ok(found) if found.is_file() => {
                    modes.insert(name, found.permissions().mode() & 0o777);
                }
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(source) => {
                    return Err(AtomicFileError {
                        action: "examine",
                        path,
                        source,
                    });
                }
            }
        }
        Ok(TlsAssets {
            directory: directory.to_owned(),
            modes,
        })
    }

    /// Returns the paths of the copies on the node, below its configuration directory `net_dir`.
    #[must_use]
    pub fn on_node(&self, net_dir: &str) -> TlsPaths {
        let exists = |name: &str| self.modes.contains_key(name);
        let on_node = |name| {
            if exists(name) {
                format!("{net_dir}/{DIRECTORY}/{name}")
            } else {
                String::new()
            }
        };
        let [ca, cert, key] = FILES.map(on_node);
        TlsPaths { ca, cert, key }
    }

    /// Copies the files to `calico-tls` in the configuration directory.
    pub fn copy(&self, net_dir: &Path) -> Result<(), AtomicFileError> {
        if self.modes.is_empty() {
            return Ok(());
        }
        let directory = net_dir.join(DIRECTORY);
        atomic_file::sweep(&directory);
        let failed = |source| AtomicFileError {
            action: "create",
            path: directory.clone(),
            source,
        };
        fs::create_dir_all(&directory).map_err(failed)?;
        for name in FILES {
            match self.modes.get(name) {
                Some(mode) => drop(atomic_file::replace(
                    &directory.join(name),
                    &self.read(name)?,
                    *mode,
                )?),
                None => {
                    let missing = self.directory.join(name);
                    tracing::warn!(
                        "{} is missing; the configuration is written without it",
                        missing.display()
                    );
                }
            }
        }
        Ok(())
    }

    /// Returns the paths of the copies that are missing, or differ from their source in content or
    /// mode.
    pub fn missing(&self, net_dir: &Path) -> Result<Vec<PathBuf>, AtomicFileError> {
        let mut missing = Vec::new();
        for (name, mode) in &self.modes {
            let copy = net_dir.join(DIRECTORY).join(name);
            if !atomic_file::has_contents(&copy, &self.read(name)?, *mode) {
                missing.push(copy);
            }
        }
        Ok(missing)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, AtomicFileError> {
        let path = self.directory.join(name);
        regular_file::contents(&path).map_err(|source| AtomicFileError {
            action: "read",
            path,
            source,
        })
    }
}

/// Removes from `calico-tls` the files that `tls` does not name.
pub fn remove_stale(net_dir: &Path, tls: &TlsPaths) {
    let directory = net_dir.join(DIRECTORY);
    atomic_file::sweep(&directory);
    let Ok(entries) = fs::read_dir(&directory) else {
        return;
    };
    let kept = [&tls.ca, &tls.cert, &tls.key]
        .map(|path| path.rsplit('/').next().unwrap_or_default().to_owned());
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if kept.iter().any(|kept| *kept == name) || atomic_file::is_draft(&path) {
            continue;
        }
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        if let Err(error) = removed {
            tracing::warn!(
                path = %path.display(), %error,
                "cannot remove an unused TLS file"
            );
        }
    }
    // The call fails if a file remains in the directory.
    let _ = fs::remove_dir(&directory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_files_are_copied_with_their_mode_and_stale_files_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (assets, net_dir) = (dir.path().join("assets"), dir.path().join("net.d"));
        fs::create_dir_all(&assets).unwrap();
        fs::create_dir_all(net_dir.join(DIRECTORY)).unwrap();
        for name in ["etcd-key", ".etcd-ca.0123456789abcdef.calico-draft.tmp"] {
            fs::write(net_dir.join(DIRECTORY).join(name), "old").unwrap();
        }
        // The files of a mounted Secret are symbolic links.
        fs::write(assets.join("data"), "cert").unwrap();
        fs::set_permissions(assets.join("data"), fs::Permissions::from_mode(0o400)).unwrap();
        std::os::unix::fs::symlink("data", assets.join("etcd-cert")).unwrap();
        fs::write(assets.join(".hidden"), "").unwrap();

        let found = TlsAssets::find(&assets).unwrap();
        let copied = net_dir.join(DIRECTORY).join("etcd-cert");
        assert_eq!(
            found.missing(&net_dir).unwrap(),
            std::slice::from_ref(&copied)
        );
        found.copy(&net_dir).unwrap();
        assert!(found.missing(&net_dir).unwrap().is_empty());
        let tls = found.on_node("/etc/cni/net.d");
        let cert = "/etc/cni/net.d/calico-tls/etcd-cert".to_owned();
        assert_eq!(
            tls,
            TlsPaths {
                cert,
                ..TlsPaths::default()
            }
        );
        assert_eq!(fs::read(&copied).unwrap(), b"cert");
        assert_eq!(
            fs::metadata(&copied).unwrap().permissions().mode() & 0o777,
            0o400
        );

        remove_stale(&net_dir, &tls);
        let names: Vec<_> = fs::read_dir(net_dir.join(DIRECTORY))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["etcd-cert"]);
        remove_stale(&net_dir, &TlsPaths::default());
        assert!(!net_dir.join(DIRECTORY).exists());
    }

    #[test]
    fn without_tls_files_no_directory_is_created() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".hidden"), "").unwrap();
        for assets in [dir.path(), Path::new("/no/such/place")] {
            let found = TlsAssets::find(assets).unwrap();
            found.copy(dir.path()).unwrap();
            assert_eq!(found.on_node("/n"), TlsPaths::default());
        }
        assert!(!dir.path().join(DIRECTORY).exists());
    }
}
