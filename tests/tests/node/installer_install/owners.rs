//! Directories of the node that belong to another user, as on nodes of Kubespray. Root without
//! capabilities may not write them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use integration_tests::installation::{BIN, Container, KUBE, NET, WITHOUT_CAPABILITIES};
use integration_tests::namespaces::{Host, isolated};
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;

use super::{DEFAULT, failed, logged, succeeded};

const STATE: &str = "var/lib/calico";
const FILE: &str = "10-calico.conflist";

/// A command that starts a program with the rights of the container in
/// deploy/components/dac-override.
const WITH_DAC_OVERRIDE: &str = "setpriv --bounding-set=-all,+dac_override --inh-caps=-all";

/// Creates a container on a node where some directories belong to `kube`. Returns `None` if this
/// process may not give directories to another user.
fn of_kube(host: &Host, name: &str, directories: &[&str]) -> Option<Container> {
    let container = Container::new(host, name).unwrap();
    for directory in [BIN, NET, STATE] {
        let path = container.path(directory);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        if directories.contains(&directory) && chown(&path, Some(KUBE), Some(0)).is_err() {
            skipped("a directory cannot be given to another user here");
            return None;
        }
    }
    Some(container)
}

#[test]
fn install_into_a_directory_of_another_user_names_owner_mode_and_setting() {
    isolated(|host| {
        for (name, directory) in [("bin", BIN), ("net", NET), ("state", STATE)] {
            let Some(container) = of_kube(host, name, &[directory]) else {
                return;
            };
            let outcome = container.install().under(WITHOUT_CAPABILITIES).run();
            let path = container.path(directory).display().to_string();
            failed(
                &outcome,
                &format!("{path} belongs to user {KUBE} and group 0 with mode 0755, so root needs"),
            );
            logged(&outcome, "DAC_OVERRIDE");
            logged(
                &outcome,
                "enable components/dac-override (cni.dacOverride of the chart)",
            );
            assert!(container.names(NET).is_empty(), "{directory}");
        }
    });
}

#[test]
fn install_into_directories_of_another_user_needs_dac_override_alone() {
    isolated(|host| {
        let Some(container) = of_kube(host, "c", &[BIN, NET, STATE]) else {
            return;
        };
        container
            .program(&format!("{BIN}/bridge"), "kubespray")
            .unwrap();
        let former = container.file(&format!("{NET}/{FILE}"), "{}").unwrap();
        for path in [&former, &container.path(BIN).join("bridge")] {
            chown(path, Some(KUBE), Some(0)).unwrap();
        }
        let install = container.install().under(WITH_DAC_OVERRIDE);
        succeeded(&install.run());
        assert_eq!(
            container.names(BIN),
            ["bridge", "calico", "calico-ipam", "loopback", "portmap"]
        );
        assert_eq!(container.conf(FILE).unwrap(), DEFAULT);
        assert_eq!(
            container.names(STATE),
            ["cni-install-state.json", "nodename"]
        );
        assert_eq!(
            fs::metadata(container.path(BIN).join("calico"))
                .unwrap()
                .uid(),
            0
        );
        let before = container.fingerprint();
        succeeded(&install.run());
        assert_eq!(container.fingerprint(), before);
    });
}

#[test]
fn doctor_without_the_capability_names_owner_mode_and_setting() {
    isolated(|host| {
        let Some(container) = of_kube(host, "c", &[NET]) else {
            return;
        };
        let root = container.path("").display().to_string();
        let doctor =
            Plugins::locate()
                .unwrap()
                .call("calico")
                .args(["doctor", "--root", root.as_str()]);
        let outcome = doctor.clone().under(WITHOUT_CAPABILITIES).run();
        let line = outcome
            .stdout
            .lines()
            .find(|line| line.starts_with("FAIL     directories"));
        let line = line.unwrap_or_else(|| panic!("{}", outcome.stdout));
        assert!(
            line.contains("net.d belongs to user 997 and group 0 with mode 0755"),
            "{line}"
        );
        assert!(
            outcome.stdout.contains("enable components/dac-override"),
            "{}",
            outcome.stdout
        );
        let outcome = doctor.under(WITH_DAC_OVERRIDE).run();
        assert!(
            !outcome.stdout.contains("belongs to user"),
            "{}",
            outcome.stdout
        );
    });
}
