//! An installation that is killed leaves a working node, and the next installation completes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use installation::digest;
use installation::layout::{DirectoryRole, Layout};
use installation::state::State;
use integration_tests::installation::{BIN, Container, NET, OWN_BIN};
use integration_tests::namespaces::isolated;
use serde_json::Value;

use super::succeeded;

const KILLS: u32 = 200;

fn assert_whole(container: &Container, expected: &[&Container]) {
    let text = container.conf("10-calico.conflist").unwrap();
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    let state = fs::read(container.path("var/lib/calico/cni-install-state.json")).unwrap();
    assert!(serde_json::from_slice::<Value>(&state).is_ok());
    let length = |path: &Path| fs::metadata(path).unwrap().len();
    let known: BTreeSet<u64> = expected
        .iter()
        .map(|version| length(version.installer()))
        .collect();
    for name in ["calico", "calico-ipam"] {
        assert!(
            known.contains(&length(&container.path(BIN).join(name))),
            "{name} is of neither version"
        );
    }
    let ran = Command::new(container.path(BIN).join("calico"))
        .arg("-v")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_ours(container);
}

/// Asserts that the state lists every file as installed, except Calico's programs, whose length
/// identifies the version.
fn assert_ours(container: &Container) {
    let state = State::load(&Layout::below(&container.path(""))).unwrap();
    for (place, directory) in [(DirectoryRole::Bin, BIN), (DirectoryRole::Net, NET)] {
        let others = |name: &&String| !name.ends_with(".tmp") && !name.starts_with("calico");
        for name in container.names(directory).iter().filter(others) {
            let there = digest::of_file(&container.path(directory).join(name)).unwrap();
            let noted = state.get(place, name).unwrap();
            assert!(
                noted.has_digest(&there) && !noted.replaced,
                "{name} is {there}, {noted:?}"
            );
        }
    }
}

#[test]
fn killed_install_leaves_a_working_node_and_the_next_one_completes() {
    isolated(|host| {
        let first = Container::new(host, "c").unwrap();
        let second = first.other_version().unwrap();
        succeeded(&first.run(&[]).unwrap());
        let begun = Instant::now();
        succeeded(&second.run(&[("CNI_MTU", "9000")]).unwrap());
        // The longest time until a kill. It follows the duration of a run, which depends on the
        // load of the machine.
        let mut longest = begun.elapsed();

        let (mut killed, mut swept) = (0, 0);
        for round in 0..KILLS {
            let (container, mtu, word) = if round % 2 == 0 {
                (&first, "1400", "first")
            } else {
                (&second, "1300", "second")
            };
            container
                .program(&format!("{OWN_BIN}/portmap"), word)
                .unwrap();
            let begun = Instant::now();
            let mut child = container.install().env("CNI_MTU", mtu).spawn().unwrap();
            thread::sleep(Duration::from_micros(fastrand::u64(
                0..=longest.as_micros() as u64,
            )));
            let elapsed = begun.elapsed();
            let _ = child.kill();
            if child.wait().unwrap().success() {
                longest = elapsed;
            } else {
                killed += 1;
                longest += longest / 16;
            }
            assert_whole(&first, &[&first, &second]);
            swept += usize::from(drafts(&first) > 0);
        }
        // Otherwise the test covered no interrupted run.
        assert!(
            killed > KILLS / 10 && swept > 0,
            "{killed} of {KILLS} runs were killed, {swept} in the middle of a file"
        );

        first
            .program(&format!("{OWN_BIN}/portmap"), "last")
            .unwrap();
        succeeded(&first.run(&[]).unwrap());
        assert!(
            fs::read_to_string(first.path(BIN).join("portmap"))
                .unwrap()
                .contains("last")
        );
        assert_ours(&first);
        assert_eq!(drafts(&first), 0);
        assert_eq!(
            first.names(BIN),
            ["calico", "calico-ipam", "loopback", "portmap"]
        );
        assert_eq!(first.names(NET), ["10-calico.conflist"]);
        assert_eq!(
            first.names("var/lib/calico"),
            ["cni-install-state.json", "nodename"]
        );
        assert_eq!(first.conf("10-calico.conflist").unwrap(), super::DEFAULT);
        assert_eq!(
            fs::read(first.path(BIN).join("calico")).unwrap(),
            fs::read(first.installer()).unwrap()
        );
    });
}

fn drafts(container: &Container) -> usize {
    let names = [BIN, NET, "var/lib/calico"]
        .into_iter()
        .flat_map(|directory| container.names(directory));
    names.filter(|name| name.ends_with(".tmp")).count()
}

/// Two installations may run concurrently when a DaemonSet is replaced.
#[test]
fn two_concurrent_installs_both_succeed() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        for _ in 0..5 {
            let calls = [
                container.install(),
                container.other_version().unwrap().install(),
            ];
            thread::scope(|scope| {
                let runs: Vec<_> = calls
                    .iter()
                    .map(|call| scope.spawn(|| call.run()))
                    .collect();
                runs.into_iter()
                    .for_each(|run| succeeded(&run.join().unwrap()));
            });
            assert_eq!(drafts(&container), 0);
            assert_eq!(
                container.conf("10-calico.conflist").unwrap(),
                super::DEFAULT
            );
        }
    });
}
