//! A private host for each test: a separate network and mount namespace with empty state
//! directories.
//!
//! The namespaces belong to the thread that unshared them, and to the threads and processes that it
//! starts. Once these have ended and no [`Neighbor`] refers to the namespaces, the kernel removes
//! them and their files.

use std::env;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::geteuid;

use crate::command::ip;

/// Directory of named network namespaces.
pub const NETNS_DIR: &str = "/var/run/netns";

/// Directories that are private to each host, and empty at first, where the machine has them.
const PRIVATE_DIRS: [&str; 4] = ["/run", "/var/lib", "/var/log", "/etc/cni"];

/// Variable of the copy of a test that runs inside a user namespace.
const INSIDE_USER_NAMESPACE: &str = "INTEGRATION_TESTS_IN_USER_NAMESPACE";

/// Variable of the copy of a test that runs inside a PID namespace.
const INSIDE_PID_NAMESPACE: &str = "INTEGRATION_TESTS_IN_PID_NAMESPACE";

/// A private host. At first `lo` is up, and there are no other interfaces.
#[derive(Debug)]
#[non_exhaustive]
pub struct Host {}

/// The namespaces of another private host. The kernel removes them once this is dropped and no
/// process runs in them.
#[derive(Debug)]
pub struct Neighbor {
    network: File,
    files: File,
}

/// Runs `test` on a private host. Without root, the whole test runs again inside a user namespace.
///
/// # Panics
/// Panics if the host cannot be created, or with the panic of `test`.
pub fn isolated(test: impl FnOnce(&Host) + Send) {
    if !geteuid().is_root() {
        return run_in_user_namespace();
    }
    in_new_thread(|| {
        let host = Host::enter().expect("a private host could not be made");
        test(&host);
    });
}

/// Runs `f` on another thread with the same name, which is that of the test in reports of panics
/// and skips.
fn in_new_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let name = thread::current().name().unwrap_or("host").to_owned();
    let joined = thread::scope(|scope| {
        thread::Builder::new()
            .name(name)
            .spawn_scoped(scope, f)
            .expect("no thread for a private host")
            .join()
    });
    joined.unwrap_or_else(|panic| resume_unwind(panic))
}

impl Host {
    /// Moves the calling thread onto a new private host.
    fn enter() -> Result<Host> {
        unshare(CloneFlags::CLONE_NEWNET).context("cannot unshare the network")?;
        Self::own_files(&[])?;
        ip("link set lo up")?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
        Ok(Host {})
    }

    /// Gives the calling thread a mount namespace in which the private directories are empty, apart
    /// from the existing directories `kept`.
    fn own_files(kept: &[PathBuf]) -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNS).context("cannot unshare mounts")?;
        let nothing = None::<&str>;
        mount(
            nothing,
            "/",
            nothing,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            nothing,
        )
        .context("cannot make mounts private")?;
        // Only a directory of this mount namespace can be mounted in it.
        let kept: Vec<(&PathBuf, File)> = kept
            .iter()
            .map(|dir| Ok((dir, File::open(dir)?)))
            .collect::<Result<_>>()?;
        for dir in PRIVATE_DIRS {
            if Path::new(dir).is_dir() {
                mount(
                    Some("tmpfs"),
                    dir,
                    Some("tmpfs"),
                    MsFlags::empty(),
                    Some("mode=755"),
                )
                .with_context(|| format!("cannot mount a private {dir}"))?;
            }
        }
        for (dir, opened) in kept {
            fs::create_dir_all(dir)?;
            let source = format!("/proc/self/fd/{}", opened.as_raw_fd());
            mount(
                Some(source.as_str()),
                dir.as_path(),
                nothing,
                MsFlags::MS_BIND,
                nothing,
            )
            .with_context(|| format!("cannot keep {}", dir.display()))?;
        }
        Ok(fs::create_dir_all(NETNS_DIR)?)
    }

    /// Runs `f` as on a reinstalled host: in the same network, but with empty private directories
    /// and without pods. The calling thread keeps its directories and pods.
    pub fn reinstalled<T: Send>(&self, f: impl FnOnce(&Host) -> Result<T> + Send) -> Result<T> {
        self.reinstalled_keeping(&[], f)
    }

    /// Does the same as [`Host::reinstalled`], but these directories of the host remain.
    pub(crate) fn reinstalled_keeping<T: Send>(
        &self,
        kept: &[PathBuf],
        f: impl FnOnce(&Host) -> Result<T> + Send,
    ) -> Result<T> {
        in_new_thread(|| {
            Self::own_files(kept)?;
            f(&Host {})
        })
    }

    /// Creates another private host. The two share neither the network nor the private directories.
    pub fn neighbor(&self) -> Result<Neighbor> {
        in_new_thread(|| {
            Self::enter()?;
            let open = |name: &str| File::open(Path::new("/proc/thread-self/ns").join(name));
            Ok(Neighbor {
                network: open("net")?,
                files: open("mnt")?,
            })
        })
    }

    /// Returns a directory of this host, on tmpfs. Creates it if it is missing.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = Path::new("/run/lab").join(name);
        fs::create_dir_all(&dir).expect("cannot make a directory in a tmpfs of our own");
        dir
    }

    /// Creates the network namespace of a pod, with `lo` up, and returns its path.
    pub fn add_pod(&self, name: &str) -> Result<PathBuf> {
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link set lo up"))?;
        Ok(Path::new(NETNS_DIR).join(name))
    }

    /// Creates the network namespace of a pod unless it exists.
    pub fn ensure_pod(&self, name: &str) -> Result<PathBuf> {
        let path = Path::new(NETNS_DIR).join(name);
        if path.exists() {
            Ok(path)
        } else {
            self.add_pod(name)
        }
    }

    /// Deletes the network namespace of a pod.
    pub fn delete_pod(&self, name: &str) -> Result<()> {
        ip(&format!("netns delete {name}"))
    }

    /// Returns the sorted names of the pods' network namespaces.
    pub fn pods(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(NETNS_DIR)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Runs `f` in the network namespace of a pod, with the files of the host.
    pub fn in_pod<T: Send>(&self, name: &str, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let namespace = File::open(Path::new(NETNS_DIR).join(name))?;
        in_new_thread(move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET)
                .context("cannot enter the pod's namespace")?;
            f()
        })
    }

    /// Gives the host an uplink with a default route: the host answers ARP for 169.254.1.1 only if
    /// it has a route to that address.
    pub fn add_uplink(&self) -> Result<()> {
        ip("netns add uplink")?;
        ip("link add uplink0 type veth peer name eth0 netns uplink")?;
        ip("address add 192.0.2.2/24 dev uplink0")?;
        ip("link set uplink0 up")?;
        ip("-n uplink address add 192.0.2.1/24 dev eth0")?;
        ip("-n uplink link set eth0 up")?;
        ip("route add default via 192.0.2.1")
    }
}

