//! Plugin directories that are read-only, noexec or missing; a configuration directory that cannot
//! be written.

use std::fs;

use integration_tests::installation::{BIN, Container, NET, SECONDARY_BIN};
use integration_tests::namespaces::isolated;
use nix::mount::MsFlags;

use super::{failed, logged, succeeded};

const BOTH: [&str; 2] = ["calico", "calico-ipam"];
const ALL: [&str; 4] = ["calico", "calico-ipam", "loopback", "portmap"];

#[test]
fn install_into_a_read_only_plugin_directory_fails() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container.remount(BIN, MsFlags::MS_RDONLY).unwrap();
        failed(
            &container.run(&[]).unwrap(),
            "found no writeable directory, exiting",
        );
        assert!(container.names(NET).is_empty());
    });
}

#[test]
fn install_with_one_of_two_directories_read_only_succeeds() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container.remount(BIN, MsFlags::MS_RDONLY).unwrap();
        fs::create_dir_all(container.path(SECONDARY_BIN)).unwrap();
        let outcome = container.run(&[]).unwrap();
        succeeded(&outcome);
        logged(&outcome, "is not writeable, skipping");
        assert_eq!(container.names(SECONDARY_BIN), ALL);
        assert!(container.names(BIN).is_empty());
    });
}

#[test]
fn install_fills_both_plugin_directories() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        fs::create_dir_all(container.path(SECONDARY_BIN)).unwrap();
        succeeded(&container.run(&[]).unwrap());
        assert_eq!(
            (container.names(BIN), container.names(SECONDARY_BIN)),
            (ALL.map(String::from).into(), ALL.map(String::from).into())
        );
    });
}

#[test]
fn install_without_a_writable_directory_fails() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container.remount(BIN, MsFlags::MS_RDONLY).unwrap();
        container
            .remount(SECONDARY_BIN, MsFlags::MS_RDONLY)
            .unwrap();
        failed(
            &container.run(&[]).unwrap(),
            "found no writeable directory, exiting",
        );
    });
}

#[test]
fn existing_plugins_suffice_in_read_only_directories_without_updates() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        for name in BOTH {
            container.program(&format!("{BIN}/{name}"), "stub").unwrap();
        }
        container.remount(BIN, MsFlags::MS_RDONLY).unwrap();
        container
            .remount(SECONDARY_BIN, MsFlags::MS_RDONLY)
            .unwrap();
        failed(&container.run(&[]).unwrap(), "found no writeable directory");
        succeeded(&container.run(&[("UPDATE_CNI_BINARIES", "false")]).unwrap());
        assert_eq!(container.names(BIN), BOTH);
    });
}

#[test]
fn existing_single_plugin_of_two_does_not_suffice() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container.program(&format!("{BIN}/calico"), "stub").unwrap();
        container.remount(BIN, MsFlags::MS_RDONLY).unwrap();
        failed(
            &container.run(&[("UPDATE_CNI_BINARIES", "false")]).unwrap(),
            "found no writeable directory",
        );
    });
}

#[test]
fn second_install_into_a_read_only_directory_succeeds_if_unchanged() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        container.remount(BIN, MsFlags::MS_RDONLY).unwrap();
        succeeded(&container.run(&[]).unwrap());
        failed(
            &container.other_version().unwrap().run(&[]).unwrap(),
            "is not writeable",
        );
    });
}

#[test]
fn noexec_plugin_directory_is_reported_and_left_unchanged() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container.program(&format!("{BIN}/calico"), "stub").unwrap();
        container.remount(BIN, MsFlags::MS_NOEXEC).unwrap();
        let outcome = container.run(&[]).unwrap();
        failed(&outcome, "is mounted noexec");
        assert_eq!(container.names(BIN), ["calico"]);
        assert!(
            fs::read_to_string(container.path(BIN).join("calico"))
                .unwrap()
                .contains("stub")
        );
        assert!(container.names(NET).is_empty());

        fs::create_dir_all(container.path(SECONDARY_BIN)).unwrap();
        succeeded(&container.run(&[]).unwrap());
        assert_eq!(
            (container.names(BIN), container.names(SECONDARY_BIN)),
            (vec!["calico".into()], ALL.map(String::from).into())
        );
        assert_eq!(
            container.noted("bin"),
            [""; 0],
            "nothing was installed there"
        );
        assert_eq!(container.noted("secondary-bin"), ALL);
    });
}

