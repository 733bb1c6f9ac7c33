//! The CNI project's plugins after `calico` in a configuration list, with two runtimes: libcni
//! (cnitool) and CRI-O's library (ocicnitool), which calls CHECK in each start of a pod.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::Result;
use integration_tests::cluster::{Cluster, NAMESPACE, Pod, on};
use integration_tests::command::{present, run};
use integration_tests::content::Content;
use integration_tests::images::in_tree;
use integration_tests::installed::built_programs;
use integration_tests::kernel;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];
const NETWORK: &str = "net1";
const MAC: &str = "02:00:00:00:00:99";
const CAPABILITIES: &str = r#"{
    "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
    "bandwidth": { "ingressRate": 1000000, "ingressBurst": 1000000, "egressRate": 1000000, "egressBurst": 1000000 }
}"#;

/// The address families of a pod.
#[derive(Debug, Clone, Copy)]
struct Families {
    v4: bool,
    v6: bool,
}

const DUAL_STACK: Families = Families { v4: true, v6: true };
const FAMILIES: [Families; 3] = [
    Families {
        v4: true,
        v6: false,
    },
    Families {
        v4: false,
        v6: true,
    },
    DUAL_STACK,
];

/// Returns the configurations of the later plugins.
fn later_plugins() -> Vec<Value> {
    vec![
        json!({
            "type": "tuning", "mtu": 1400, "mac": MAC,
            "sysctl": { "net.ipv4.conf.all.log_martians": "1" },
        }),
        json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }),
        json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
        json!({ "type": "firewall", "backend": "iptables" }),
        json!({ "type": "sbr" }),
    ]
}

/// The runtimes and the directories that they use.
struct Runtimes<'c> {
    cluster: &'c Cluster<'c>,
    cnitool: PathBuf,
    configurations: PathBuf,
    programs: PathBuf,
}

impl<'c> Runtimes<'c> {
    /// Returns `None`, and marks the test as skipped, if a program is missing.
    fn new(cluster: &'c Cluster<'c>) -> Option<Runtimes<'c>> {
        let place = run(
            &in_tree("tests/install-go-tools.sh"),
            &["--place", "cni-tests"],
        )
        .unwrap();
        let (place, cnitool) = (
            PathBuf::from(place.trim()),
            built_programs().unwrap().join("bin/cnitool"),
        );
        if !place.is_dir() || !cnitool.is_file() {
            skipped("the programs are not built (tests/install-go-tools.sh cnitool cni-tests)");
            return None;
        }
        if !present("iptables") {
            skipped("iptables is not installed (Debian: iptables)");
            return None;
        }
        let programs = cluster.host.dir("programs");
        for folder in [cluster.plugins.dir(), &place] {
            for program in fs::read_dir(folder).unwrap() {
                let program = program.unwrap();
                symlink(program.path(), programs.join(program.file_name())).unwrap();
            }
        }
        cluster.load(&Content::dual_stack());
        Some(Runtimes {
            cluster,
            cnitool,
            configurations: cluster.host.dir("configurations"),
            programs,
        })
    }

    /// Writes a configuration list with `calico` and the later plugins.
    fn configure(&self, version: &str, families: Families, later: &[Value]) {
        let (v4, v6) = (families.v4.to_string(), families.v6.to_string());
        let ipam = json!({ "type": "calico-ipam", "assign_ipv4": v4, "assign_ipv6": v6 });
        let mut plugin = self.cluster.conf("node1", json!({ "ipam": ipam }));
        let keys = plugin.as_object_mut().unwrap();
        keys.remove("name");
        keys.remove("cniVersion");
        let mut plugins = vec![plugin];
        plugins.extend_from_slice(later);
        let list = json!({ "cniVersion": version, "name": NETWORK, "plugins": plugins });
        fs::write(
            self.configurations.join("10-net1.conflist"),
            list.to_string(),
        )
        .unwrap();
    }

    fn call(&self, program: PathBuf, variables: &[String], words: &[&str]) -> Result<String> {
        let program = program.display().to_string();
        let words = variables
            .iter()
            .map(String::as_str)
            .chain([program.as_str()])
            .chain(words.iter().copied());
        run("env", &words.collect::<Vec<_>>())
    }

    fn cnitool(&self, verb: &str, netns: &str) -> Result<String> {
        let variables = [
            format!("NETCONFPATH={}", self.configurations.display()),
            format!("CNI_PATH={}", self.programs.display()),
            format!("CAP_ARGS={CAPABILITIES}"),
        ];
        self.call(self.cnitool.clone(), &variables, &[verb, NETWORK, netns])
    }

    fn ocicnitool(&self, verb: &str, pod: &Pod) -> Result<String> {
        let variables = [
            format!("CONF_PATH={}", self.configurations.display()),
            format!("BIN_PATH={}", self.programs.display()),
        ];
        let words = [
            verb,
            NAMESPACE,
            &pod.name,
            &pod.container_id,
            pod.netns.to_str().unwrap(),
        ];
        self.call(self.programs.join("ocicnitool"), &variables, &words)
    }
}

