//! The agent with unreadable, missing or read-only files.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use integration_tests::clock::KNOWN;
use integration_tests::installation::{BIN, KUBE, NET, OLD, WITHOUT_CAPABILITIES};
use integration_tests::node_pod::NodePod;
use integration_tests::skip::skipped;
use nix::mount::{MsFlags, mount};

use crate::installer_agent::pod::{CONF, ClockedAgent, REASON, in_pod, install, token_requests};

#[test]
fn read_only_net_directory_is_named_until_it_is_writable() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, kubernetes, mut pod| {
        install(&mut pod);
        let before = pod.container.conf(CONF).unwrap();
        fs::remove_file(pod.container.path(NET).join(CONF)).unwrap();
        pod.container.remount(NET, MsFlags::MS_RDONLY).unwrap();
        let (token, audit) = (pod.token().unwrap(), kubernetes.api.audit().unwrap());
        let mut agent = ClockedAgent::start(&pod);
        for failures in 1..=2 {
            agent
                .await_metric("token_refresh_failures_total", failures)
                .unwrap();
            agent.make_check_due();
        }
        agent
            .await_reason(&["Read-only file system", "calico-kubeconfig"])
            .unwrap();
        agent
            .await_log("missing or changed, installing again")
            .unwrap();
        assert_eq!(agent.metric("install_ok").unwrap(), 0);
        assert_eq!(agent.metric("files_restored_total").unwrap(), 0);
        assert_eq!(
            agent.page("/liveness").unwrap().code,
            200,
            "another agent could do no more"
        );
        assert_eq!(pod.token().unwrap(), token, "the one that is there holds");

        pod.container.remount(NET, MsFlags::empty()).unwrap();
        agent.make_check_due();
        agent.await_metric("token_refreshes_total", 1).unwrap();
        agent.await_metric("files_restored_total", 1).unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.metric("install_ok").unwrap(), 1);
        assert_eq!(pod.container.conf(CONF).unwrap(), before);
        assert_eq!(
            token_requests(&audit, &pod).unwrap(),
            1,
            "the token that could not be written is kept"
        );
    });
}

#[test]
fn token_refresh_on_a_full_disk_keeps_the_existing_token() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, kubernetes, mut pod| {
        let net = pod.container.path(NET);
        mount(
            Some("tmpfs"),
            &net,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("size=256k"),
        )
        .unwrap();
        install(&mut pod);
        let (token, names) = (pod.token().unwrap(), pod.container.names(NET));
        let before = pod.container.conf(CONF).unwrap();
        fs::remove_file(net.join(CONF)).unwrap();
        let filler = net.join("filler");
        let full = fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);

        let audit = kubernetes.api.audit().unwrap();
        let mut agent = ClockedAgent::start(&pod);
        for failures in 1..=2 {
            agent
                .await_metric("token_refresh_failures_total", failures)
                .unwrap();
            agent.check_files();
        }
        agent
            .await_reason(&["No space left on device", "calico-kubeconfig"])
            .unwrap();
        agent
            .await_log("missing or changed, installing again")
            .unwrap();
        assert_eq!(agent.metric("install_ok").unwrap(), 0);
        assert_eq!(agent.metric("files_restored_total").unwrap(), 0);
        assert!(!net.join(CONF).exists(), "a part of it would be worse");
        assert_eq!(agent.page("/liveness").unwrap().code, 200);
        assert_eq!(pod.token().unwrap(), token);

        fs::remove_file(&filler).unwrap();
        agent.check_and_restore();
        agent.await_metric("token_refreshes_total", 1).unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.metric("files_restored_total").unwrap(), 1);
        assert_eq!(agent.metric("install_ok").unwrap(), 1);
        assert_eq!(pod.container.conf(CONF).unwrap(), before);
        assert_ne!(pod.token().unwrap(), token);
        assert_eq!(pod.container.names(NET), names);
        assert_eq!(
            token_requests(&audit, &pod).unwrap(),
            1,
            "the token that could not be written is kept"
        );
    });
}

#[test]
fn agent_keeps_the_former_configuration_while_a_program_lacks_its_version() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let program = format!("{BIN}/portmap");
        let of_the_image = fs::read_to_string(pod.container.path(&program)).unwrap();
        pod.container.program(&program, OLD).unwrap();
        let edited = pod
            .container
            .conf(CONF)
            .unwrap()
            .replace("\"snat\": true", "\"snat\": false");
        assert!(edited.contains("\"snat\": false"), "{edited}");
        pod.container
            .file(&format!("{NET}/{CONF}"), &edited)
            .unwrap();
        let mut agent = ClockedAgent::start(&pod);
        agent
            .await_reason(&[
                "10-calico.conflist is not written",
                "portmap supports 0.3.1, 0.4.0",
            ])
            .unwrap();
        assert_eq!(agent.metric("install_ok").unwrap(), 0);
        assert_eq!(agent.metric("files_restored_total").unwrap(), 0);
        assert_eq!(pod.container.conf(CONF).unwrap(), edited);

        pod.container.script(&program, &of_the_image).unwrap();
        agent.check_and_restore();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.metric("files_restored_total").unwrap(), 1);
        assert!(pod.container.conf(CONF).unwrap().contains("\"snat\": true"));
    });
}

