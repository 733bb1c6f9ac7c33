//! Finds blockers of an uninstallation. If there is one, nothing is changed: a half-uninstalled
//! node is worse than an installed one.

use std::collections::BTreeMap;
use std::path::Path;

use libcalico::failure::Failure;
use netconf::NetConf;
use os::lock::{HostLock, LONGEST_WAIT};

use super::plan::{FoundFile, Options};
use super::{address_users, addresses, files};
use dataplane::host_network::HostNetwork;
use installation::found::FoundState;
use installation::layout::{DirectoryRole, Layout};

/// A problem because of which nothing is uninstalled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blocker {
    pub(super) action: &'static str,
    pub(super) target: String,
    pub(super) reason: String,
}

/// Returns the blockers. `net_dir` is the configuration directory on the node, and `found` are the
/// installed files. `named` contains the programs that remaining configurations name, each with the
/// name of such a configuration.
pub(super) fn find_blockers(
    layout: &Layout,
    net_dir: &str,
    found: &[FoundFile],
    named: &BTreeMap<String, String>,
    conf: &Result<NetConf, Failure>,
    options: Options,
    network: &dyn HostNetwork,
) -> Vec<Blocker> {
    let mut blockers = unreadable_configurations(found);
    if options.tear_down_pods || options.release_addresses {
        blockers.extend(foreign_root(layout));
        blockers.extend(remaining_configuration(&layout.net_dir(net_dir), named));
    }
    if let (true, Err(reason)) = (options.release_addresses, conf) {
        blockers.push(Blocker {
            action: "release",
            target: addresses::TARGET.to_owned(),
            reason: reason.to_string(),
        });
    }
    if !options.missing_as_removed {
        blockers.extend(missing_directories(found, layout, Path::new(net_dir)));
    }
    if options.release_addresses {
        blockers.extend(connected_pods(options, network));
    }
    // Taking the lock may create its file, which a run with other blockers must not do.
    if let (true, true, Ok(conf)) = (options.release_addresses, blockers.is_empty(), conf) {
        blockers.extend(unavailable_lock(
            Path::new(&conf.node.ipam_lock_file),
            layout,
            options,
        ));
    }
    blockers
}

/// Returns a blocker if the release could not take the IPAM lock, or would take another lock than
/// the node's processes. A dry run does not take it.
fn unavailable_lock(file: &Path, layout: &Layout, options: Options) -> Option<Blocker> {
    let reason = if !layout.is_on_node(file) {
        format!(
            "the IPAM lock {} is outside of the directories of the node that are mounted in this \
             container; mount its directory at the same path",
            file.display()
        )
    } else if options.yes {
        addresses::unlocked(HostLock::acquire_within(file, LONGEST_WAIT).err()?).to_string()
    } else {
        return None;
    };
    Some(Blocker {
        action: "release",
        target: addresses::TARGET.to_owned(),
        reason,
    })
}

/// Returns a blocker if a remaining configuration runs Calico's plugins, with which pods are still
/// created.
fn remaining_configuration(net_dir: &Path, named: &BTreeMap<String, String>) -> Option<Blocker> {
    let name = ["calico", "calico-ipam"]
        .into_iter()
        .find_map(|program| named.get(program))?;
    let target = format!("beside {}", net_dir.join(name).display());
    let reason = "this configuration runs Calico's plugins, and the installer did not write its \
                  present content; remove the file, or run without --tear-down-pods and \
                  --release-addresses";
    Some(Blocker {
        action: "uninstall",
        target,
        reason: reason.to_owned(),
    })
}

/// Returns a blocker if the files are those of another machine, whose interfaces are not in this
/// kernel.
fn foreign_root(layout: &Layout) -> Option<Blocker> {
    let is_here = layout.is_container() || layout.is_this_machine();
    let target = "from another machine";
    let reason = "--root contains the files of another machine, whose interfaces are not in this \
                  kernel; run calico uninstall on that machine, or without --tear-down-pods and \
                  --release-addresses";
    (!is_here).then(|| Blocker {
        action: "uninstall",
        target: target.to_owned(),
        reason: reason.to_owned(),
    })
}