#[on(local)]
fn each_plugin_after_calico_passes_the_check_of_libcni(cluster: &Cluster<'_>) {
    let Some(runtimes) = Runtimes::new(cluster) else {
        return;
    };
    for plugin in later_plugins() {
        runtimes.configure("1.1.0", DUAL_STACK, &[plugin]);
        run_pod(&runtimes, "1.1.0", DUAL_STACK);
    }
}

#[on(local)]
fn all_plugins_after_calico_pass_the_check_of_libcni(cluster: &Cluster<'_>) {
    let Some(runtimes) = Runtimes::new(cluster) else {
        return;
    };
    for version in VERSIONS {
        for families in FAMILIES {
            runtimes.configure(version, families, &later_plugins());
            let result = run_pod(&runtimes, version, families);
            assert!(
                result["interfaces"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|end| end["mac"] == MAC),
                "{result}"
            );
        }
    }
}

#[on(local)]
fn all_plugins_after_calico_pass_the_check_of_crio(cluster: &Cluster<'_>) {
    run_pods_as_crio(cluster, &FAMILIES);
}

#[on(kubernetes_v3)]
fn all_plugins_after_calico_pass_the_check_of_crio_on_kubernetes(cluster: &Cluster<'_>) {
    run_pods_as_crio(cluster, &[DUAL_STACK]);
}

/// Runs ADD, CHECK and DEL of a pod, and returns the result of the ADD.
fn run_pod(runtimes: &Runtimes<'_>, version: &str, families: Families) -> Value {
    let cluster = runtimes.cluster;
    let pod = cluster.pod(1);
    let netns = pod.netns.to_str().unwrap();
    let result: Value = serde_json::from_str(&runtimes.cnitool("add", netns).unwrap()).unwrap();
    let count = usize::from(families.v4) + usize::from(families.v6);
    assert_eq!(
        (
            &result["cniVersion"],
            result["ips"].as_array().unwrap().len()
        ),
        (&json!(version), count),
        "{result}"
    );
    runtimes.cnitool("check", netns).unwrap();
    runtimes.cnitool("del", netns).unwrap();
    runtimes.cnitool("del", netns).unwrap();
    cluster.assert_nothing_left();
    cluster.remove_pod(&pod);
    result
}

/// Runs ADD, CHECK and DEL of a pod as CRI-O does, with each version.
fn run_pods_as_crio(cluster: &Cluster<'_>, families: &[Families]) {
    let Some(runtimes) = Runtimes::new(cluster) else {
        return;
    };
    for (version, families) in VERSIONS
        .iter()
        .flat_map(|version| families.iter().map(move |of| (version, *of)))
    {
        runtimes.configure(version, families, &later_plugins());
        let pod = cluster.pod(1);
        let call = |verb: &str| runtimes.ocicnitool(verb, &pod);
        let added = call("add").unwrap();
        assert_eq!(
            added.lines().count(),
            usize::from(families.v4) + usize::from(families.v6),
            "{added}"
        );
        let in_pod = kernel::pod(cluster.host, &pod.name).unwrap();
        assert_eq!(in_pod["links"]["eth0"]["mtu"], 1400, "{in_pod}");
        assert_eq!(call("status").unwrap(), added, "{version}, {families:?}");
        call("del").unwrap();
        call("del").unwrap();
        cluster.assert_nothing_left();
        cluster.remove_pod(&pod);
    }
}