impl Neighbor {
    /// Runs `f` on this other host, in the same working directory.
    pub fn on<T: Send>(&self, f: impl FnOnce(&Host) -> Result<T> + Send) -> Result<T> {
        let directory = env::current_dir()?;
        in_new_thread(|| {
            // A thread that shares its working directory with others cannot enter a mount
            // namespace.
            unshare(CloneFlags::CLONE_FS)?;
            setns(&self.files, CloneFlags::CLONE_NEWNS)
                .context("cannot enter the mounts of another host")?;
            setns(&self.network, CloneFlags::CLONE_NEWNET)
                .context("cannot enter the network of another host")?;
            // A thread that enters a mount namespace is in its root directory.
            env::set_current_dir(&directory)?;
            f(&Host {})
        })
    }
}

/// Runs `test` in a copy of this process, in a PID namespace of its own with its own `/proc`. There
/// root sees the network namespace of each process. A machine may forbid that for processes of
/// others.
///
/// # Panics
/// Panics if the copy cannot be started, or fails.
pub fn in_pid_namespace(test: impl FnOnce()) {
    if env::var_os(INSIDE_PID_NAMESPACE).is_some() {
        return test();
    }
    let user: &[&str] = if geteuid().is_root() {
        &[]
    } else {
        &["--user", "--map-root-user"]
    };
    let options = [user, &["--pid", "--fork", "--kill-child", "--mount-proc"]].concat();
    run_self_under(&options, INSIDE_PID_NAMESPACE)
        .expect("the test failed inside its PID namespace");
}

fn run_in_user_namespace() {
    assert!(
        env::var_os(INSIDE_USER_NAMESPACE).is_none(),
        "root of a user namespace was asked for but not granted (kernel.unprivileged_userns_clone?)"
    );
    let options = ["--user", "--map-root-user"];
    run_self_under(&options, INSIDE_USER_NAMESPACE)
        .expect("the test failed inside its user namespace");
}

