//! During an installation, readers get a complete old or new file.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use integration_tests::installation::{BIN, Container, NET, OWN_BIN};
use integration_tests::namespaces::isolated;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use os::atomic_file;
use serde_json::Value;

use super::succeeded;

const REWRITES: usize = 10_000;

/// Runs `write` while `read` runs repeatedly. Returns the number of reads.
fn meanwhile(read: impl Fn() + Sync, write: impl FnOnce()) -> usize {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                read();
                reads += 1;
            }
            reads
        });
        write();
        done.store(true, Ordering::Relaxed);
        reads.join().unwrap()
    })
}

#[test]
fn readers_never_see_a_partial_configuration() {
    isolated(|host| {
        let directory = host.dir("net.d");
        let file = directory.join("10-calico.conflist");
        let text = |number: usize| {
            format!(
                r#"{{"name": "n", "plugins": [{}{number}]}}"#,
                "1, ".repeat(number % 500)
            )
        };
        let write = |number: usize| {
            atomic_file::replace(&file, text(number).as_bytes(), 0o600).unwrap();
        };
        write(0);
        let read = || {
            let conf: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            assert_eq!(conf["name"], "n");
            for path in paths(&directory) {
                // The temporary file may be renamed by now.
                if let Ok(found) = fs::metadata(&path) {
                    assert_eq!(found.permissions().mode() & 0o077, 0, "{}", path.display());
                }
            }
        };
        let reads = meanwhile(read, || (1..=REWRITES).for_each(write));
        assert!(reads > 0);
        assert_eq!(paths(&directory), std::slice::from_ref(&file));
    });
}

fn paths(directory: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

#[test]
fn readers_and_runners_see_complete_files_during_installs() {
    isolated(|host| {
        let first = Container::new(host, "c").unwrap();
        let second = first.other_version().unwrap();
        succeeded(&first.run(&[]).unwrap());
        let (file, bin) = (first.path(NET).join("10-calico.conflist"), first.path(BIN));
        let read = || {
            let conf: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            assert_eq!(conf["name"], "k8s-pod-network");
        };
        // A missing, non-executable or busy program would be an error here.
        let run = |name: &str| {
            let status = Command::new(bin.join(name))
                .arg("-v")
                .stdout(Stdio::null())
                .status();
            assert!(
                status
                    .unwrap_or_else(|error| panic!("{name}: {error}"))
                    .success()
            );
        };
        let install = || {
            for round in 0..10 {
                first
                    .program(&format!("{OWN_BIN}/portmap"), &format!("round {round}"))
                    .unwrap();
                let mtu = (1400 + round).to_string();
                let container = if round % 2 == 0 { &second } else { &first };
                succeeded(
                    &container
                        .run(&[("CNI_MTU", &mtu), ("UPDATE_CNI_BINARIES", "true")])
                        .unwrap(),
                );
            }
        };
        let runs = meanwhile(
            || {
                read();
                run("calico");
                run("calico-ipam");
                run("portmap");
            },
            install,
        );
        assert!(runs > 0);
        assert_eq!(
            fs::read(bin.join("calico")).unwrap(),
            fs::read(first.installer()).unwrap()
        );
    });
}

/// containerd reloads the configuration after a Write, Rename or Remove event, but not after a
/// Create event (INST-161).
#[test]
fn watching_runtime_sees_a_rename_of_the_configuration() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        inotify
            .add_watch(&container.path(NET), AddWatchFlags::IN_ALL_EVENTS)
            .unwrap();
        succeeded(&container.run(&[]).unwrap());
        let events = inotify.read_events().unwrap();
        let name = |event: &nix::sys::inotify::InotifyEvent| {
            event
                .name
                .clone()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        let from = events
            .iter()
            .find(|event| event.mask.contains(AddWatchFlags::IN_MOVED_FROM))
            .expect("no move in the directory");
        assert!(name(from).ends_with(".tmp"), "{from:?}");
        let of_the_file = events
            .iter()
            .filter(|event| name(event) == "10-calico.conflist");
        let masks = of_the_file.fold(AddWatchFlags::empty(), |all, event| all | event.mask);
        assert!(masks.contains(AddWatchFlags::IN_MOVED_TO), "{masks:?}");
        assert!(
            !masks.intersects(
                AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE
            ),
            "{masks:?}"
        );

        let silent = |directory: &str| {
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
            let writing = AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_MODIFY
                | AddWatchFlags::IN_MOVE
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_ATTRIB;
            inotify
                .add_watch(&container.path(directory), writing)
                .unwrap();
            inotify
        };
        let watches = [BIN, NET].map(silent);
        succeeded(&container.run(&[]).unwrap());
        for watch in watches {
            let seen = watch.read_events();
            assert!(
                seen.as_ref().is_err_and(
                    |error| std::io::Error::from(*error).kind() == ErrorKind::WouldBlock
                ),
                "{seen:?}"
            );
        }
    });
}
