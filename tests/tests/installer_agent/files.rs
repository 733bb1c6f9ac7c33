//! What was installed is put back, by whoever would install the same.

use std::fs;

use integration_tests::installation::{BIN, NET};

use crate::scene::{CONF, in_pod, install};

#[test]
fn files_that_are_gone_come_back() {
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let before = pod.container.conf(CONF).unwrap();
        fs::remove_file(pod.container.path(NET).join(CONF)).unwrap();
        fs::remove_file(pod.container.path(BIN).join("portmap")).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_metric("files_mended_total", 2).unwrap();
        assert_eq!(pod.container.conf(CONF).unwrap(), before);
        assert!(pod.container.names(BIN).contains(&"portmap".to_owned()));
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.metric("install_ok").unwrap(), 1);
    });
}

/// A side-car with another template would fight the installer over the configuration.
#[test]
fn another_environment_keeps_the_token_alone() {
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        pod.set("CNI_NETWORK_CONFIG", r#"{"name":"another","type":"calico"}"#);
        let before = pod.container.conf(CONF).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_log("only the token is looked after").unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(pod.container.conf(CONF).unwrap(), before);
        assert_eq!(agent.metric("files_mended_total").unwrap(), 0);
    });
}

/// SLEEP=true is the same program after an installation (INST-37).
#[test]
fn an_installer_that_stays_is_the_agent() {
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