/// Writing the token needs the first directory, and restoring a program the other two.
#[test]
fn agent_in_a_directory_of_another_user_names_owner_mode_and_setting() {
    in_pod(|_, _, mut pod| {
        for directory in [NET, BIN, "var/lib/calico"] {
            install(&mut pod);
            fs::remove_file(pod.container.path(BIN).join("portmap")).unwrap();
            let path = pod.container.path(directory);
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            if chown(&path, Some(KUBE), Some(0)).is_err() {
                return skipped("a directory cannot be given to another user here");
            }
            let agent = pod.agent_under(WITHOUT_CAPABILITIES).unwrap();
            let words = format!(
                "{} belongs to user {KUBE} and group 0 with mode 0755",
                path.display()
            );
            let setting = "enable components/dac-override (cni.dacOverride of the chart)";
            agent
                .await_reason(&[words.as_str(), "DAC_OVERRIDE", setting])
                .unwrap();
            assert!(
                agent.log().contains(&words) && agent.log().contains(setting),
                "{}",
                agent.log()
            );
            assert_eq!(
                agent.page("/liveness").unwrap().code,
                200,
                "a restart would not help"
            );
            chown(&path, Some(0), Some(0)).unwrap();
        }
    });
}

/// The template that [`install_by_a_file`] installs.
const TEMPLATE: &str = r#"{"name":"n","cniVersion":"1.0.0","type":"calico","kubernetes":{"kubeconfig":"__KUBECONFIG_FILEPATH__"}}"#;

/// Installs with a template in a file. Returns the path of that file.
fn install_by_a_file(pod: &mut NodePod) -> PathBuf {
    let template = pod.container.file("template/cni.json", TEMPLATE).unwrap();
    pod.set("CNI_NETWORK_CONFIG_FILE", "/template/cni.json");
    install(pod);
    template
}

#[test]
fn missing_template_is_named_until_it_exists_again() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        let template = install_by_a_file(&mut pod);
        let before = pod.container.conf(CONF).unwrap();
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();

        fs::remove_file(&template).unwrap();
        agent.make_check_due();
        agent.await_reason(&["template/cni.json"]).unwrap();
        assert_eq!(agent.metric("install_ok").unwrap(), 0);
        assert_eq!(pod.container.conf(CONF).unwrap(), before);

        fs::write(&template, TEMPLATE).unwrap();
        agent.make_check_due();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(
            agent.metric("files_restored_total").unwrap(),
            0,
            "nothing was missing"
        );
    });
}

/// Starts an agent that cannot read `unreadable`, after deleting the configuration. Asserts that
/// the agent restores the configuration once `put_back` has made the file readable.
fn assert_read_again(pod: &NodePod, unreadable: &str, put_back: impl FnOnce()) {
    let before = pod.container.conf(CONF).unwrap();
    fs::remove_file(pod.container.path(NET).join(CONF)).unwrap();
    let mut agent = ClockedAgent::start(pod);
    agent.await_reason(&[unreadable]).unwrap();
    assert_eq!(agent.metric("install_ok").unwrap(), 0);

    put_back();
    agent.check_and_restore();
    assert_eq!(pod.container.conf(CONF).unwrap(), before);
    assert!(!agent.log().contains("only the token"), "{}", agent.log());
}

#[test]
fn template_unreadable_at_the_start_is_read_again() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        let template = install_by_a_file(&mut pod);
        fs::remove_file(&template).unwrap();
        assert_read_again(&pod, "template/cni.json", || {
            fs::write(&template, TEMPLATE).unwrap()
        });
    });
}

#[test]
fn state_file_unreadable_at_the_start_is_read_again() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let note = pod.container.path("var/lib/calico/cni-install-state.json");
        let aside = note.with_extension("aside");
        fs::rename(&note, &aside).unwrap();
        fs::create_dir(&note).unwrap();
        assert_read_again(&pod, "cni-install-state.json", || {
            fs::remove_dir(&note).unwrap();
            fs::rename(&aside, &note).unwrap();
        });
    });
}
