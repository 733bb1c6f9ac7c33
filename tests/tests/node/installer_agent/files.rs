//! The agent restores installed files, if it has the settings of the installation.

use std::fs;
use std::os::unix::fs::MetadataExt;

use integration_tests::clock::KNOWN;
use integration_tests::installation::{BIN, NET, SECONDARY_BIN};
use integration_tests::neighbours::{Neighbour, kinds, plugin};
use integration_tests::node_pod::{NAMESPACE, POD_ACCOUNT};
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use nix::mount::MsFlags;
use serde_json::json;

use crate::installer_agent::pod::{CONF, ClockedAgent, REASON, in_pod, install};

#[test]
fn agent_restores_deleted_files() {
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let before = pod.container.conf(CONF).unwrap();
        fs::remove_file(pod.container.path(NET).join(CONF)).unwrap();
        fs::remove_file(pod.container.path(BIN).join("portmap")).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_metric("files_restored_total", 2).unwrap();
        assert_eq!(pod.container.conf(CONF).unwrap(), before);
        assert!(pod.container.names(BIN).contains(&"portmap".to_owned()));
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.metric("install_ok").unwrap(), 1);
    });
}

/// istio-cni and linkerd-cni restore missing entries. If both sides rewrote the file, pods would
/// fail.
#[test]
fn agent_keeps_plugins_that_istio_and_linkerd_chain() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let file = pod.container.path(NET).join(CONF);
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();
        for neighbour in Neighbour::ALL {
            neighbour.chains_into(&file).unwrap();
            let version = || {
                fs::metadata(&file)
                    .map(|seen| (seen.ino(), seen.mtime(), seen.mtime_nsec(), seen.mode()))
                    .unwrap()
            };
            let before = version();
            for _ in 0..2 {
                // The restored program shows that the agent has checked the files.
                agent.restore_a_program(&pod);
                assert_eq!(version(), before, "it was written");
            }
        }
        let text = pod.container.conf(CONF).unwrap();
        fs::write(&file, text.replace("\"snat\": true", "\"snat\": false")).unwrap();
        agent.check_and_restore();
        let restored = pod.container.conf(CONF).unwrap();
        assert_eq!(
            kinds(&restored),
            ["calico", "portmap", "istio-cni", "linkerd-cni"]
        );
        assert_eq!(plugin(&restored, "portmap")["snat"], true);
        assert_eq!(agent.metric("install_ok").unwrap(), 1);
    });
}

/// A sidecar with a different template would compete with the installer for the configuration.
#[test]
fn agent_with_a_different_template_manages_only_the_token() {
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        pod.set(
            "CNI_NETWORK_CONFIG",
            r#"{"name":"another","type":"calico"}"#,
        );
        pod.container
            .file("calico-secrets/etcd-key", "key")
            .unwrap();
        let before = pod.container.conf(CONF).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_log("the plugins have a new token").unwrap();
        agent
            .await_reason(&["restoring no file", CONF, "delete this pod"])
            .unwrap();
        assert_eq!(agent.metric("restoration_suspended").unwrap(), 1);
        assert_eq!(agent.page("/liveness").unwrap().code, 200);
        assert_eq!(pod.container.conf(CONF).unwrap(), before);
        assert_eq!(agent.metric("files_restored_total").unwrap(), 0);
        assert_eq!(
            pod.container.names(NET),
            [CONF, "calico-kubeconfig"],
            "a check writes nothing"
        );
    });
}

/// If files that the installer must not write counted as missing, the agent would install every
/// minute.
#[test]
fn agent_does_not_restore_files_that_the_installer_skips() {
    in_pod(|_, _, mut pod| {
        fs::create_dir_all(pod.container.path(SECONDARY_BIN)).unwrap();
        pod.container.remount(BIN, MsFlags::MS_NOEXEC).unwrap();
        install(&mut pod);
        assert!(pod.container.names(BIN).is_empty());
        pod.set("SKIP_CNI_BINARIES", "portmap");
        fs::remove_file(pod.container.path(SECONDARY_BIN).join("portmap")).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        agent.await_log("the plugins have a new token").unwrap();
        assert!(
            !agent.log().contains("missing or changed"),
            "{}",
            agent.log()
        );
        assert_eq!(
            (
                agent.metric("files_restored_total").unwrap(),
                agent.metric("install_ok").unwrap()
            ),
            (0, 1)
        );
    });
}

