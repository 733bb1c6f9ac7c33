//! The network namespaces of the node's processes.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;

use super::{DataplaneError, NetnsError, NetnsFd};

/// The flag of a task that is exiting, which may still have the state of a running one.
const PF_EXITING: u32 = 0x4;

/// The processes whose namespaces count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Examined {
    /// The main thread of each process. A process that this process may not inspect is skipped: it
    /// has more rights than the plugin, so it is not in a container of the runtime that runs the
    /// plugin.
    Processes,
    /// Each thread of each process. One that this process may not inspect is an error.
    Threads,
}

/// Calls `visit` with one process in `proc` of each network namespace except that of this process,
/// and with the namespace. Each namespace is open only during its call, because a host may have
/// more namespaces than a process may have open files.
pub(super) fn each_netns(
    proc: &Path,
    examined: Examined,
    mut visit: impl FnMut(u32, &NetnsFd) -> Result<(), DataplaneError>,
) -> Result<(), DataplaneError> {
    let mut visited_namespaces = BTreeSet::new();
    for entry in fs::read_dir(proc).map_err(DataplaneError::Processes)? {
        let entry = entry.map_err(DataplaneError::Processes)?;
        let Some(process) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        for task in tasks(&entry.path(), examined)? {
            let path = task.join("ns/net");
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if examined == Examined::Processes || has_ended(&task, &error) => {
                    continue;
                }
                Err(source) => return Err(DataplaneError::HiddenProcess { path, source }),
            };
            let namespace = (metadata.dev(), metadata.ino());
            if !visited_namespaces.insert(namespace) {
                continue;
            }
            match NetnsFd::open(&path) {
                Ok(netns) => visit(process, &netns)?,
                // The process exited after the lookup. Another process may be in the same
                // namespace.
                Err(NetnsError::NotFound { .. }) => _ = visited_namespaces.remove(&namespace),
                Err(NetnsError::Io { source, .. })
                    if (examined == Examined::Processes
                        && source.kind() == io::ErrorKind::PermissionDenied)
                        || has_ended(&task, &source) =>
                {
                    visited_namespaces.remove(&namespace);
                }
                Err(NetnsError::SameNamespace { .. } | NetnsError::NotANamespace { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Returns the directories of the examined tasks of a process, whose directory in /proc is
/// `process`.
fn tasks(process: &Path, examined: Examined) -> Result<Vec<PathBuf>, DataplaneError> {
    if examined == Examined::Processes {
        return Ok(vec![process.to_owned()]);
    }
    let path = process.join("task");
    let listed = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    match listed {
        Ok(listed) => Ok(listed.iter().map(fs::DirEntry::path).collect()),
        Err(error) if has_ended(process, &error) => Ok(Vec::new()),
        Err(source) => Err(DataplaneError::HiddenProcess { path, source }),
    }
}

/// Returns true if an error at a file below `task`, the directory of a process or thread in /proc,
/// shows that the process or thread has ended.
pub(super) fn has_ended(task: &Path, error: &io::Error) -> bool {
    shows_end(error, || fs::read(task.join("stat")))
}

/// Returns true if the error, or the file `stat` of the task after it, shows that the task has
/// ended.
fn shows_end(error: &io::Error, stat: impl FnOnce() -> io::Result<Vec<u8>>) -> bool {
    if is_missing(error) {
        return true;
    }
    // The kernel also denies the access to a task that ends after the lookup of its directory.
    // Programs that end threads all the time would otherwise hide all processes.
    error.kind() == io::ErrorKind::PermissionDenied
        && match stat() {
            Ok(stat) => is_exiting(&String::from_utf8_lossy(&stat)),
            Err(error) => is_missing(&error),
        }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// Returns true if the text of a file `stat` is that of a task that has exited or is exiting.
fn is_exiting(stat: &str) -> bool {
    // The name of the task, in parentheses, may contain any character.
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return false;
    };
    let mut fields = fields.split_whitespace();
    let state = fields.next();
    // Five fields are between the state and the flags.
    let flags = fields
        .nth(5)
        .and_then(|flags| flags.parse::<u32>().ok())
        .unwrap_or_default();
    matches!(state, Some("Z" | "X")) || flags & PF_EXITING != 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Shows SEC-34.
    #[test]
    fn task_with_a_denied_file_has_ended_only_if_its_state_shows_it() {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno as i32);
        let stat = |state: &str, flags: u32| {
            Ok(format!("7 (a) R) {state} 1 7 7 0 -1 {flags} 0").into_bytes())
        };
        let missing = || Err(error(Errno::ENOENT));
        let running = || stat("S", 0x0040_0040);
        for (errno, after, has_ended) in [
            (Errno::ENOENT, running(), true),
            (Errno::ESRCH, running(), true),
            (Errno::EACCES, missing(), true),
            (Errno::EACCES, Err(error(Errno::ESRCH)), true),
            (Errno::EACCES, stat("Z", 0), true),
            (Errno::EACCES, stat("X", 0), true),
            (Errno::EACCES, stat("R", 0x0040_0044), true),
            (Errno::EPERM, missing(), true),
            (Errno::EACCES, running(), false),
            (Errno::EACCES, stat("R", 0), false),
            (Errno::EACCES, Err(error(Errno::EACCES)), false),
            (Errno::EACCES, Ok(b"7 \xff".to_vec()), false),
            (Errno::EIO, missing(), false),
        ] {
            let context = format!("{errno}: {after:?}");
            assert_eq!(shows_end(&error(errno), || after), has_ended, "{context}");
        }
    }

    /// The kernel denies one access in some thousands to threads that end all the time.
    /// Shows SEC-34.
    #[test]
    fn threads_that_end_during_the_look_hide_no_process() {
        let directory = tempfile::tempdir().unwrap();
        symlink("/proc/self", directory.path().join("1")).unwrap();
        let is_over = AtomicBool::new(false);
        let end_threads = || {
            while !is_over.load(Ordering::Relaxed) {
                thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| {}))));
            }
        };
        let failed = thread::scope(|scope| {
            scope.spawn(end_threads);
            let look = |_| each_netns(directory.path(), Examined::Threads, |_, _: &NetnsFd| Ok(()));
            let failed = (0..10_000).map(look).find_map(Result::err);
            is_over.store(true, Ordering::Relaxed);
            failed
        });
        assert!(failed.is_none(), "{failed:?}");
    }

    #[test]
    fn directory_other_than_proc_yields_an_error_or_no_process() {
        let none = |_, _: &NetnsFd| panic!("a namespace");
        assert!(each_netns(Path::new("/nonexistent"), Examined::Processes, none).is_err());
        let directory = tempfile::tempdir().unwrap();
        for name in ["self", "12", "cpuinfo"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        for examined in [Examined::Processes, Examined::Threads] {
            each_netns(directory.path(), examined, none).unwrap();
        }
    }

    #[test]
    fn unreadable_thread_is_an_error_and_an_unreadable_process_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        // A path below a file is as unreadable for root as for others.
        for file in ["12/ns", "13/task/13/ns"] {
            let file = directory.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let none = |_, _: &NetnsFd| panic!("a namespace");
        each_netns(directory.path(), Examined::Processes, none).unwrap();
        let error = each_netns(directory.path(), Examined::Threads, none).unwrap_err();
        assert!(error.to_string().contains("13/task/13/ns/net"), "{error}");
    }

    #[test]
    fn each_other_network_namespace_is_visited_once() {
        let mut unshare = Command::new("unshare");
        let child = unshare.args([
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            "echo ready; exec sleep 60",
        ]);
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let mut processes = Vec::new();
        let visited = each_netns(Path::new("/proc"), Examined::Processes, |process, _| {
            processes.push(process);
            Ok(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        visited.unwrap();
        assert!(
            processes.contains(&child.id()) && !processes.contains(&std::process::id()),
            "{processes:?}"
        );
    }
}