/// Runs the calling test again, alone, below `unshare` with these options, and with this variable.
fn run_self_under(options: &[&str], variable: &str) -> Result<()> {
    let thread = thread::current();
    let test = thread
        .name()
        .filter(|name| *name != "main")
        .context("run as root, or without --test-threads=1")?;
    let inside = Command::new("unshare")
        .args(options)
        .arg(env::current_exe()?)
        .args(["--exact", test, "--nocapture"])
        .env(variable, "1")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run unshare")?;
    // The stdout of the copy is printed only if the copy failed: its closing line would be counted
    // as that of another test.
    ensure!(
        inside.status.success(),
        "{test}: {}",
        String::from_utf8_lossy(&inside.stdout)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ip_json, run};

    fn link_names() -> Vec<String> {
        let links = ip_json("link show").unwrap();
        links
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["ifname"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn private_host_has_only_lo_and_forwards_packets() {
        isolated(|host| {
            assert_eq!(link_names(), ["lo"]);
            assert_eq!(
                fs::read_to_string("/proc/sys/net/ipv4/ip_forward")
                    .unwrap()
                    .trim(),
                "1"
            );
            assert!(host.pods().unwrap().is_empty());
            assert!(!Path::new("/var/lib/calico").exists());
        });
    }

    #[test]
    fn links_and_files_of_a_private_host_do_not_leak_outside() {
        let before = link_names();
        isolated(|host| {
            host.add_pod("pod1").unwrap();
            host.add_uplink().unwrap();
            fs::create_dir_all("/var/lib/calico").unwrap();
            fs::write("/var/lib/calico/seen-by-this-test", "").unwrap();
            assert_eq!(host.pods().unwrap(), ["pod1", "uplink"]);
        });
        assert_eq!(link_names(), before);
        assert!(!Path::new("/var/run/netns/pod1").exists());
        assert!(!Path::new("/var/lib/calico/seen-by-this-test").exists());
    }

    #[test]
    fn pod_has_a_separate_network_namespace() {
        isolated(|host| {
            host.add_pod("pod1").unwrap();
            host.add_uplink().unwrap();
            let links = host.in_pod("pod1", || Ok(link_names())).unwrap();
            assert_eq!(links, ["lo"]);
            assert_eq!(link_names().len(), 2);
            host.delete_pod("pod1").unwrap();
            assert_eq!(host.pods().unwrap(), ["uplink"]);
        });
    }

    #[test]
    fn reinstalled_host_keeps_the_network_without_pods_and_files() {
        isolated(|host| {
            host.add_pod("pod1").unwrap();
            ip("link add link1 type veth peer name link2").unwrap();
            fs::write("/var/lib/state", "").unwrap();
            let seen = host.reinstalled(|host| {
                host.add_pod("pod2").unwrap();
                fs::write("/var/lib/other", "").unwrap();
                Ok((
                    link_names(),
                    host.pods()?,
                    Path::new("/var/lib/state").exists(),
                ))
            });
            assert_eq!(
                seen.unwrap(),
                (link_names(), vec!["pod2".to_owned()], false)
            );
            assert_eq!(host.pods().unwrap(), ["pod1"]);
            assert!(!Path::new("/var/lib/other").exists());
        });
    }

    #[test]
    fn reinstalled_host_has_the_kept_directories_and_the_files_in_them() {
        isolated(|host| {
            let (kept, lost) = (host.dir("kept"), host.dir("lost"));
            fs::write(kept.join("before"), "").unwrap();
            let seen = host.reinstalled_keeping(std::slice::from_ref(&kept), |_| {
                fs::write(kept.join("after"), "")?;
                Ok((kept.join("before").exists(), lost.exists()))
            });
            assert_eq!(seen.unwrap(), (true, false));
            assert!(kept.join("after").exists() && lost.exists());
        });
    }

    #[test]
    fn neighbor_host_shares_neither_network_nor_files() {
        isolated(|host| {
            let neighbor = host.neighbor().unwrap();
            host.add_pod("pod1").unwrap();
            fs::write("/var/lib/state", "").unwrap();
            let sees_our_files = neighbor.on(|there| {
                there.add_pod("pod2")?;
                ip("link add link1 type veth peer name link2 netns pod2")?;
                Ok(Path::new("/var/lib/state").exists())
            });
            assert!(!sees_our_files.unwrap());
            let found = neighbor
                .on(|there| Ok((link_names(), there.pods()?)))
                .unwrap();
            assert_eq!(
                found,
                (
                    vec!["lo".to_owned(), "link1".to_owned()],
                    vec!["pod2".to_owned()]
                )
            );
            assert_eq!(
                (link_names(), host.pods().unwrap()),
                (vec!["lo".to_owned()], vec!["pod1".to_owned()])
            );
        });
    }

    #[test]
    fn uplink_carries_traffic() {
        isolated(|host| {
            host.add_uplink().unwrap();
            host.in_pod("uplink", || run("ping", &["-c1", "-w10", "192.0.2.2"]))
                .unwrap();
        });
    }

    #[test]
    fn panic_on_the_private_host_fails_the_test() {
        let outcome = std::panic::catch_unwind(|| isolated(|_| panic!("the test's own words")));
        // Without root, this whole test has run again inside a user namespace.
        if geteuid().is_root() {
            assert_eq!(
                outcome.unwrap_err().downcast_ref(),
                Some(&"the test's own words")
            );
        }
    }
}
