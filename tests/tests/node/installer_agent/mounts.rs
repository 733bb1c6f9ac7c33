//! The agent, when the node's directories change below its mounts.

use std::fs;
use std::path::Path;

use integration_tests::installation::{BIN, NET};
use integration_tests::node_pod::Agent;
use nix::mount::{MsFlags, mount, umount};

use crate::installer_agent::logs::LOGS;
use crate::installer_agent::pod::{CONF, in_pod, install, token_requests};

fn bind(on_node: &Path, point: &Path) {
    mount(
        Some(on_node),
        point,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .unwrap();
}

/// Waits until the agent has ended because the directory at a mount point was removed.
fn ends_for(agent: &mut Agent, point: &Path) {
    assert_eq!(
        agent.await_exit().unwrap().code(),
        Some(1),
        "{}",
        agent.log()
    );
    let words = format!(
        "the directory mounted at {} was removed on the node",
        point.display()
    );
    assert!(agent.log().contains(&words), "{words}: {}", agent.log());
}

/// Kubelet starts the container again with a mount of the present directory.
#[test]
fn agent_exits_once_when_a_mounted_directory_is_removed_and_made_again() {
    in_pod(|host, kubernetes, mut pod| {
        let (net, net_point) = (host.dir("net-of-the-node"), pod.container.path(NET));
        let (bin, bin_point) = (host.dir("bin-of-the-node"), pod.container.path(BIN));
        bind(&net, &net_point);
        bind(&bin, &bin_point);
        let (logs, logs_point) = (host.dir("logs-of-the-node"), pod.container.path(LOGS));
        fs::create_dir_all(&logs_point).unwrap();
        bind(&logs, &logs_point);
        install(&mut pod);
        let before = pod.container.conf(CONF).unwrap();
        let audit = kubernetes.api.audit().unwrap();
        // The agent tests the token several times before it looks for removed directories.
        pod.set("CNI_TOKEN_TRIAL_INTERVAL", "200ms");
        let mut agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        // The agent requests a token if it finds the directory without the kubeconfig before the
        // directory is removed.
        agent
            .while_frozen(|| Ok(fs::remove_dir_all(&net)?))
            .unwrap();
        fs::create_dir(&net).unwrap();
        ends_for(&mut agent, &net_point);

        umount(&net_point).unwrap();
        bind(&net, &net_point);
        let mut agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(fs::read_to_string(net.join(CONF)).unwrap(), before);
        assert!(pod.token().is_ok());
        assert_eq!(
            token_requests(&audit, &pod).unwrap(),
            2,
            "each agent requests a token when it starts, and no other"
        );

        fs::remove_dir_all(&logs).unwrap();
        ends_for(&mut agent, &logs_point);
        umount(&logs_point).unwrap();
        let mut agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();

        // Runtimes do not run the programs of a removed directory.
        fs::remove_dir_all(&bin).unwrap();
        ends_for(&mut agent, &bin_point);
    });
}
