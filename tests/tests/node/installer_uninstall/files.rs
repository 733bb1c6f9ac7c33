//! The files that uninstall deletes or keeps, and their order.

use std::fs;

use integration_tests::installation::{BIN, Container, NET};
use integration_tests::namespaces::{Host, isolated};
use integration_tests::neighbours::{Neighbour, kinds, plugin};
use nix::mount::{MsFlags, mount, umount};

use super::uninstall;

const CONF: &str = "10-calico.conflist";
const STATE: &str = "var/lib/calico/cni-install-state.json";

/// Returns a container that has installed its files.
fn installed(host: &Host) -> Container {
    let container = Container::new(host, "c").unwrap();
    install(&container);
    container
}

#[track_caller]
fn install(container: &Container) {
    let outcome = container.run(&[]).unwrap();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
}

#[track_caller]
fn said(container: &Container, options: &[&str], exit: i32) -> String {
    let outcome = uninstall(container, options).run();
    assert_eq!(
        outcome.exit,
        Some(exit),
        "{}\n{}",
        outcome.stdout,
        outcome.stderr
    );
    outcome.stdout
}

#[test]
fn uninstall_without_yes_lists_everything_and_changes_nothing() {
    isolated(|host| {
        let container = installed(host);
        let before = container.fingerprint();
        let dry = said(&container, &[], 0);
        assert_eq!(container.fingerprint(), before);
        for name in [
            format!("{NET}/{CONF}"),
            format!("{BIN}/calico"),
            format!("{BIN}/portmap"),
        ] {
            let line = format!("would remove {}", container.path(&name).display());
            assert!(
                dry.lines().any(|found| found == line),
                "{line} is not in:\n{dry}"
            );
        }
        assert!(
            dry.ends_with(
                "nothing was changed; run the command with --yes to carry out this plan\n"
            ),
            "{dry}"
        );
        assert_eq!(said(&container, &[], 0), dry);
    });
}

#[test]
fn uninstall_deletes_files_of_the_plugin_except_deferred_dels() {
    const GROUP: &str = "var/lib/calico/api-group.json";
    const JOURNAL: &str = "var/lib/calico/cni-journal";
    for (entry, has_deferred_del) in [
        ("lock", false),
        ("a-b.second", false),
        ("net-c1-eth0.json", true),
    ] {
        isolated(|host| {
            let container = installed(host);
            container.file(GROUP, "{}").unwrap();
            container.file(&format!("{JOURNAL}/{entry}"), "{}").unwrap();
            let before = container.fingerprint();
            let dry = said(&container, &[], 0);
            assert_eq!(container.fingerprint(), before);
            assert!(
                dry.contains(&format!(
                    "would remove {}\n",
                    container.path(GROUP).display()
                )),
                "{dry}"
            );
            let told = said(&container, &["--yes"], 0);
            assert!(!container.path(GROUP).exists());
            let journal = container.path(JOURNAL);
            assert_eq!(journal.exists(), has_deferred_del);
            let remaining = format!(
                "{}: 1 deferred DELs have not released their addresses",
                journal.display()
            );
            assert_eq!(told.contains(&remaining), has_deferred_del, "{told}");
        });
    }
}

/// The remaining program uses these files.
#[test]
fn uninstall_keeps_files_of_the_plugin_with_a_changed_program() {
    isolated(|host| {
        let container = installed(host);
        container
            .file("var/lib/calico/api-group.json", "{}")
            .unwrap();
        container
            .program(&format!("{BIN}/calico"), "changed")
            .unwrap();
        said(&container, &["--yes"], 0);
        assert!(container.path("var/lib/calico/api-group.json").exists());
    });
}

#[test]
fn uninstall_restores_the_files_before_the_installation() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container
            .program(&format!("{BIN}/host-local"), "theirs")
            .unwrap();
        container
            .file(&format!("{NET}/99-theirs.txt"), "{}")
            .unwrap();
        let names = || [container.names(BIN), container.names(NET)];
        let (before, names_before) = (container.fingerprint(), names());
        install(&container);
        assert_ne!(names(), names_before);

        let done = said(&container, &["--yes"], 0);
        assert_eq!(names(), names_before);
        let after = container.fingerprint();
        for (path, seen) in before.iter().filter(|(path, _)| !path.is_dir()) {
            assert_eq!(after.get(path), Some(seen), "{}", path.display());
        }
        assert!(!container.path(STATE).exists());
        let (_, left) = done.split_once("left on this node:\n").unwrap();
        assert!(
            left.contains("var/lib/calico/nodename: calico-node uses it"),
            "{done}"
        );
        assert!(left.contains("/var/log/calico: logs are kept"), "{done}");
        let again = said(&container, &["--yes"], 0);
        assert!(
            again.contains("everything: no installation is recorded in"),
            "{again}"
        );
        assert_eq!(names(), names_before);
    });
}

