//! A changed plugin or configuration directory of the node.

use std::fs;

use integration_tests::installation::{BIN, Container, NET};
use integration_tests::namespaces::isolated;

use super::{logged, succeeded};

const FORMER_BIN: &str = "host/former-bin-dir";
const FORMER_NET: &str = "host/former-net-dir";

const PROGRAMS: [&str; 4] = ["calico", "calico-ipam", "loopback", "portmap"];
const CONFIGURATION: [&str; 1] = ["10-calico.conflist"];

const MOVED: [(&str, &str); 2] = [
    ("CNI_BIN_DIR", "/var/lib/cni/bin"),
    ("CNI_NET_DIR", "/var/run/multus/cni/net.d"),
];
const FORMER: [(&str, &str); 2] = [
    ("CNI_FORMER_BIN_DIR", "/opt/cni/bin"),
    ("CNI_FORMER_NET_DIR", "/etc/cni/net.d"),
];

/// Installs, and moves the directories to the mount points of former ones. The former plugin
/// directory also gets a program of another installer.
fn change_directories(container: &Container) {
    succeeded(&container.run(&[]).unwrap());
    for (mount_point, former) in [(BIN, FORMER_BIN), (NET, FORMER_NET)] {
        fs::rename(container.path(mount_point), container.path(former)).unwrap();
        fs::create_dir_all(container.path(mount_point)).unwrap();
    }
    container
        .program(&format!("{FORMER_BIN}/bridge"), "another's")
        .unwrap();
}

#[test]
fn install_removes_its_files_from_named_former_directories() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        change_directories(&container);
        let outcome = container.run(&[&MOVED[..], &FORMER[..]].concat()).unwrap();
        succeeded(&outcome);
        logged(
            &outcome,
            "host/former-net-dir/10-calico.conflist of an earlier installation",
        );
        assert_eq!(container.names(BIN), PROGRAMS);
        assert_eq!(container.names(NET), CONFIGURATION);
        assert_eq!(container.names(FORMER_BIN), ["bridge"]);
        assert!(container.names(FORMER_NET).is_empty());
        assert_eq!(container.noted("bin"), PROGRAMS);
        let outcome = container.run(&MOVED).unwrap();
        succeeded(&outcome);
        assert!(
            !outcome.stderr.contains("earlier installation"),
            "{}",
            outcome.stderr
        );
    });
}

/// The records of the files stay until a later run removes the files.
#[test]
fn install_names_the_files_of_former_directories_that_no_variable_names() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        change_directories(&container);
        for _ in 0..2 {
            let outcome = container.run(&MOVED).unwrap();
            succeeded(&outcome);
            for (directory, files) in [
                ("/opt/cni/bin", "calico, calico-ipam, loopback, portmap"),
                ("/etc/cni/net.d", "10-calico.conflist"),
            ] {
                logged(
                    &outcome,
                    &format!("directory={directory:?} files={files:?}"),
                );
            }
            assert_eq!(container.names(FORMER_NET), CONFIGURATION);
        }
        succeeded(&container.run(&[&MOVED[..], &FORMER[..]].concat()).unwrap());
        assert_eq!(container.names(FORMER_BIN), ["bridge"]);
        assert!(container.names(FORMER_NET).is_empty());
    });
}

#[test]
fn install_on_the_way_back_owns_its_files_again() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        change_directories(&container);
        succeeded(&container.run(&MOVED).unwrap());
        for (mount_point, former) in [(BIN, FORMER_BIN), (NET, FORMER_NET)] {
            fs::remove_dir_all(container.path(mount_point)).unwrap();
            fs::rename(container.path(former), container.path(mount_point)).unwrap();
        }
        let outcome = container.run(&[]).unwrap();
        succeeded(&outcome);
        assert_eq!(container.noted("bin"), PROGRAMS);
        assert_eq!(container.noted("net"), CONFIGURATION);
        logged(&outcome, "directory=\"/var/lib/cni/bin\"");
    });
}
