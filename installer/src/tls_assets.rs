//! The files for TLS with etcd: from the mounted Secret to `calico-tls` beside the configuration.
//!
//! Upstream removes the directory first, so that each restart leaves the node without its files for a moment; here new files
//! are put in place first, and what is left over is removed when the configuration no longer names it (INST-27).

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::atomic_file::{self, AtomicFileError};
use crate::template::Tls;

/// The directory beside the configuration.
pub const DIRECTORY: &str = "calico-tls";

/// What may be in it.
pub const FILES: [&str; 3] = ["etcd-ca", "etcd-cert", "etcd-key"];

/// Why a file is not copied.
#[derive(Debug, thiserror::Error)]
pub enum TlsAssetsError {
    /// The file cannot be read, or the directory not be made.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The copy cannot be written.
    #[error(transparent)]
    Copy(#[from] AtomicFileError),
}

/// Copies those of the three files that `assets` has to `net_dir`. Returns the paths on the node, below `net_dir_on_node`.
///
/// # Errors
/// One of them is there and cannot be copied.
pub fn copy(assets: &Path, net_dir: &Path, net_dir_on_node: &str) -> Result<Tls, TlsAssetsError> {
    let mut found = Vec::new();
    for name in FILES {
        let path = assets.join(name);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => found.push((name, path, metadata.permissions().mode() & 0o777)),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(source) => return Err(TlsAssetsError::File { action: "look at", path, source }),
        }
    }
    if found.is_empty() {
        return Ok(Tls::default());
    }
    let directory = net_dir.join(DIRECTORY);
    atomic_file::sweep(&directory);
    fs::create_dir_all(&directory).map_err(|source| TlsAssetsError::File {
        action: "create",
        path: directory.clone(),
        source,
    })?;
    for name in FILES {
        match found.iter().find(|(known, ..)| *known == name) {
            Some((name, path, mode)) => {
                let contents = fs::read(path);
                let contents =
                    contents.map_err(|source| TlsAssetsError::File { action: "read", path: path.clone(), source })?;
                atomic_file::replace(&directory.join(name), &contents, *mode)?;
            }
            None => tracing::warn!("{} is not there; the configuration goes without", assets.join(name).display()),
        }
    }
    let on_node = |name: &str| match found.iter().any(|(known, ..)| *known == name) {
        true => format!("{net_dir_on_node}/{DIRECTORY}/{name}"),
        false => String::new(),
    };
    let [ca, cert, key] = FILES.map(on_node);
    Ok(Tls { ca, cert, key })
}

/// Removes what the configuration does not name: everything else in the directory, and the directory when it is empty.
pub fn remove_strays(net_dir: &Path, tls: &Tls) {
    let directory = net_dir.join(DIRECTORY);
    atomic_file::sweep(&directory);
    let Ok(entries) = fs::read_dir(&directory) else { return };
    let kept = [&tls.ca, &tls.cert, &tls.key].map(|path| path.rsplit('/').next().unwrap_or_default().to_owned());
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if kept.iter().any(|kept| *kept == name) || atomic_file::is_draft(&path) {
            continue;
        }
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if let Err(error) = removed {
            tracing::warn!(path = %path.display(), %error, "a left-over file for TLS cannot be removed");
        }
    }
    // Not empty: somebody still needs it.
    let _ = fs::remove_dir(&directory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_copied_with_its_mode_and_what_is_left_over_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (assets, net_dir) = (dir.path().join("assets"), dir.path().join("net.d"));
        fs::create_dir_all(&assets).unwrap();
        fs::create_dir_all(net_dir.join(DIRECTORY)).unwrap();
        for name in ["etcd-key", ".etcd-ca.0123456789abcdef.calico-draft.tmp"] {
            fs::write(net_dir.join(DIRECTORY).join(name), "old").unwrap();
        }
        // The files of a Secret are links.
        fs::write(assets.join("data"), "cert").unwrap();
        fs::set_permissions(assets.join("data"), fs::Permissions::from_mode(0o400)).unwrap();
        std::os::unix::fs::symlink("data", assets.join("etcd-cert")).unwrap();
        fs::write(assets.join(".hidden"), "").unwrap();

        let tls = copy(&assets, &net_dir, "/etc/cni/net.d").unwrap();
        let cert = "/etc/cni/net.d/calico-tls/etcd-cert".to_owned();
        assert_eq!(tls, Tls { cert, ..Tls::default() });
        let copied = net_dir.join(DIRECTORY).join("etcd-cert");
        assert_eq!(fs::read(&copied).unwrap(), b"cert");
        assert_eq!(fs::metadata(&copied).unwrap().permissions().mode() & 0o777, 0o400);

        remove_strays(&net_dir, &tls);
        let names: Vec<_> = fs::read_dir(net_dir.join(DIRECTORY)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["etcd-cert"]);
        remove_strays(&net_dir, &Tls::default());
        assert!(!net_dir.join(DIRECTORY).exists());
    }

    #[test]
    fn without_files_there_is_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".hidden"), "").unwrap();
        for assets in [dir.path(), Path::new("/no/such/place")] {
            assert_eq!(copy(assets, dir.path(), "/n").unwrap(), Tls::default());
        }
        assert!(!dir.path().join(DIRECTORY).exists());
    }
}
