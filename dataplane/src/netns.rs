//! Opens a network namespace by path, and runs work inside a namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{NSFS_MAGIC, statfs};
use node_process::process::is_own_netns;

/// A failure to open or enter a network namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The path does not exist. A DEL then continues without the namespace.
    #[error("network namespace {} does not exist", .path.display())]
    NotFound {
        /// The requested path.
        path: PathBuf,
    },
    /// The path exists, but is not a network namespace.
    #[error("{} is not a network namespace", .0.display())]
    NotANamespace(PathBuf),
    /// The path is the plugin's own network namespace (CNI error code 8).
    #[error(
        "CNI_NETNS {} is the plugin's own network namespace; the runtime must pass the pod's",
        .0.display()
    )]
    SameNamespace(PathBuf),
    /// The system rejected an operation.
    #[error("{action} network namespace {}: {source}", .path.display())]
    Io {
        /// The operation: `look up`, `open`, `enter` …
        action: &'static str,
        /// The namespace.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl NetnsError {
    /// Returns true if the path exists, and cannot be the network namespace of a container.
    pub(super) fn is_of_no_container(&self) -> bool {
        let leads_nowhere = |error: &io::Error| {
            let errno = error.raw_os_error().map(Errno::from_raw);
            matches!(
                errno,
                Some(Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG)
            )
        };
        match self {
            NetnsError::NotANamespace(_) | NetnsError::SameNamespace(_) => true,
            NetnsError::Io { source, .. } => leads_nowhere(source),
            NetnsError::NotFound { .. } => false,
        }
    }
}

/// Logs that a DEL continues without a namespace.
pub(super) fn log_absent(error: &NetnsError) {
    tracing::warn!(
        %error, "CNI_NETNS is no namespace of a container; continuing without one",
    );
}

/// An open network namespace other than the plugin's own: with a wrong CNI_NETNS the plugin would
/// change the host's network (CNI-27). The namespace exists as long as this value, even if its path
/// is removed.
#[derive(Debug)]
pub struct NetnsFd {
    path: PathBuf,
    file: File,
}

impl NetnsFd {
    /// Opens the namespace at `path`, which must not be that of the calling thread.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        let not_found = || NetnsError::NotFound {
            path: path.to_owned(),
        };
        let kind = statfs(path).map_err(|errno| match errno {
            Errno::ENOENT => not_found(),
            errno => failed("look up", path, errno.into()),
        })?;
        // Upstream also accepts procfs, the file system of namespaces before Linux 3.19.
        if kind.filesystem_type() != NSFS_MAGIC {
            return Err(NetnsError::NotANamespace(path.to_owned()));
        }
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => not_found(),
            _ => failed("open", path, error),
        })?;
        match file.metadata().and_then(|file| is_own_netns(&file)) {
            Ok(false) => Ok(NetnsFd {
                path: path.to_owned(),
                file,
            }),
            Ok(true) => Err(NetnsError::SameNamespace(path.to_owned())),
            Err(error) => Err(failed("look up", path, error)),
        }
    }

    /// Opens the namespace at `path` for a DEL; `None` if the path does not exist, or is no
    /// namespace of a container: a file that `umount` left, a path below a file, a directory, or
    /// the plugin's own namespace. A namespace of another type is detected only when it is entered.
    pub fn open_of_container(path: &Path) -> Result<Option<Self>, NetnsError> {
        match Self::open(path) {
            Err(NetnsError::NotFound { .. }) => Ok(None),
            Err(error) if error.is_of_no_container() => {
                log_absent(&error);
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    /// Returns the path by which the namespace was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file descriptor, for netlink attributes. It is valid as long as this value.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `job` inside this namespace and waits for it.
    ///
    /// The job runs on a thread of its own, which ends with the job: no early return and no panic
    /// can leave the caller in the wrong namespace.
    pub fn run_in<T, E>(&self, job: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E>
    where
        T: Send,
        E: From<NetnsError> + Send,
    {
        thread::scope(|scope| {
            let worker = thread::Builder::new()
                .name("pod-netns".into())
                .spawn_scoped(scope, || {
                    self.enter()?;
                    job()
                });
            let worker = worker.map_err(|error| failed("start a thread for", &self.path, error))?;
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into this namespace permanently. Only for threads that are created
    /// for this purpose.
    pub(super) fn enter(&self) -> Result<(), NetnsError> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            Errno::EINVAL => NetnsError::NotANamespace(self.path.clone()),
            errno => failed("enter", &self.path, errno.into()),
        })
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> NetnsError {
    NetnsError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
