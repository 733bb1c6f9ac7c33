//! The programs that are copied or kept, and the form of the installed files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use integration_tests::installation::{BIN, Container, NET, OWN_BIN};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use nix::mount::{MsFlags, mount, umount};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;
use serde_json::Value;

use super::{failed, logged, succeeded};

fn inode(container: &Container, name: &str) -> u64 {
    fs::metadata(container.path(BIN).join(name)).unwrap().ino()
}

fn text(container: &Container, name: &str) -> String {
    fs::read_to_string(container.path(BIN).join(name)).unwrap()
}

#[test]
fn install_writes_plugins_and_configuration() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let outcome = container.run(&[]).unwrap();
        succeeded(&outcome);
        assert_eq!(
            container.names(BIN),
            ["calico", "calico-ipam", "loopback", "portmap"]
        );
        assert_eq!(container.names(NET), ["10-calico.conflist"]);
        assert_eq!(
            fs::read(container.path(BIN).join("calico")).unwrap(),
            fs::read(container.installer()).unwrap()
        );
        assert_eq!(
            fs::metadata(container.path(BIN).join("calico"))
                .unwrap()
                .mode()
                & 0o7777,
            0o755
        );
        let version = Command::new(container.path(BIN).join("calico"))
            .arg("-v")
            .output()
            .unwrap();
        logged(
            &outcome,
            &format!(
                "CNI plugin version: {}",
                String::from_utf8_lossy(&version.stdout).trim()
            ),
        );
    });
}

#[test]
fn calico_ipam_is_a_hard_link_unless_a_copy_is_configured() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        assert_eq!(
            inode(&container, "calico"),
            inode(&container, "calico-ipam")
        );
        let other = container.other_version().unwrap();
        succeeded(&other.run(&[("CNI_LINK_IPAM", "false")]).unwrap());
        assert_ne!(
            inode(&container, "calico"),
            inode(&container, "calico-ipam")
        );
        assert_eq!(
            fs::read(container.path(BIN).join("calico-ipam")).unwrap(),
            fs::read(other.installer()).unwrap()
        );
        let before = container.fingerprint();
        succeeded(&other.run(&[]).unwrap());
        assert_eq!(container.fingerprint(), before);
    });
}

#[test]
fn foreign_plugins_are_replaced_only_if_configured() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container
            .program(&format!("{BIN}/portmap"), "distribution")
            .unwrap();
        let outcome = container.run(&[]).unwrap();
        succeeded(&outcome);
        logged(
            &outcome,
            "portmap differs from the program of this image and is kept",
        );
        for plugin in ["portmap", "loopback"] {
            container
                .program(&format!("{OWN_BIN}/{plugin}"), "second")
                .unwrap();
        }
        succeeded(&container.run(&[("UPDATE_CNI_BINARIES", "false")]).unwrap());
        assert!(text(&container, "loopback").contains("first"));
        succeeded(&container.run(&[]).unwrap());
        assert!(
            text(&container, "loopback").contains("second")
                && text(&container, "portmap").contains("distribution")
        );
        succeeded(&container.run(&[("UPDATE_CNI_BINARIES", "true")]).unwrap());
        assert!(text(&container, "portmap").contains("second"));

        let state: Value = serde_json::from_slice(
            &fs::read(container.path("var/lib/calico/cni-install-state.json")).unwrap(),
        )
        .unwrap();
        assert_eq!(
            (
                &state["files"]["bin"]["portmap"]["replaced"],
                &state["files"]["bin"]["loopback"]["replaced"]
            ),
            (&Value::Bool(true), &Value::Null)
        );
    });
}