/// Returns a blocker for each configuration that cannot be read: its programs are unknown.
fn unreadable_configurations(found: &[FoundFile]) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    for file in found.iter().filter(|file| file.is_configuration()) {
        if let FoundState::Unreadable(reason) = &file.state {
            let reason = format!("it cannot be read: {reason}");
            blockers.push(Blocker {
                action: "remove",
                target: file.path.display().to_string(),
                reason,
            });
        }
    }
    blockers
}

/// Returns a blocker for each directory in which all installed files are missing: probably another
/// directory is mounted there.
///
/// No directory is checked after a killed run that had found the files and removed some. Such a run
/// left a renamed configuration or, once all programs are removed, records without a program.
fn missing_directories(found: &[FoundFile], layout: &Layout, net_dir: &Path) -> Vec<Blocker> {
    let is_program =
        |file: &FoundFile| matches!(file.place, DirectoryRole::Bin | DirectoryRole::SecondaryBin);
    if found.iter().any(|file| files::is_retired(&file.path)) || !found.iter().any(is_program) {
        return Vec::new();
    }
    let mut blockers = Vec::new();
    for place in [
        DirectoryRole::Bin,
        DirectoryRole::SecondaryBin,
        DirectoryRole::Net,
    ] {
        let files: Vec<&FoundFile> = found.iter().filter(|file| file.place == place).collect();
        if files.is_empty() || files.iter().any(|file| file.state != FoundState::Missing) {
            continue;
        }
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let remedy = match (layout.is_container(), place) {
            (true, _) => "mount the directory of the installation there",
            (false, DirectoryRole::Bin) => "name their directory with --bin-dir",
            (false, DirectoryRole::SecondaryBin) => "name their directory with --secondary-bin-dir",
            (false, _) => "find them",
        };
        let target = format!(
            "{} in {}",
            names.join(", "),
            layout.dir(place, net_dir).display()
        );
        let reason = format!(
            "all installed files are missing there; {remedy}, or add --missing-as-removed if the files \
             were removed"
        );
        blockers.push(Blocker {
            action: "find",
            target,
            reason,
        });
    }
    blockers
}