#[test]
fn directory_in_place_of_a_program_fails_the_install() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        fs::create_dir(container.path(BIN).join("portmap")).unwrap();
        failed(
            &container.run(&[]).unwrap(),
            "host/opt/cni/bin/portmap is not a regular file",
        );
        assert_eq!(
            (container.names(BIN), container.names(NET)),
            (vec!["portmap".into()], vec![])
        );
        succeeded(&container.run(&[("SKIP_CNI_BINARIES", "portmap")]).unwrap());
    });
}

/// `calico uninstall` may keep unrecorded files.
#[test]
fn unwritable_state_file_is_a_warning() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container
            .remount("var/lib/calico", MsFlags::MS_RDONLY)
            .unwrap();
        let outcome = container.run(&[]).unwrap();
        succeeded(&outcome);
        let line = outcome
            .stderr
            .lines()
            .find(|line| line.contains("cannot record the installed files"))
            .unwrap();
        assert!(
            line.contains("[WARNING]") && line.contains("calico uninstall"),
            "{line}"
        );
    });
}

#[test]
fn install_without_the_mounted_plugin_directory_fails() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        fs::remove_dir(container.path(BIN)).unwrap();
        failed(&container.run(&[]).unwrap(), "opt/cni/bin does not exist");
    });
}

#[test]
fn read_only_configuration_directory_keeps_the_former_configuration() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container
            .file(&format!("{NET}/10-calico.conflist"), "{}")
            .unwrap();
        container.remount(NET, MsFlags::MS_RDONLY).unwrap();
        failed(&container.run(&[]).unwrap(), "cannot create a file beside");
        assert_eq!(container.conf("10-calico.conflist").unwrap(), "{}");
        fs::remove_dir_all(container.path(BIN)).unwrap();
    });
}

#[test]
fn install_without_a_host_directory_uses_the_root_as_the_node() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        fs::remove_dir_all(container.path("host")).unwrap();
        fs::create_dir_all(container.path("usr/share/cni.d")).unwrap();
        succeeded(
            &container
                .run(&[("CNI_NET_DIR", "/usr/share/cni.d")])
                .unwrap(),
        );
        assert_eq!(container.names("opt/cni/bin"), ALL);
        assert_eq!(container.names("usr/share/cni.d"), ["10-calico.conflist"]);
        let conf =
            fs::read_to_string(container.path("usr/share/cni.d/10-calico.conflist")).unwrap();
        assert!(
            conf.contains(r#""kubeconfig": "/usr/share/cni.d/calico-kubeconfig""#),
            "{conf}"
        );
        assert_eq!(
            fs::read(container.path("var/lib/calico/nodename")).unwrap(),
            b"my-node"
        );
    });
}

/// Otherwise all nodes made from the image would be the same node to IPAM.
#[test]
fn install_into_a_node_image_writes_no_nodename() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        fs::remove_dir_all(container.path("host")).unwrap();
        fs::create_dir_all(container.path("etc/cni/net.d")).unwrap();
        let outcome = container
            .install()
            .without_env("KUBERNETES_NODE_NAME")
            .run();
        succeeded(&outcome);
        logged(&outcome, "the name of the node is unknown");
        logged(&outcome, "the kubeconfig is missing, so no pod starts");
        assert_eq!(
            container.names("var/lib/calico"),
            ["cni-install-state.json"]
        );
    });
}