/// The agent tries to restore the files of a noexec directory once.
#[test]
fn unrestorable_files_are_not_counted_as_repaired() {
    in_pod(|_, _, mut pod| {
        fs::create_dir_all(pod.container.path(SECONDARY_BIN)).unwrap();
        install(&mut pod);
        for name in pod.container.names(BIN) {
            fs::remove_file(pod.container.path(BIN).join(name)).unwrap();
        }
        fs::remove_file(pod.container.path(SECONDARY_BIN).join("portmap")).unwrap();
        pod.container.remount(BIN, MsFlags::MS_NOEXEC).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_metric("files_restored_total", 1).unwrap();
        assert_eq!(
            agent.metric("files_restored_total").unwrap(),
            1,
            "portmap in the other directory"
        );
        assert_eq!(pod.container.noted("bin"), [""; 0]);
        assert_eq!(
            pod.container.noted("secondary-bin"),
            pod.container.names(SECONDARY_BIN)
        );
    });
}

/// The Secret changes before the start of the agent, and again while the agent runs.
#[test]
fn tls_files_follow_the_secret() {
    in_pod(|_, _, mut pod| {
        pod.container
            .file("calico-secrets/etcd-key", "first")
            .unwrap();
        install(&mut pod);
        let copy = pod.container.path(NET).join("calico-tls/etcd-key");
        assert_eq!(fs::read(&copy).unwrap(), b"first");
        pod.container
            .file("calico-secrets/etcd-key", "second")
            .unwrap();
        let mut agent = ClockedAgent::start(&pod);
        agent.await_metric("files_restored_total", 1).unwrap();
        assert_eq!(fs::read(&copy).unwrap(), b"second");
        if !KNOWN {
            return skipped(REASON);
        }
        agent.await_page("/readiness", 200).unwrap();
        pod.container
            .file("calico-secrets/etcd-key", "third")
            .unwrap();
        agent.make_check_due();
        agent.await_metric("files_restored_total", 2).unwrap();
        assert_eq!(fs::read(&copy).unwrap(), b"third");
    });
}

/// The agent's container may have been restarted since the installation.
#[test]
fn rotated_pod_token_in_the_template_is_written_to_the_configuration() {
    in_pod(|_, kubernetes, mut pod| {
        let template = r#"{"name":"canal","type":"flannel","token":"__SERVICEACCOUNT_TOKEN__"}"#;
        pod.set("CNI_NETWORK_CONFIG", template);
        install(&mut pod);
        let api = &kubernetes.api;
        let rotated = api.token(NAMESPACE, POD_ACCOUNT).unwrap();
        let expected = template.replace("__SERVICEACCOUNT_TOKEN__", &rotated);
        assert_ne!(pod.container.conf(CONF).unwrap(), expected);
        pod.mount(&rotated, &api.authority_certificate()).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_metric("files_restored_total", 1).unwrap();
        assert_eq!(pod.container.conf(CONF).unwrap(), expected);
    });
}

#[test]
fn installer_without_the_sleep_variable_continues_as_the_agent() {
    in_pod(|_, _, mut pod| {
        pod.set("CNI_TRY_SECONDS", "0");
        let mut agent = pod.installer_that_stays().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(pod.container.names(NET), [CONF, "calico-kubeconfig"]);
        assert!(pod.token().is_ok());
        assert!(agent.terminate().unwrap().success());
        assert_eq!(pod.container.names(NET), [CONF, "calico-kubeconfig"]);
    });
}

/// The documented order is to apply the DaemonSet first and then a pool.
#[test]
fn mtu_file_is_written_once_the_first_pool_exists() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|host, _, mut pod| {
        host.add_uplink().unwrap();
        let plugin = json!({
            "type": "calico", "ipam": { "type": "calico-ipam" }, "datastore_type": "local",
        });
        let list = json!({ "name": "net", "cniVersion": "1.0.0", "plugins": [plugin] }).to_string();
        pod.set("CNI_NETWORK_CONFIG", &list);
        install(&mut pod);
        let file = pod.container.path("var/lib/calico/mtu");
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();
        agent.await_log("there is no enabled IPPool yet").unwrap();
        assert!(!file.exists());
        let pool = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": { "name": "p" },
            "spec": { "cidr": "10.66.0.0/16", "vxlanMode": "Always" },
        });
        let pool = pod.container.file("pool.json", pool.to_string()).unwrap();
        let database = pod.container.path("var/lib/calico/calico.db");
        let words = [
            "apply",
            "-f",
            pool.to_str().unwrap(),
            "--datastore-path",
            database.to_str().unwrap(),
        ];
        Plugins::locate()
            .unwrap()
            .call("calico-ipam")
            .args(words)
            .run()
            .success();
        agent.make_check_due();
        agent
            .await_log("wrote /var/lib/calico/mtu: the MTU of pods is 1450")
            .unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "1450");
    });
}