/// A rename onto a mount point fails, as a rename onto an immutable file does.
#[test]
fn failed_upgrade_keeps_the_ownership_of_installed_files() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        for plugin in ["portmap", "loopback"] {
            container
                .program(&format!("{OWN_BIN}/{plugin}"), "second")
                .unwrap();
        }
        let container = container.other_version().unwrap();
        let portmap = container.path(BIN).join("portmap");
        mount(
            Some(&portmap),
            &portmap,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .unwrap();
        failed(
            &container.run(&[("CNI_MTU", "1400")]).unwrap(),
            "cannot rename the new file to",
        );
        umount(&portmap).unwrap();
        assert!(
            text(&container, "loopback").contains("second")
                && text(&container, "portmap").contains("first")
        );

        let root = container.path("").display().to_string();
        let plugins = Plugins::locate().unwrap();
        let uninstall = plugins
            .call("calico")
            .args(["uninstall", "--root", root.as_str()])
            .run();
        for name in
            ["calico", "calico-ipam", "loopback", "portmap"].map(|name| format!("{BIN}/{name}"))
        {
            assert!(
                uninstall
                    .stdout
                    .contains(&format!("would remove {root}{name}\n")),
                "{name}: {}",
                uninstall.stdout
            );
        }
        assert!(
            uninstall
                .stdout
                .contains(&format!("would remove {root}{NET}/10-calico.conflist\n"))
        );

        succeeded(&container.run(&[("CNI_MTU", "1400")]).unwrap());
        assert!(text(&container, "portmap").contains("second"));
        let state =
            fs::read_to_string(container.path("var/lib/calico/cni-install-state.json")).unwrap();
        assert!(
            !state.contains("replaced") && !state.contains("former"),
            "{state}"
        );
    });
}

#[test]
fn skipped_plugins_are_not_copied_except_calicos_own() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(
            &container
                .run(&[("SKIP_CNI_BINARIES", "portmap , calico")])
                .unwrap(),
        );
        assert_eq!(container.names(BIN), ["calico", "calico-ipam", "loopback"]);
        let container = Container::new(host, "only").unwrap();
        succeeded(
            &container
                .run(&[("CNI_INSTALL_PLUGINS", "calico-only")])
                .unwrap(),
        );
        assert_eq!(container.names(BIN), ["calico", "calico-ipam"]);
    });
}

#[test]
fn running_plugin_is_replaced() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        let plugin = container.path(BIN).join("portmap");
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let runs = scope.spawn(|| {
                let mut runs = 0;
                while !done.load(Ordering::Relaxed) {
                    assert!(
                        Command::new(&plugin)
                            .stdout(Stdio::null())
                            .status()
                            .unwrap()
                            .success()
                    );
                    runs += 1;
                }
                runs
            });
            container
                .program(&format!("{OWN_BIN}/portmap"), "second")
                .unwrap();
            let outcome = container.run(&[("UPDATE_CNI_BINARIES", "true")]).unwrap();
            done.store(true, Ordering::Relaxed);
            succeeded(&outcome);
            assert!(runs.join().unwrap() > 0);
        });
        assert!(text(&container, "portmap").contains("second"));
    });
}

#[test]
fn security_label_of_a_replaced_file_is_kept() {
    isolated(|host| {
        const LABEL: &str = "security.selinux";
        let container = Container::new(host, "c").unwrap();
        let plugin = container
            .program(&format!("{BIN}/calico"), "old")
            .map(|()| container.path(BIN).join("calico"))
            .unwrap();
        match lsetxattr(
            &plugin,
            LABEL,
            b"system_u:object_r:container_file_t:s0\0",
            XattrFlags::empty(),
        ) {
            Ok(()) => {}
            Err(Errno::NOTSUP | Errno::PERM) => {
                return skipped("security labels cannot be set here");
            }
            Err(error) => panic!("{error}"),
        }
        succeeded(&container.run(&[]).unwrap());
        let mut label = [0; 64];
        let length = lgetxattr(&plugin, LABEL, &mut label[..]).unwrap();
        assert_eq!(&label[..length], b"system_u:object_r:container_file_t:s0\0");
    });
}
