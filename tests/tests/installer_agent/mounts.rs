//! The agent, when the node's directories change below its mounts.

use std::fs;

use integration_tests::installation::{BIN, NET};
use nix::mount::{MsFlags, mount, umount};

use crate::scene::{CONF, asked, in_pod, install};

/// The kubelet starts the container again, with a mount of the present directory.
#[test]
fn agent_exits_once_when_a_mounted_directory_is_removed_and_made_again() {
    in_pod(|host, kubernetes, mut pod| {
        let (on_node, point) = (host.dir("net-of-the-node"), pod.container.path(NET));
        let bind = || mount(Some(&on_node), &point, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        bind();
        install(&mut pod);
        let before = pod.container.conf(CONF).unwrap();
        let audit = kubernetes.api.audit().unwrap();
        {
            let mut agent = pod.agent().unwrap();
            agent.await_page("/readiness", 200).unwrap();
            fs::remove_dir_all(&on_node).unwrap();
            fs::create_dir(&on_node).unwrap();
            assert_eq!(agent.await_exit().unwrap().code(), Some(1), "{}", agent.log());
            let words = format!("the directory mounted at {} was removed on the node", point.display());
            assert!(agent.log().contains(&words), "{words}: {}", agent.log());
        }
        umount(&point).unwrap();
        bind();
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(fs::read_to_string(on_node.join(CONF)).unwrap(), before);
        assert!(pod.token().is_ok());
        // Each agent requests a token when it starts, and the first one at most one more after the removal.
        let asked = asked(&audit, &pod).unwrap();
        assert!((2..=3).contains(&asked), "{asked} tokens");
    });
}

/// Programs in a removed directory are no longer those that the runtime runs.
#[test]
fn removed_plugin_directory_ends_the_agent_too() {
    in_pod(|host, _, mut pod| {
        let (on_node, point) = (host.dir("bin-of-the-node"), pod.container.path(BIN));
        mount(Some(&on_node), &point, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        install(&mut pod);
        let mut agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        fs::remove_dir_all(&on_node).unwrap();
        assert_eq!(agent.await_exit().unwrap().code(), Some(1), "{}", agent.log());
    });
}