/// Returns a blocker if connected pods would keep addresses that are then assigned to other pods.
fn connected_pods(options: Options, network: &dyn HostNetwork) -> Option<Blocker> {
    let remedy = if options.tear_down_pods {
        "delete their interfaces (ip link delete)"
    } else {
        "add --tear-down-pods"
    };
    let reason = match address_users::connected_pods(network, options.tear_down_pods) {
        Ok(used) if used.is_empty() => return None,
        Ok(used) => format!(
            "pods are connected with these addresses: {}; delete these pods first, or {remedy}",
            used.join(", ")
        ),
        Err(reason) => {
            format!("cannot determine the pods that are connected with these addresses: {reason}")
        }
    };
    Some(Blocker {
        action: "release",
        target: addresses::TARGET.to_owned(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::host_network::testing::{FixedNetwork, interface, route};

    fn found(place: DirectoryRole, path: &str, state: FoundState) -> FoundFile {
        let name = path.rsplit('/').next().unwrap().to_owned();
        FoundFile {
            place,
            name,
            path: path.into(),
            state,
            replaced: false,
        }
    }

    fn targets(found: &[FoundFile]) -> Vec<String> {
        let layout = Layout::container();
        missing_directories(found, &layout, Path::new("/etc/cni/net.d"))
            .into_iter()
            .map(|blocker| blocker.target)
            .collect()
    }

    #[test]
    fn directory_without_installed_files_is_reported_as_another_target() {
        use FoundState::{Missing, Same};
        let bin = |state| found(DirectoryRole::Bin, "/host/opt/cni/bin/calico", state);
        let portmap = |state| found(DirectoryRole::Bin, "/host/opt/cni/bin/portmap", state);
        let conf = |state| {
            found(
                DirectoryRole::Net,
                "/host/etc/cni/net.d/10-calico.conflist",
                state,
            )
        };
        let mtu = found(DirectoryRole::State, "/var/lib/calico/mtu", Missing);
        let nothing: [String; 0] = [];
        assert_eq!(
            targets(&[bin(Same), portmap(Missing), conf(Same), mtu.clone()]),
            nothing
        );
        assert_eq!(
            targets(&[bin(Missing), portmap(Missing), conf(Same)]),
            ["calico, portmap in /host/opt/cni/bin"]
        );
        let changed = FoundState::Changed("by somebody".into());
        assert_eq!(
            targets(&[bin(Missing), portmap(changed), conf(Missing)]),
            ["10-calico.conflist in /host/etc/cni/net.d"]
        );
        let retired = found(
            DirectoryRole::Net,
            "/host/etc/cni/net.d/10-calico.conflist.removed",
            Same,
        );
        assert_eq!(
            targets(&[bin(Missing), retired]),
            nothing,
            "a run that was killed had seen it"
        );
        assert_eq!(
            targets(&[conf(Missing)]),
            nothing,
            "so had one that was killed after the programs went"
        );
        assert_eq!(targets(&[]), nothing);
    }

    #[test]
    fn refusal_for_interfaces_that_tear_down_keeps_advises_to_delete_them() {
        let network = FixedNetwork {
            interfaces: vec![interface("cali2", 1500)],
            routes: vec![route("10.65.0.2/32", &["cali2"])],
        };
        for (tear_down_pods, advice) in
            [(false, "add --tear-down-pods"), (true, "(ip link delete)")]
        {
            let options = Options {
                tear_down_pods,
                ..Options::default()
            };
            let reason = connected_pods(options, &network).unwrap().reason;
            assert!(
                reason.contains("cali2 (10.65.0.2; ") && reason.ends_with(advice),
                "{reason}"
            );
        }
    }

    #[test]
    fn release_is_blocked_without_a_usable_ipam_lock() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let options = |yes| Options {
            yes,
            release_addresses: true,
            ..Options::default()
        };
        let blocker = unavailable_lock(root.path(), &layout, options(true)).unwrap();
        assert!(
            blocker
                .reason
                .contains(&format!("cannot open lock file {}", root.path().display())),
            "{blocker:?}"
        );
        assert_eq!(unavailable_lock(root.path(), &layout, options(false)), None);

        let file = root.path().join("run/ipam.lock");
        assert_eq!(unavailable_lock(&file, &layout, options(false)), None);
        assert!(!file.exists(), "a dry run creates no file");
        assert_eq!(unavailable_lock(&file, &layout, options(true)), None);
        // A process that another test starts has the open file until its program begins.
        HostLock::acquire_within(&file, LONGEST_WAIT).expect("the lock is free again");
    }

    #[test]
    fn release_with_an_ipam_lock_outside_of_the_mounts_is_blocked_in_a_container() {
        let file = Path::new("/no-such-directory/ipam.lock");
        for yes in [false, true] {
            let options = Options {
                yes,
                release_addresses: true,
                ..Options::default()
            };
            let blocker = unavailable_lock(file, &Layout::container(), options).unwrap();
            assert!(
                blocker
                    .reason
                    .ends_with("mount its directory at the same path"),
                "{blocker:?}"
            );
            assert!(!file.parent().unwrap().exists());
        }
    }

    #[test]
    fn teardown_with_the_files_of_another_host_is_rejected() {
        let root = tempfile::tempdir().unwrap();
        assert!(foreign_root(&Layout::below(root.path())).is_some());
        assert_eq!(foreign_root(&Layout::below(Path::new("/"))), None);
        assert_eq!(foreign_root(&Layout::container()), None);
        std::fs::create_dir(root.path().join("host")).unwrap();
        assert_eq!(
            foreign_root(&Layout::below(root.path())),
            None,
            "a container's root"
        );
    }

    #[test]
    fn remaining_configuration_is_not_reported_as_one_of_the_installer() {
        let named = BTreeMap::from([("calico".to_owned(), "05-other.conflist".to_owned())]);
        let blocker = remaining_configuration(Path::new("/etc/cni/net.d"), &named).unwrap();
        assert_eq!(blocker.target, "beside /etc/cni/net.d/05-other.conflist");
        assert!(
            blocker
                .reason
                .contains("the installer did not write its present content"),
            "{}",
            blocker.reason
        );
    }

    #[test]
    fn unreadable_configuration_blocks_the_uninstall() {
        let unreadable = || FoundState::Unreadable("permission denied".into());
        let found = [
            found(DirectoryRole::Net, "/x/10-calico.conflist", unreadable()),
            found(DirectoryRole::Net, "/x/calico-kubeconfig", unreadable()),
        ];
        let [only] = super::unreadable_configurations(&found).try_into().unwrap();
        assert_eq!(only.target, "/x/10-calico.conflist");
        assert_eq!(only.reason, "it cannot be read: permission denied");
    }
}