#[test]
fn uninstall_keeps_and_names_changed_files() {
    isolated(|host| {
        let container = installed(host);
        container
            .program(&format!("{BIN}/portmap"), "a newer one")
            .unwrap();
        let done = said(&container, &["--yes"], 0);
        assert_eq!(container.names(BIN), ["portmap"]);
        let reason = "the file was changed after the installation";
        let line = format!(
            "  {}: {reason}",
            container.path(BIN).join("portmap").display()
        );
        assert!(done.lines().any(|found| found == line), "{done}");
        assert!(container.names(NET).is_empty());
        // The file remains in the state.
        assert!(container.path(STATE).exists());
        container
            .program(&format!("{BIN}/portmap"), "first")
            .unwrap();
        said(&container, &["--yes"], 0);
        assert!(container.names(BIN).is_empty());
    });
}

/// A configuration that remains must be able to run.
#[test]
fn uninstall_keeps_the_programs_of_a_remaining_configuration() {
    isolated(|host| {
        let container = installed(host);
        let text = container
            .conf(CONF)
            .unwrap()
            .replace("\"log_level\": \"info\"", "\"log_level\": \"debug\"");
        container.file(&format!("{NET}/{CONF}"), &text).unwrap();
        let done = said(&container, &["--yes"], 0);
        assert_eq!(container.conf(CONF).unwrap(), text);
        assert_eq!(
            container.names(BIN),
            ["calico", "calico-ipam", "loopback", "portmap"]
        );
        assert!(
            done.contains(&format!(
                "{BIN}/calico-ipam: {CONF}, which is kept, runs it"
            )),
            "{done}"
        );
    });
}

/// A list of chained plugins alone creates no network.
#[test]
fn uninstall_deletes_the_configuration_and_names_chained_plugins() {
    isolated(|host| {
        let container = installed(host);
        let conf = container.path(NET).join(CONF);
        Neighbour::ALL
            .into_iter()
            .for_each(|neighbour| neighbour.chains_into(&conf).unwrap());
        let before = container.fingerprint();
        let dry = said(&container, &[], 0);
        assert_eq!(container.fingerprint(), before);
        let what = format!(
            "the plugins istio-cni, linkerd-cni that other programs chained into {}",
            conf.display()
        );
        let reason = "there is no other configuration of Calico's to chain them into";
        assert!(
            dry.contains(&format!("would remove {what}: {reason}\n")),
            "{dry}"
        );
        let done = said(&container, &["--yes"], 0);
        assert!(
            done.contains(&format!("removed {what}: {reason}\n")),
            "{done}"
        );
        assert!(
            done.contains(&format!("removed {}\n", conf.display())),
            "{done}"
        );
        assert!(container.names(NET).is_empty() && !container.path(STATE).exists());
    });
}

#[test]
fn uninstall_moves_chained_plugins_into_the_next_calico_configuration() {
    isolated(|host| {
        let container = installed(host);
        let (conf, following) = (container.path(NET).join(CONF), "20-calico.conflist");
        let upstreams = r#"{"name": "k8s-pod-network", "plugins": [{"type": "calico"}, {"type": "linkerd-cni"}]}"#;
        let upstreams = container
            .file(&format!("{NET}/{following}"), upstreams)
            .unwrap();
        Neighbour::ALL
            .into_iter()
            .for_each(|neighbour| neighbour.chains_into(&conf).unwrap());
        let words = format!(
            "the plugins istio-cni that other programs chained into {} to {}\n",
            conf.display(),
            upstreams.display()
        );
        let dry = said(&container, &[], 0);
        assert!(dry.contains(&format!("would move {words}")), "{dry}");
        let done = said(&container, &["--yes"], 0);
        assert!(done.contains(&format!("moved {words}")), "{done}");
        assert_eq!(container.names(NET), [following]);
        let text = container.conf(following).unwrap();
        assert_eq!(kinds(&text), ["calico", "linkerd-cni", "istio-cni"]);
        assert_eq!(plugin(&text, "istio-cni"), Neighbour::Istio.entry());
    });
}

