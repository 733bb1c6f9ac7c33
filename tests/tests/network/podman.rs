//! podman with its CNI backend as the runtime: two containers with our plugin reach each other.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use integration_tests::cluster::{Cluster, on};
use integration_tests::command::{present, run};
use integration_tests::content::Content;
use integration_tests::plugin::FOREIGN_PLUGINS;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

const NETWORK: &str = "calico";
const BUSYBOX: &str = "/bin/busybox";

/// Number of tests that run containers. Their containers have the same parent cgroup.
static USERS: Mutex<usize> = Mutex::new(0);

fn users() -> MutexGuard<'static, usize> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// podman with its own storage, configuration and network.
struct Podman {
    dir: PathBuf,
}

impl Podman {
    fn new(cluster: &Cluster<'_>) -> Result<Podman> {
        let dir = cluster.host.dir("podman");
        fs::create_dir_all(dir.join("net.d"))?;
        let configuration = format!(
            "[network]\nnetwork_backend = \"cni\"\ndefault_network = \"{NETWORK}\"\n\
             cni_plugin_dirs = [\"{}\", \"{FOREIGN_PLUGINS}\"]\nnetwork_config_dir = \"{}\"\n\
             [engine]\nruntime = \"runc\"\nevents_logger = \"none\"\n[containers]\nlog_driver = \
             \"none\"\n",
            cluster.plugins.dir().display(),
            dir.join("net.d").display(),
        );
        fs::write(dir.join("containers.conf"), configuration)?;
        let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
        let mut plugin = cluster.conf("node1", json!({ "ipam": ipam }));
        let keys = plugin
            .as_object_mut()
            .expect("a configuration is an object");
        keys.remove("name");
        keys.remove("cniVersion");
        let list = json!({ "cniVersion": "1.0.0", "name": NETWORK, "plugins": [plugin] });
        fs::write(dir.join("net.d/10-calico.conflist"), list.to_string())?;
        for below in ["bin", "proc", "sys", "dev", "etc", "tmp", "run"] {
            fs::create_dir_all(dir.join("rootfs").join(below))?;
        }
        fs::copy(BUSYBOX, dir.join("rootfs/bin/busybox"))?;
        for tool in ["sleep", "ping"] {
            symlink("busybox", dir.join("rootfs/bin").join(tool))?;
        }
        *users() += 1;
        Ok(Podman { dir })
    }

    fn podman(&self, words: &str) -> Result<String> {
        let dir = self.dir.display();
        let options = format!(
            "CONTAINERS_CONF={dir}/containers.conf podman --root {dir}/containers --runroot \
             /run/containers --storage-driver vfs --cgroup-manager cgroupfs {words}"
        );
        run("env", &options.split_whitespace().collect::<Vec<_>>())
    }

    /// Executes `podman run`, with the limits that this machine's kernel allows runc to set.
    fn run(&self, options: &str, command: &str) -> Result<String> {
        let limits =
            "--ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --security-opt seccomp=unconfined";
        self.podman(&format!(
            "run {options} {limits} --rootfs {}/rootfs {command}",
            self.dir.display()
        ))
    }

    fn addresses(&self, container: &str) -> Result<(String, String)> {
        let inspected: Value =
            serde_json::from_str(&self.podman(&format!("inspect {container}"))?)?;
        let network = &inspected[0]["NetworkSettings"]["Networks"][NETWORK];
        let field = |name: &str| network[name].as_str().unwrap_or_default().to_owned();
        Ok((field("IPAddress"), field("GlobalIPv6Address")))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.podman("rm --all --force --time 0");
        let mut users = users();
        *users -= 1;
        // podman leaves its cgroup behind. A new container of another test has a cgroup without
        // processes at first.
        if *users == 0 {
            let _ = run(
                "find",
                &[
                    "/sys/fs/cgroup",
                    "-depth",
                    "-path",
                    "*/libpod_parent*",
                    "-type",
                    "d",
                    "-delete",
                ],
            );
        }
    }
}

#[on(etcd, local)]
fn podman_containers_reach_each_other_and_release_their_addresses(cluster: &Cluster<'_>) {
    for (needed, package) in [
        ("podman", "podman"),
        ("runc", "runc"),
        ("conmon", "conmon"),
        ("busybox", "busybox-static"),
    ] {
        if !present(needed) {
            return skipped(&format!("{needed} is not installed (Debian: {package})"));
        }
    }
    cluster.load(&Content::dual_stack());
    let podman = Podman::new(cluster).unwrap();
    let id = podman
        .run("--detach --name first", "/bin/sleep 600")
        .unwrap();
    let (v4, v6) = podman.addresses("first").unwrap();
    assert!(
        v4.starts_with("10.65.") && v6.starts_with("fd00:65:"),
        "{v4} {v6}"
    );
    let accounts = cluster.accounts();
    let held: Vec<_> = accounts
        .held
        .iter()
        .map(|(address, handle)| (address.to_string(), handle.clone()))
        .collect();
    let handle = format!("{NETWORK}.{}", id.trim());
    assert_eq!(held, [(v4.clone(), handle.clone()), (v6.clone(), handle)]);

    for (family, address) in [("-4", &v4), ("-6", &v6)] {
        let pinged = podman
            .run(
                "--rm --name second",
                &format!("/bin/ping {family} -c 2 -W 5 {address}"),
            )
            .unwrap();
        assert!(pinged.contains("2 packets received"), "{pinged}");
    }
    // The second container has ended and released its addresses; the first still has its own.
    assert_eq!(cluster.accounts().held.len(), 2);
    cluster.assert_in_order();
    podman.podman("rm --force --time 0 first").unwrap();
    cluster.assert_nothing_left();
}
