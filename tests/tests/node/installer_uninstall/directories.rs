//! Mounted directories that differ from those of the installation.

use std::fs;

use integration_tests::installation::{BIN, Container, NET, SECONDARY_BIN};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::{Outcome, Plugins};

use super::uninstall;

const STATE: &str = "lib/calico/cni-install-state.json";

#[track_caller]
fn install(container: &Container) {
    let outcome = container.run(&[]).unwrap();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
}

#[track_caller]
fn said(outcome: &Outcome, exit: i32) -> &str {
    assert_eq!(
        outcome.exit,
        Some(exit),
        "{}\n{}",
        outcome.stdout,
        outcome.stderr
    );
    &outcome.stdout
}

/// As with an unmodified `deploy/uninstall` on a node whose runtime uses other directories.
#[test]
fn uninstall_with_a_wrong_directory_mounted_fails_without_changes() {
    for directory in [BIN, SECONDARY_BIN, NET] {
        isolated(|host| {
            let container = Container::new(host, "c").unwrap();
            fs::create_dir_all(container.path(SECONDARY_BIN)).unwrap();
            install(&container);
            let away = container.path("away");
            fs::rename(container.path(directory), &away).unwrap();
            for is_there in [false, true] {
                if is_there {
                    fs::create_dir(container.path(directory)).unwrap();
                }
                let before = container.fingerprint();
                for options in [&[][..], &["--yes"]] {
                    let outcome = uninstall(&container, options).run();
                    let said = said(&outcome, 1);
                    let words = format!(
                        " in {}: all installed files are missing there; mount",
                        container.path(directory).display()
                    );
                    let line = said
                        .lines()
                        .find(|line| line.contains(&words))
                        .unwrap_or_else(|| panic!("{words}: {said}"));
                    assert!(
                        line.starts_with("FAILED to find ") && line.contains("calico"),
                        "{said}"
                    );
                    assert!(said.contains("everything: nothing is changed"), "{said}");
                    assert_eq!(container.fingerprint(), before);
                }
            }
            fs::remove_dir(container.path(directory)).unwrap();
            fs::rename(&away, container.path(directory)).unwrap();
            said(&uninstall(&container, &["--yes"]).run(), 0);
            assert!(
                [BIN, SECONDARY_BIN, NET]
                    .iter()
                    .all(|directory| container.names(directory).is_empty())
            );
        });
    }
}

#[test]
fn removed_files_are_dropped_from_the_state_with_missing_as_removed() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        install(&container);
        for name in container.names(BIN) {
            fs::remove_file(container.path(BIN).join(name)).unwrap();
        }
        said(&uninstall(&container, &["--yes"]).run(), 1);
        let outcome = uninstall(&container, &["--yes", "--missing-as-removed"]).run();
        assert!(
            said(&outcome, 0).contains("calico-ipam was gone already\n"),
            "{}",
            outcome.stdout
        );
        assert!(container.names(NET).is_empty() && !container.path("var").join(STATE).exists());
    });
}

/// Only the container's manifest contains the paths of both plugin directories.
#[test]
fn manual_uninstall_uses_the_given_plugin_directories() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        fs::create_dir_all(container.path(SECONDARY_BIN)).unwrap();
        install(&container);
        // The same directories at their paths on the node.
        fs::rename(container.path("var"), container.path("host/var")).unwrap();
        fs::create_dir_all(container.path("host/home")).unwrap();
        fs::rename(container.path(BIN), container.path("host/home/bin")).unwrap();
        let root = container.path("host").display().to_string();
        let by_hand = |options: &[&str]| {
            let call = Plugins::locate().unwrap().call("calico").args([
                "uninstall",
                "--yes",
                "--root",
                root.as_str(),
            ]);
            call.args(options.iter().copied()).run()
        };
        let outcome = by_hand(&[]);
        let told = said(&outcome, 1);
        assert!(
            told.contains(
                "there; name their directory with --bin-dir, or add --missing-as-removed"
            ),
            "{told}"
        );
        assert!(
            told.contains(
                "there; name their directory with --secondary-bin-dir, or add --missing-as-removed"
            ),
            "{told}"
        );
        let outcome = by_hand(&["--bin-dir", "/home/bin"]);
        assert_eq!(
            said(&outcome, 1).matches("FAILED to find").count(),
            1,
            "{}",
            outcome.stdout
        );
        assert_eq!(container.names("host/home/bin").len(), 4);

        said(
            &by_hand(&[
                "--bin-dir",
                "/home/bin",
                "--secondary-bin-dir",
                "/secondary-bin-dir",
            ]),
            0,
        );
        assert!(
            ["host/home/bin", SECONDARY_BIN, NET]
                .iter()
                .all(|directory| container.names(directory).is_empty())
        );
        assert!(!container.path("host/var").join(STATE).exists());
    });
}