/// These plugins are chained to Calico's plugin, not to any plugin.
#[test]
fn uninstall_moves_no_chained_plugins_into_another_network() {
    isolated(|host| {
        let container = installed(host);
        let other = r#"{"name": "n", "plugins": [{"type": "bridge"}]}"#;
        container
            .file(&format!("{NET}/20-other.conflist"), other)
            .unwrap();
        Neighbour::Istio
            .chains_into(&container.path(NET).join(CONF))
            .unwrap();
        let done = said(&container, &["--yes"], 0);
        assert!(
            done.contains("there is no other configuration of Calico's"),
            "{done}"
        );
        assert_eq!(container.names(NET), ["20-other.conflist"]);
        assert_eq!(container.conf("20-other.conflist").unwrap(), other);
    });
}

#[test]
fn uninstall_keeps_loopback_for_another_network() {
    isolated(|host| {
        let container = installed(host);
        container
            .file(
                &format!("{NET}/20-other.conf"),
                r#"{"name": "n", "type": "bridge"}"#,
            )
            .unwrap();
        let done = said(&container, &["--yes"], 0);
        assert_eq!(container.names(BIN), ["loopback"]);
        assert_eq!(container.names(NET), ["20-other.conf"]);
        assert!(
            done.contains("loopback: 20-other.conf, which is kept, runs it"),
            "{done}"
        );
    });
}

#[test]
fn uninstall_keeps_a_kubeconfig_of_calico_node() {
    isolated(|host| {
        let container = installed(host);
        // The state after an installation in a pod.
        let state = container.path(STATE);
        let mut noted: serde_json::Value =
            serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
        noted["files"]["net"]["calico-kubeconfig"] = serde_json::json!({});
        fs::write(&state, noted.to_string()).unwrap();
        let file = format!("{NET}/calico-kubeconfig");
        container
            .file(
                &file,
                "# Kubeconfig file for Calico CNI plugin. Installed by calico/node.\n",
            )
            .unwrap();
        let dry = said(&container, &[], 0);
        assert!(
            dry.contains("calico-kubeconfig: calico-node wrote the file and renews its token"),
            "{dry}"
        );
        container
            .file(&file, "# Kubeconfig file for Calico CNI plugin.\n")
            .unwrap();
        said(&container, &["--yes"], 0);
        assert!(container.names(NET).is_empty());
    });
}

#[test]
fn uninstall_deletes_etcd_tls_files_with_their_directory() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        for name in ["etcd-ca", "etcd-cert", "etcd-key"] {
            container
                .file(&format!("calico-secrets/{name}"), name)
                .unwrap();
        }
        install(&container);
        assert_eq!(container.names(NET), [CONF, "calico-tls"]);
        said(&container, &["--yes"], 0);
        assert!(container.names(NET).is_empty());
    });
}

/// A runtime starts pods with the configuration.
#[test]
fn uninstall_deletes_the_configuration_first_and_the_next_run_completes() {
    isolated(|host| {
        let container = installed(host);
        container.remount(BIN, MsFlags::MS_RDONLY).unwrap();
        let kept = container
            .file("var/lib/calico/api-group.json", "{}")
            .unwrap();
        let failed = said(&container, &["--yes"], 1);
        assert!(
            failed.contains("FAILED to remove") && failed.contains("Read-only file system"),
            "{failed}"
        );
        assert!(container.names(NET).is_empty());
        assert_eq!(container.names(BIN).len(), 4);
        assert!(kept.exists(), "the plugin that reads it is still there");
        container.remount(BIN, MsFlags::empty()).unwrap();
        let done = said(&container, &["--yes"], 0);
        assert!(!done.contains("FAILED"), "{done}");
        assert!(container.names(BIN).is_empty() && !kept.exists());
    });
}

/// The renamed configuration is the only sign of this run for the next run.
#[test]
fn uninstall_without_a_writable_state_keeps_the_renamed_configuration() {
    isolated(|host| {
        let container = installed(host);
        container
            .program(&format!("{BIN}/portmap"), "a newer one")
            .unwrap();
        container
            .remount("var/lib/calico", MsFlags::MS_RDONLY)
            .unwrap();
        let failed = said(&container, &["--yes"], 1);
        let state = container.path(STATE).display().to_string();
        assert!(
            failed.contains(&format!(
                "FAILED to record the remaining files in {state}: "
            )),
            "{failed}"
        );
        assert_eq!(failed.matches("\nFAILED to").count(), 1, "{failed}");
        assert!(
            failed.contains(&format!(
                "removed {}",
                container.path(BIN).join("calico").display()
            )),
            "{failed}"
        );
        let renamed = format!("{CONF}.removed");
        let line = format!(
            "  {}: no runtime reads a file of this name",
            container.path(NET).join(&renamed).display()
        );
        assert!(
            failed.contains(&line)
                && failed.contains("the file was changed after the installation"),
            "{failed}"
        );
        assert_eq!(container.names(NET), [renamed]);
        container
            .remount("var/lib/calico", MsFlags::empty())
            .unwrap();
        let done = said(&container, &["--yes"], 0);
        assert!(
            container.names(NET).is_empty() && container.noted("bin") == ["portmap"],
            "{done}"
        );
    });
}

/// A killed run has only renamed the configuration.
#[test]
fn configuration_renamed_by_a_killed_uninstall_is_deleted_by_the_next() {
    isolated(|host| {
        let container = installed(host);
        let conf = container.path(NET).join(CONF);
        fs::rename(&conf, conf.with_extension("conflist.removed")).unwrap();
        said(&container, &["--yes"], 0);
        assert!(container.names(NET).is_empty() && container.names(BIN).is_empty());
    });
}

/// After the killed run, another program wrote a configuration of the original name.
#[test]
fn configuration_renamed_by_a_killed_uninstall_is_deleted_beside_a_new_one() {
    isolated(|host| {
        let container = installed(host);
        let conf = container.path(NET).join(CONF);
        fs::rename(&conf, conf.with_extension("conflist.removed")).unwrap();
        container
            .file(
                &format!("{NET}/{CONF}"),
                r#"{"name": "n", "type": "bridge"}"#,
            )
            .unwrap();
        let done = said(&container, &["--yes"], 0);
        assert_eq!(container.names(NET), [CONF], "{done}");
        assert!(
            done.contains("10-calico.conflist: the file was changed after the installation"),
            "{done}"
        );
    });
}

/// Without its programs, the remaining configuration would make every new pod fail, as after
/// upstream's removal (INST-148).
#[test]
fn configuration_that_cannot_be_deleted_keeps_its_programs() {
    isolated(|host| {
        let container = installed(host);
        let conf = container.path(NET).join(CONF);
        let nothing = None::<&str>;
        // A mount point cannot be renamed.
        mount(Some(&conf), &conf, nothing, MsFlags::MS_BIND, nothing).unwrap();
        let before = container.fingerprint();
        let failed = said(&container, &["--yes"], 1);
        assert!(
            failed.contains(&format!("FAILED to remove {}: ", conf.display())),
            "{failed}"
        );
        assert!(!failed.contains("removed /"), "{failed}");
        assert!(
            failed.contains(
                "programs, kubeconfig and TLS files: a configuration that cannot be renamed"
            ),
            "{failed}"
        );
        assert_eq!(container.fingerprint(), before);
        umount(&conf).unwrap();
        said(&container, &["--yes"], 0);
        assert!(container.names(NET).is_empty() && container.names(BIN).is_empty());
    });
}

#[test]
fn uninstall_reports_a_missing_file() {
    isolated(|host| {
        let container = installed(host);
        let portmap = container.path(BIN).join("portmap");
        fs::remove_file(&portmap).unwrap();
        let done = said(&container, &["--yes"], 0);
        assert!(
            done.contains(&format!("{} was gone already\n", portmap.display())),
            "{done}"
        );
        assert!(!container.path(STATE).exists());
    });
}

#[test]
fn uninstall_reports_that_a_replaced_file_is_not_restored() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container
            .program(&format!("{BIN}/calico"), "upstream's")
            .unwrap();
        install(&container);
        let done = said(&container, &["--yes"], 0);
        let words = "the file that the installation replaced is not restored";
        assert!(
            done.contains(&format!(
                "{}/calico: {words}",
                container.path(BIN).display()
            )),
            "{done}"
        );
    });
}

#[test]
fn uninstall_with_an_unknown_option_is_refused() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let outcome = uninstall(&container, &["--force"]).run();
        assert_eq!(outcome.exit, Some(2));
        assert!(
            outcome
                .stderr
                .contains("unknown argument `--force`; see `calico uninstall --help`"),
            "{}",
            outcome.stderr
        );
    });
}
